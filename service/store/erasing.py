"""Erasures: records that contribute nothing any more, and whose labels nobody is asked for."""

from sqlalchemy import Connection

from service.store import labels, locks, segments, units


class NotNumbered(Exception):
    """Only records that have numbers can be erased. `records`: how many have."""

    def __init__(self, records: int) -> None:
        super().__init__(f"only the records [0, {records}) are numbered")
        self.records = records


def erase(connection: Connection, stream: int, start: int, stop: int) -> None:
    """Erase the records [start, stop) of a stream for every fit that begins later; the sealer deletes their bytes.

    Raises:
        NotNumbered: some of them are not numbered yet, or there are none.
    """
    records = locks.stream(connection, stream).records
    if not start < stop <= records:
        raise NotNumbered(records)
    segments.erase(connection, stream, start, stop)
    labels.erase(connection, stream, start, stop)


def close_unit(connection: Connection, stream: int, pseudonym: bytes) -> int:
    """Let no later record of a unit count; return how many records have numbers. Its records so far are not erased."""
    records = locks.stream(connection, stream).records
    units.close(connection, stream, pseudonym)
    return records
