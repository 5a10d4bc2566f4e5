"""Every charge that names a version has that release: nobody paid for what was never shown."""

from sqlalchemy import Connection, and_, select

from service.store.tables import charges, publications, releases, streams


def violations(connection: Connection) -> list[str]:
    paid = and_(
        releases.c.publication_id == charges.c.publication_id,
        releases.c.version == charges.c.version,
        releases.c.charge == charges.c.id,
    )
    query = (
        select(publications.c.name, streams.c.name.label("stream"), charges.c.id, charges.c.version)
        .join(publications, publications.c.id == charges.c.publication_id)
        .join(streams, streams.c.id == publications.c.stream_id)
        .outerjoin(releases, paid)
        .where(charges.c.version.isnot(None), releases.c.version.is_(None))
    )
    return [
        f"publication {row.name} of stream {row.stream}, charge {row.id}, version {row.version}"
        for row in connection.execute(query)
    ]
