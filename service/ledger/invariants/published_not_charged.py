"""Every release has a charge that is its own: of its publication and version, on the records that its fit read.

Where records pay at arrival, it is the charge with which the last of those arrived.
"""

from sqlalchemy import Connection, and_, or_, select

from service.store.tables import charges, publications, releases, streams


def violations(connection: Connection) -> list[str]:
    paid = and_(charges.c.stream_id == releases.c.stream_id, charges.c.id == releases.c.charge)
    query = (
        select(publications.c.name, streams.c.name.label("stream"), releases.c.version)
        .join(publications, publications.c.id == releases.c.publication_id)
        .join(streams, streams.c.id == publications.c.stream_id)
        .outerjoin(charges, paid)
        .where(
            or_(
                charges.c.publication_id.is_distinct_from(releases.c.publication_id),
                charges.c.stop.is_distinct_from(releases.c.fit_stop),
                charges.c.start < releases.c.fit_start,
                and_(
                    charges.c.version.isnot(None),
                    or_(charges.c.version != releases.c.version, charges.c.start != releases.c.fit_start),
                ),
            )
        )
    )
    return [
        f"publication {row.name} of stream {row.stream}, version {row.version}" for row in connection.execute(query)
    ]
