"""What tells from outside that PostgreSQL was restored from an old backup: a small file beside each stream's segments.

It says how far the stream and its ledger had come, a second ago at most while a worker runs. A ledger that has come
less far, or another way, is older than what was published, or another's: nothing may be published from it, or versions
that were served would be served again with other content, and what they cost would be forgotten.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from service.store.segment_files import SegmentFiles
from service.store.streams import Stream
from service.store.tables import charges, erasures


@dataclass(frozen=True, kw_only=True)
class Mark:
    """How far a stream had come: records numbered, erasures asked, charges made, and the newest charge's hash."""

    records: int
    erasures: int
    charges: int
    head: str | None


def marks(connection: Connection, found: Iterable[Stream]) -> dict[str, Mark]:
    """How far streams have come, by the name of their logs."""
    query = select(erasures.c.stream_id, func.count().label("asked")).group_by(erasures.c.stream_id)
    asked = {row.stream_id: row.asked for row in connection.execute(query)}
    return {
        stream.log: Mark(
            records=stream.records, erasures=asked.get(stream.id, 0), charges=stream.charges, head=stream.head
        )
        for stream in found
    }


def testify(files: SegmentFiles, log: str, mark: Mark) -> None:
    """Writes down how far a stream has come."""
    files.put_witness(log, asdict(mark))


def contradicts(connection: Connection, told: dict[str, Any] | None, stream: Stream) -> str | None:
    """Why a stream can't be what the file beside its segments tells of it; None: it has come as far, or further.

    told: what `SegmentFiles.witness` returned, before the stream was read.
    """
    if told is None:
        return None
    try:
        mark = Mark(**told)
        now = marks(connection, [stream])[stream.log]
        behind = [
            f"{name} {getattr(mark, name)} (there are {getattr(now, name)})"
            for name in ("records", "erasures", "charges")
            if getattr(mark, name) > getattr(now, name)
        ]
    except TypeError:
        return "the file beside its segments that tells how far it had come can't be read"
    if behind:
        return f"it is older than what was done: the file beside its segments tells of {', '.join(behind)}"
    charge = select(charges.c.hash).where(charges.c.stream_id == stream.id, charges.c.id == mark.charges)
    if mark.charges and connection.execute(charge).scalar_one_or_none() != mark.head:
        return f"it is another one than was published from: the file beside its segments knows charge {mark.charges}"
    return None
