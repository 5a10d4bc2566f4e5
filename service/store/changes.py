"""Which of all streams want something done, by one query that answers little however many streams there are."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, Text, cast, func, or_, select

from service.store import leases
from service.store.database import ANY_OF_STREAMS, TIMELINE, all_of, any_of, read, read_together
from service.store.tables import erasures, streams
from service.store.tables import leases as leased


class Unsealed(NamedTuple):
    """The work for sealers, counted by one query however many streams there are.

    `sealers` are at it, this one included. Among the streams that want one, `free` have none, `long_free` for long.
    """

    sealers: int
    wanted: int
    free: int
    long_free: int


class ForSealers(NamedTuple):
    """All that sealers look for. `erased`: streams with erasures whose bytes are still there. `halted`: streams."""

    unsealed: Unsealed
    erased: set[int]
    halted: set[int]


class State(NamedTuple):
    """`digest` changes whenever a stream is numbered, charged, released on, confirmed, erased from or distrusted."""

    id: int
    log: str
    distrusted: bool
    digest: int


def states(connection: Connection) -> list[State]:
    """Return the state of every stream, for callers that look again and again which have changed."""
    return [State(*row) for row in connection.execute(_STATES)]


def digest(connection: Connection) -> tuple[int, int | None]:
    """How many streams there are, and a sum that changes whenever one of them does."""
    (((count, total),),) = read_together(connection, (_DIGEST, {}))
    return count, total


_TOLD = (
    "records",
    "charges",
    "head",
    "releases",
    "newest_release",
    "distrusted",
    "confirmed_charges",
    "confirmed_releases",
    "marked",
)
_ASKED = select(erasures.c.stream_id, func.count().label("asked")).group_by(erasures.c.stream_id).subquery()
_STATES = (
    select(
        streams.c.id,
        streams.c.log,
        streams.c.distrusted.is_not(None),
        func.hashtextextended(
            func.concat_ws(
                "/", _ASKED.c.asked, TIMELINE, *(func.coalesce(cast(streams.c[name], Text), "") for name in _TOLD)
            ),
            0,
        ).label("digest"),
    )
    .outerjoin(_ASKED, _ASKED.c.stream_id == streams.c.id)
    .order_by(streams.c.id)
)
_digests = _STATES.order_by(None).subquery().c
_DIGEST = select(func.count(), func.sum(func.hashtextextended(func.concat_ws("/", _digests.id, _digests.digest), 0)))


def logs(connection: Connection, identities: Sequence[int]) -> dict[int, str]:
    """The names of streams' logs, which never change."""
    return dict(read(connection, _LOGS, {"streams": list(identities)}))


_LOGS = select(streams.c.id, streams.c.log).where(streams.c.id == ANY_OF_STREAMS)


def short_ledgers(
    connection: Connection, among: Sequence[int], *, but: Collection[str], charges: int, most: int
) -> dict[int, str]:
    """The first few of some streams that have at most so many charges together, with their logs; long ones aside.

    but: logs of other streams to leave out. most: so many streams.
    """
    query = select(streams.c.id, streams.c.log, streams.c.charges).where(
        streams.c.id == any_of(among), streams.c.charges <= charges
    )
    ledgers = {row.id: row for row in connection.execute(query)}
    short: dict[int, str] = {}
    for row in (ledgers[each] for each in dict.fromkeys(among) if each in ledgers and ledgers[each].log not in but):
        charges -= row.charges
        if charges < 0 or len(short) == most:
            break
        short[row.id] = row.log
    return short


_ERASED = select(erasures.c.stream_id).where(erasures.c.deleted_at.is_(None))
_EACH_ERASED = _ERASED.distinct()
_HALTED = select(streams.c.id).where(streams.c.halted.is_not(None))
_WANTS_A_SEALER = or_(streams.c.halted.is_(None), streams.c.id.in_(_ERASED))


ALL_SLOTS = (range(2**14),)


def for_sealers(
    connection: Connection, *, seconds: float, primary: int = 1, slots: Sequence[range] = ALL_SLOTS
) -> ForSealers:
    """Return the work for sealers of a primary, whose streams have such slots; one round trip.

    seconds: the length of their leases, after which a free stream is so for long.
    """
    counting = _unsealed(seconds, primary, tuple(slots))
    (counts,), erased, halted = read_together(connection, (counting, {}), (_EACH_ERASED, {}), (_HALTED, {}))
    return ForSealers(Unsealed(*counts), {row.stream_id for row in erased}, {row.id for row in halted})


@lru_cache(maxsize=16)
def _unsealed(seconds: float, primary: int, slots: Sequence[range]) -> Select[int, int, int, int]:
    free, long_free = (func.count().filter(leases.is_free(seconds, since=since)) for since in (0.0, seconds))
    return (
        select(leases.sealers(seconds, primary=primary), func.count(), free, long_free)
        .select_from(streams)
        .join(leased, leased.c.resource == leases.stream_of(streams.c.id))
        .where(_WANTS_A_SEALER, _has(slots))
    )


def wanting_a_sealer(*, but: Sequence[int], slots: Sequence[range] = ALL_SLOTS) -> Select[str]:
    """The leases of the streams with such slots that want a sealer, some streams aside; in a query."""
    return select(leases.stream_of(streams.c.id)).where(_WANTS_A_SEALER, _has(slots), streams.c.id != all_of(but))


def _has(slots: Sequence[range]) -> ColumnElement[bool]:
    return or_(*[streams.c.place.between(part.start, part.stop - 1) for part in slots])
