"""Each charge names the hash of the one before, ids have no gap, and each chain ends where its stream says."""

from sqlalchemy import Connection, and_, func, or_, select

from service.store.tables import charges, streams


def violations(connection: Connection) -> list[str]:
    links = select(
        charges.c.stream_id,
        charges.c.id,
        charges.c.previous_hash,
        func.lag(charges.c.hash).over(partition_by=charges.c.stream_id, order_by=charges.c.id).label("hash_before"),
        func.row_number().over(partition_by=charges.c.stream_id, order_by=charges.c.id).label("number"),
    ).subquery()
    broken = (
        select(streams.c.name, links.c.id)
        .join(streams, streams.c.id == links.c.stream_id)
        .where(or_(links.c.previous_hash.is_distinct_from(links.c.hash_before), links.c.id != links.c.number))
    )
    last = select(charges.c.stream_id, func.max(charges.c.id).label("id")).group_by(charges.c.stream_id).subquery()
    newest = (
        select(charges.c.stream_id, charges.c.id, charges.c.hash)
        .join(last, and_(last.c.stream_id == charges.c.stream_id, last.c.id == charges.c.id))
        .subquery()
    )
    cut = (
        select(streams.c.name, streams.c.charges.label("id"))
        .outerjoin(newest, newest.c.stream_id == streams.c.id)
        .where(or_(streams.c.charges != func.coalesce(newest.c.id, 0), streams.c.head.is_distinct_from(newest.c.hash)))
    )
    untrusted = select(streams.c.name, streams.c.distrusted).where(streams.c.distrusted.isnot(None))
    breaks = [f"stream {row.name}, charge {row.id}" for query in (broken, cut) for row in connection.execute(query)]
    return breaks + [_placed(f"stream {row.name}", row.distrusted) for row in connection.execute(untrusted)]


def _placed(where: str, reason: str) -> str:
    """Return a reason with its place, which most findings name themselves."""
    names_it = reason.startswith((f"{where}:", f"{where},")) or reason.endswith(f"({where})")
    return reason if names_it else f"{where}: {reason}"
