"""The high-water mark: a small file beside each stream's segments that says how far the stream has come.

It is outside PostgreSQL, so that it tells when PostgreSQL has forgotten something: an old backup was put in its place,
or a standby took over that lacked the newest commits. A ledger that has come less far, or another way, is not the one
that was published from: nothing may be published on it, or versions that were seen would be published again with other
content, and what they cost would be forgotten. Nothing is visible before the mark holds it (`publishing.confirmation`).
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import structlog
from sqlalchemy import ARRAY, BigInteger, Connection, Select, and_, bindparam, func, select

from service.ledger.errors import LedgerBroken
from service.segments.files import SegmentFiles
from service.store.database import TIMELINE, read, read_together
from service.store.streams import Stream
from service.store.tables import charges, erasures, releases

_log = structlog.get_logger(__name__)

Query = tuple[Select[Any], dict[str, Any]]
"""And what it binds."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """How far a stream had come: records numbered, erasures asked, charges and releases made, the newest ones' hashes.

    `timeline`: PostgreSQL's, which is another one after a standby was promoted or a recovery ended early.
    """

    records: int
    erasures: int
    charges: int
    head: str | None
    releases: int = 0
    newest_release: str | None = None
    timeline: int | None = None


def marks(connection: Connection, streams: Iterable[Stream]) -> dict[str, Mark]:
    """How far streams have come, by the name of their logs."""
    streams = list(streams)
    rows = read(connection, _ASKED, _bound(streams))
    return _marks(streams, rows)


def _bound(streams: Iterable[Stream]) -> dict[str, Any]:
    return {"streams": [stream.id for stream in streams]}


def _marks(streams: Iterable[Stream], rows: Sequence[Any]) -> dict[str, Mark]:
    erasures_of = {row.stream_id: row.asked for row in rows}
    timeline = rows[0].timeline if rows else None
    return {
        stream.log: Mark(
            records=stream.records,
            erasures=erasures_of.get(stream.id, 0),
            charges=stream.charges,
            head=stream.head,
            releases=stream.releases,
            newest_release=stream.newest_release,
            timeline=timeline,
        )
        for stream in streams
    }


def write(files: SegmentFiles, log: str, mark: Mark) -> None:
    """Write down how far a stream has come. The caller holds the file's lock."""
    files.put_high_water_mark(log, asdict(mark))


def readable(files: SegmentFiles, logs: Iterable[str]) -> dict[str, dict[str, Any] | None]:
    """Return what `SegmentFiles.high_water_mark` returns, by log; streams whose file can't be read now are left out."""
    stored = {}
    for log in logs:
        try:
            stored[log] = files.high_water_mark(log)
        except OSError as error:
            _log.error("high_water_mark_not_read", log=log, error=error.strerror)
    return stored


def note(mark: Mark, at: float) -> dict[str, Any]:
    """Return the note of a walk that found nothing: when it began, in Unix time, and how far the stream was."""
    return {"at": at, "mark": asdict(mark)}


def walked_ago(connection: Connection, noted: dict[str, Any], stream: Stream) -> float | None:
    """How many seconds ago a walk found nothing, if the stream still has the charge and release that it ended with.

    noted: what `SegmentFiles.note` returned.
    """
    stored, at = noted.get("mark"), noted.get("at")
    mark = _mark(stored) if isinstance(stored, dict) else None
    if mark is None or not isinstance(at, float) or not holds(connection, mark, stream):
        return None
    return time.time() - at


def behind_of_each(
    connection: Connection, stored: Mapping[str, dict[str, Any] | None], streams: Iterable[Stream]
) -> dict[str, str]:
    """Why streams are older than the files beside their segments, by log; the others have come as far, it seems.

    stored: what `SegmentFiles.high_water_mark` returned, before the streams were read, by log.
    """
    reasons = {}
    for log, now in marks(connection, streams).items():
        mark = _mark(stored[log])
        if mark is not None and (lost := _lost(mark, now)):
            reasons[log] = _older(lost, mark, now)
    return reasons


def _older(lost: str, mark: Mark, now: Mark) -> str:
    return f"it is older than what was done: the file beside its segments tells of {lost}; {_why(mark, now)}"


def _lost(mark: Mark, now: Mark) -> str:
    """Return what a mark tells of and the database lacks."""
    less = [
        f"{name} {getattr(mark, name)} (there are {getattr(now, name)})"
        for name in ("records", "erasures", "charges", "releases")
        if getattr(mark, name) > getattr(now, name)
    ]
    return ", ".join(less)


def contradicts(
    connection: Connection, files: SegmentFiles, stored: dict[str, Any] | None, stream: Stream
) -> str | None:
    """Why a stream can't be the one that the file beside its segments tells of; None: it may be.

    stored: as above. Where the file was missing, the first mark may have been written since; it is there before the
    stream says so.
    """
    return contradictions(connection, files, {stream.log: stored}, [stream]).get(stream.log)


def contradictions(
    connection: Connection, files: SegmentFiles, stored: Mapping[str, dict[str, Any] | None], streams: Iterable[Stream]
) -> dict[str, str]:
    """The same by log, of the streams that can't be, with the same queries for all; stored: by log."""
    streams = list(streams)
    return compare(files, stored, streams, *read_together(connection, *needed(stored, streams)))[1]


def needed(stored: Mapping[str, dict[str, Any] | None], streams: Sequence[Stream]) -> tuple[Query, Query]:
    """Return what is to be read to `compare` streams with what is stored, by log."""
    return (_ASKED, _bound(streams)), (_NEWEST, _names(_known(stored, streams)))


def compare(
    files: SegmentFiles,
    stored: Mapping[str, dict[str, Any] | None],
    streams: Sequence[Stream],
    counts: Sequence[Any],
    newest: Sequence[Any],
) -> tuple[dict[str, Mark], dict[str, str]]:
    """Return how far streams have come, and why some contradict what is stored, by log; of what was `needed`."""
    reasons, now, known = {}, _marks(streams, counts), _known(stored, streams)
    others = _other(known, newest)
    for stream in streams:
        mark = known.get(stream.id)
        if mark is None:
            if stored[stream.log] is not None:
                reasons[stream.log] = "the file beside its segments that tells how far it had come can't be read"
            elif stream.marked and files.high_water_mark(stream.log) is None:
                reasons[stream.log] = (
                    "the file beside its segments that tells how far it had come is missing: is its folder there?"
                )
        elif lost := _lost(mark, now[stream.log]):
            reasons[stream.log] = _older(lost, mark, now[stream.log])
        elif stream.id in others:
            reasons[stream.log] = (
                "it is another one than was published from: the file beside its segments knows "
                f"{others[stream.id]}; {_why(mark, now[stream.log])}"
            )
    return now, reasons


def check(connection: Connection, files: SegmentFiles, stored: dict[str, Any] | None, stream: Stream) -> None:
    """Raise LedgerBroken if a stream can't be the one that the file beside its segments tells of. stored: as above."""
    check_each(connection, files, {stream.log: stored}, [stream])


def check_each(
    connection: Connection, files: SegmentFiles, stored: Mapping[str, dict[str, Any] | None], streams: Sequence[Stream]
) -> None:
    """The same if any of some streams can't be; stored: by log."""
    against = contradictions(connection, files, stored, streams)
    for stream in streams:
        if stream.log in against:
            raise LedgerBroken(f"stream {stream.name}: {against[stream.log]}")


def holds(connection: Connection, mark: Mark, stream: Stream) -> bool:
    """Whether the stream in this database has the very charge and release that a mark names as its newest."""
    return not _differences(connection, {stream.id: mark})


def hold(connection: Connection, known: Mapping[int, Mark]) -> set[int]:
    """Return the ids of those streams of which the same holds."""
    return known.keys() - _differences(connection, known).keys()


def _differences(connection: Connection, known: Mapping[int, Mark]) -> dict[int, str]:
    """Which of what marks name is another, or missing, in this database, by the stream's id."""
    rows = read(connection, _NEWEST, _names(known))
    return _other(known, rows)


def left(streams: Iterable[Stream]) -> Query:
    """Return what is to be read for `left_otherwise`."""
    return _NEWEST, _names({each.id: each for each in streams})


def left_otherwise(streams: Iterable[Stream], newest: Sequence[Any]) -> set[int]:
    """Return the ids of streams whose newest charge or release is not the one that their row was left with."""
    return set(_other({each.id: each for each in streams}, newest))


def _names(known: Mapping[int, Mark | Stream]) -> dict[str, Any]:
    return {
        "streams": list(known),
        "charges": [mark.charges for mark in known.values()],
        "releases": [mark.releases for mark in known.values()],
    }


def _other(known: Mapping[int, Mark | Stream], newest: Sequence[Any]) -> dict[int, str]:
    differences = {}
    for row in newest:
        mark = known[row.stream]
        if mark.charges and row.hash != mark.head:
            differences[row.stream] = f"another charge {mark.charges}"
        elif mark.releases and row.digest != mark.newest_release:
            differences[row.stream] = f"another release {mark.releases} of the stream"
    return differences


_named = (
    func.unnest(*(bindparam(name, type_=ARRAY(BigInteger)) for name in ("streams", "charges", "releases")))
    .table_valued("stream", "charge", "release")
    .render_derived()
)
_NEWEST = (
    select(_named.c.stream, charges.c.hash, releases.c.digest)
    .outerjoin(charges, and_(charges.c.stream_id == _named.c.stream, charges.c.id == _named.c.charge))
    .outerjoin(releases, and_(releases.c.stream_id == _named.c.stream, releases.c.number == _named.c.release))
)
_of = func.unnest(bindparam("streams", type_=ARRAY(BigInteger))).table_valued("stream").render_derived()
_ASKED = select(
    _of.c.stream.label("stream_id"),
    select(func.count()).where(erasures.c.stream_id == _of.c.stream).scalar_subquery().label("asked"),
    select(TIMELINE).scalar_subquery().label("timeline"),
)


PROMOTED = "a standby without the newest commits was promoted, or a recovery ended before them"
REPLACED = "an older copy of the database was put in its place, or it lost commits in a crash"


def lost_commits(reason: str | None) -> bool:
    """Return whether a stream is distrusted because the database lacks what was committed."""
    return reason is not None and reason.endswith((PROMOTED, REPLACED))


def _why(mark: Mark, now: Mark) -> str:
    """Return what PostgreSQL's timeline tells of how that came about."""
    if mark.timeline is not None and now.timeline is not None and now.timeline > mark.timeline:
        return PROMOTED
    return REPLACED


def _known(stored: Mapping[str, dict[str, Any] | None], streams: Iterable[Stream]) -> dict[int, Mark]:
    """Return the marks that there are and can be read, by the stream's id."""
    return {each.id: mark for each in streams if (mark := _mark(stored[each.log])) is not None}


def _mark(stored: dict[str, Any] | None) -> Mark | None:
    """None: there is none, or it can't be read."""
    known = {each.name: each for each in fields(Mark)}
    if stored is None or not {"records", "erasures", "charges", "head"} <= stored.keys() <= known.keys():
        return None
    counts = [value for name, value in stored.items() if name in ("records", "erasures", "charges", "releases")]
    return Mark(**stored) if all(type(value) is int for value in counts) else None
