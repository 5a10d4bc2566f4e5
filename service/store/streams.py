"""Streams, how far each one is numbered, and what of its log could not be."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from sqlalchemy import Connection, Row, bindparam, func, insert, or_, select, text, update
from sqlalchemy.exc import IntegrityError

from service.store import digests, leases, segments
from service.store.database import FREE_STREAM, NEW_RECORDS, any_of, notify
from service.store.keys import NameTaken
from service.store.segments import Segment
from service.store.tables import dead_letters, entries, resumptions, streams
from service.streams.layout import RecordLayout
from service.streams.schema import StreamSchema, stored_schema


class StreamHalted(Exception):
    """Nothing more is numbered on this stream until an operator has looked at it."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """`records` are numbered so far; `log` names its keys in the log and its folder of segments.

    The rest is told in tables.py.
    """

    id: int
    name: str
    log: str
    schema: dict[str, Any]
    retention: Literal["keep", "needed"]
    epsilon: Decimal
    delta: Decimal
    records: int
    sealed_entry: str
    sealed_sequence: int
    halted: str | None
    charges: int
    head: str | None
    distrusted: str | None
    grain: int
    promise: str
    segments_sum: Decimal
    releases: int
    newest_release: str | None
    confirmed_charges: int
    confirmed_releases: int
    marked: bool
    visible_epsilon: Decimal
    visible_delta: Decimal
    created_at: datetime

    @property
    def parsed_schema(self) -> StreamSchema:
        """The schema, with types. `schema` is the stored JSON, which the promise is about."""
        return stored_schema(self.schema)

    @cached_property
    def layout(self) -> RecordLayout:
        """How its records are laid out."""
        return self.parsed_schema.layout()


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """What came in the log and could not be numbered, and why. `ours`: a batch that was accepted, so it is lost."""

    id: int
    entry: str
    ours: bool
    reason: str
    size: int
    found_at: datetime
    dropped_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """An entry of the log that can't be numbered. `sequence` None: it is none of ours."""

    entry: str
    sequence: int | None
    reason: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """A halted stream that went on with another log: why it had halted, and what of it is lost.

    `records` were numbered before, the last of them with the batch `entry`. `lost_batches` were accepted after that and
    are gone; None: nobody can know how many.
    """

    reason: str
    records: int
    entry: str
    lost_batches: int | None
    resumed_at: datetime


@dataclass(frozen=True, kw_only=True)
class SealedEntry:
    """A batch of the log and the numbers its records got."""

    entry: str
    sequence: int
    start: int
    stop: int


def create(
    connection: Connection,
    *,
    name: str,
    log: str,
    schema: dict[str, Any],
    retention: str,
    epsilon: Decimal,
    delta: Decimal,
) -> Stream:
    try:
        row = connection.execute(
            insert(streams)
            .values(
                name=name,
                log=log,
                schema=schema,
                retention=retention,
                epsilon=epsilon,
                delta=delta,
                promise="",
            )
            .returning(streams)
        ).one()
    except IntegrityError as error:
        raise NameTaken(name) from error
    leases.create(connection, leases.stream(row.id))
    notify(connection, FREE_STREAM)
    promise = promised(_stream(row))  # of what was stored, as anybody will read it
    connection.execute(update(streams).where(streams.c.id == row.id).values(promise=promise))
    return get(connection, row.id)


def promised(stream: Stream) -> str:
    """The digest of what never changes of a stream: its name, schema, retention and budget."""
    told = {
        "name": stream.name,
        "log": stream.log,
        "schema": stream.schema,
        "retention": stream.retention,
        "epsilon": str(Fraction(stream.epsilon)),
        "delta": str(Fraction(stream.delta)),
        "created_at": digests.timestamp(stream.created_at),
    }
    return digests.of(told)


def find(connection: Connection, name: str) -> Stream | None:
    row = connection.execute(select(streams).where(streams.c.name == name)).one_or_none()
    return _stream(row) if row else None


def get(connection: Connection, identity: int) -> Stream:
    return _stream(connection.execute(select(streams).where(streams.c.id == identity)).one())


def lock(connection: Connection, identity: int) -> Stream:
    """The stream, with its budget, ledger and numbering still until the transaction ends."""
    return _stream(connection.execute(select(streams).where(streams.c.id == identity).with_for_update()).one())


def every(connection: Connection) -> list[Stream]:
    return [_stream(row) for row in connection.execute(select(streams).order_by(streams.c.id))]


def of_each(connection: Connection, found: Sequence[int]) -> list[Stream]:
    """Some streams, with one query for all of them."""
    return [_stream(row) for row in connection.execute(select(streams).where(streams.c.id == any_of(found)))]


def page(connection: Connection, *, limit: int, before: int | None, only: frozenset[str] | None) -> list[Stream]:
    """Newest first; `before` is the id of the last stream of the page before."""
    query = select(streams).order_by(streams.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(streams.c.id < before)
    if only is not None:
        query = query.where(streams.c.name.in_(only))
    return [_stream(row) for row in connection.execute(query)]


def halt(connection: Connection, identity: int, reason: str) -> None:
    connection.execute(update(streams).where(streams.c.id == identity).values(halted=reason))


_MOVED = ("charges", "head", "grain", "releases", "newest_release")
_MOVE = update(streams).where(streams.c.id == bindparam("of")).values({name: bindparam(name) for name in _MOVED})


def move(connection: Connection, stream: Stream) -> None:
    """Write where the stream's chain of charges and its numbered releases end now."""
    connection.execute(_MOVE, {name: getattr(stream, name) for name in _MOVED} | {"of": stream.id})


def confirm(
    connection: Connection, identity: int, *, charges: int, releases: int, epsilon: Decimal, delta: Decimal
) -> bool:
    """Make the stream's charges and releases visible up to these numbers; return whether that is news.

    epsilon, delta: what the worst record has spent with these charges. Sums never fall, so that whoever is late with an
    older state changes nothing.
    """
    changed = connection.execute(
        update(streams)
        .where(
            streams.c.id == identity,
            or_(
                streams.c.confirmed_charges < charges,
                streams.c.confirmed_releases < releases,
                streams.c.marked.is_(False),
            ),
        )
        .values(
            confirmed_charges=func.greatest(streams.c.confirmed_charges, charges),
            confirmed_releases=func.greatest(streams.c.confirmed_releases, releases),
            visible_epsilon=func.greatest(streams.c.visible_epsilon, epsilon),
            visible_delta=func.greatest(streams.c.visible_delta, delta),
            marked=True,
        )
    )
    return bool(changed.rowcount)


def distrust(connection: Connection, stream: Stream, reason: str | None) -> bool:
    """Publishes nothing more on it, because its ledger does not verify; None: it does (again). Whether that is news.

    Nothing changes if somebody else has said otherwise since the stream was read.
    """
    if stream.distrusted == reason:
        return False
    changed = connection.execute(
        update(streams)
        .where(streams.c.id == stream.id, streams.c.distrusted.is_not_distinct_from(stream.distrusted))
        .values(distrusted=reason)
    )
    return bool(changed.rowcount)


def seal(
    connection: Connection,
    lease: leases.Lease,
    stream: Stream,
    segment: Segment | None,
    sealed: Sequence[SealedEntry],
    dead: Sequence[Unreadable] = (),
) -> None:
    """Numbers the records of a segment, in one transaction with what tells where the log was read to.

    dead: what lay between the batches and could not be read; no record gets another number by that. segment: None if
    it was nothing else.

    Raises:
        LeaseLost: another may be sealing this stream.
        StreamHalted: the position moved under us, which the lease forbids; nothing was numbered.
    """
    leases.check(connection, lease)
    last = max([each.entry for each in sealed] + [each.entry for each in dead], key=_order)
    counted = len(sealed) + sum(each.sequence is not None for each in dead)
    moved = connection.execute(
        update(streams)
        .where(
            streams.c.id == stream.id,
            streams.c.records == stream.records,
            streams.c.sealed_sequence == stream.sealed_sequence,
            streams.c.halted.is_(None),
        )
        .values(
            records=stream.records if segment is None else segment.stop,
            sealed_entry=last,
            sealed_sequence=stream.sealed_sequence + counted,
            **({} if segment is None else {"segments_sum": segments.added(segments.digest(stream.log, segment))}),
        )
    ).rowcount
    if not moved:
        raise StreamHalted(stream.name)
    if dead:
        connection.execute(insert(dead_letters), [vars(each) | {"stream_id": stream.id} for each in dead])
    if segment is None:
        return
    segments.store(connection, stream, segment)
    connection.execute(
        insert(entries).values(numbered_at=func.clock_timestamp()),
        [{"stream_id": stream.id, "entry": each.entry, "start": each.start, "stop": each.stop} for each in sealed],
    )
    notify(connection, NEW_RECORDS, stream.name)


def _order(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))


def page_of_dead_letters(connection: Connection, stream: int, *, limit: int, before: int | None) -> list[DeadLetter]:
    """Newest first."""
    columns = [dead_letters.c[name] for name in ("id", "entry", "reason", "size", "found_at", "dropped_at")]
    query = (
        select(*columns, dead_letters.c.sequence.isnot(None).label("ours"))
        .where(dead_letters.c.stream_id == stream)
        .order_by(dead_letters.c.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(dead_letters.c.id < before)
    return [DeadLetter(**row._asdict()) for row in connection.execute(query)]


def drop_dead_letter(connection: Connection, stream: int, entry: str) -> bool:
    """Whether there is such a one; dropping twice is the same as once. That it was found is never forgotten."""
    mine = (dead_letters.c.stream_id == stream) & (dead_letters.c.entry == entry)
    dropped = func.coalesce(dead_letters.c.dropped_at, func.now())
    return bool(connection.execute(update(dead_letters).where(mine).values(dropped_at=dropped)).rowcount)


def waiting_dead_letters(connection: Connection, found: Sequence[int]) -> Counter[int]:
    """By stream, how many are not dropped."""
    of_any = (dead_letters.c.stream_id == any_of(found)) & dead_letters.c.dropped_at.is_(None)
    query = select(dead_letters.c.stream_id, func.count()).where(of_any).group_by(dead_letters.c.stream_id)
    return Counter(dict(connection.execute(query).all()))


def resume(connection: Connection, stream: Stream, *, sequence: int, lost_batches: int | None) -> Resumption:
    """Numbering goes on where it stood, with the batch after `sequence`. The caller holds the stream's lock."""
    told = {"reason": stream.halted, "records": stream.records, "entry": stream.sealed_entry}
    row = connection.execute(
        insert(resumptions)
        .values(stream_id=stream.id, lost_batches=lost_batches, **told)
        .returning(*(resumptions.c[name] for name in _RESUMPTION))
    ).one()
    connection.execute(update(streams).where(streams.c.id == stream.id).values(halted=None, sealed_sequence=sequence))
    notify(connection, FREE_STREAM)
    return Resumption(**row._asdict())


_RESUMPTION = ("reason", "records", "entry", "lost_batches", "resumed_at")


def resumptions_of(connection: Connection, found: Sequence[int], *, most: int) -> dict[int, list[Resumption]]:
    """By stream, newest first; of many the last `most`."""
    place = func.row_number().over(partition_by=resumptions.c.stream_id, order_by=resumptions.c.id.desc())
    placed = select(resumptions, place.label("place")).where(resumptions.c.stream_id == any_of(found)).subquery()
    columns = [placed.c[name] for name in ("stream_id", *_RESUMPTION)]
    query = select(*columns).where(placed.c.place <= most).order_by(placed.c.place)
    by_stream: dict[int, list[Resumption]] = {each: [] for each in found}
    for stream, *row in connection.execute(query):
        by_stream[stream].append(Resumption(**dict(zip(_RESUMPTION, row, strict=True))))
    return by_stream


def find_entry(connection: Connection, stream: int, entry: str) -> tuple[int, int] | None:
    row = connection.execute(
        select(entries.c.start, entries.c.stop).where(entries.c.stream_id == stream, entries.c.entry == entry)
    ).one_or_none()
    return (row.start, row.stop) if row else None


def ready(connection: Connection) -> None:
    connection.execute(text("SELECT 1 FROM streams LIMIT 1"))


def _stream(row: Row[Any]) -> Stream:
    return Stream(**row._asdict())
