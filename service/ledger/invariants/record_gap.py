"""Numbers have no gap and no overlap: those of batches and of segments from the first kept, to the last."""

from sqlalchemy import Connection, func, or_, select, true

from service.store.tables import entries, segments, streams


def violations(connection: Connection) -> list[str]:
    gaps = []
    for table in (entries, segments):
        ranges = select(
            table.c.stream_id,
            table.c.start,
            table.c.stop,
            func.lag(table.c.stop).over(partition_by=table.c.stream_id, order_by=table.c.start).label("before"),
            func.lead(table.c.start).over(partition_by=table.c.stream_id, order_by=table.c.start).label("after"),
        ).subquery()
        last = ranges.c.after.is_(None)
        wrong = or_(
            ranges.c.before != ranges.c.start,
            last & (ranges.c.stop != streams.c.records),
        )
        # Of a stream that keeps what is needed alone, the first segments may be gone.
        whole = true() if table is entries else streams.c.retention != "needed"
        first = streams.c.entries_from if table is entries else 0
        wrong = or_(wrong, whole & ranges.c.before.is_(None) & (ranges.c.start != first))
        query = (
            select(streams.c.name, ranges.c.start)
            .join(ranges, ranges.c.stream_id == streams.c.id)
            .where(wrong)
            .order_by(streams.c.name, ranges.c.start)
        )
        gaps += [f"stream {row.name}, {table.name} at record {row.start}" for row in connection.execute(query)]
        none = select(streams.c.name).where(
            whole, streams.c.records > 0, ~select(table.c.start).where(table.c.stream_id == streams.c.id).exists()
        )
        gaps += [f"stream {name}, {table.name} at record 0" for name in connection.execute(none).scalars()]
    return gaps
