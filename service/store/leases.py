"""Says who may work on a stream or a publication now: one owner at a time, on PostgreSQL's clock.

A lease that runs out can be taken by another; taking it raises its epoch. Every commit checks the epoch, so that an
owner that slept through its lease can't commit what it still had in hand.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    Update,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql

from service.store.database import FREE_STREAM, TIMELINE, notify, read_together, write
from service.store.schema_version import is_served
from service.store.tables import leases

_NOBODY = "nobody"
"""The owner that `abandon` writes. No worker has this name, so the next owner is always another one."""
NOBODY_ASKS_FOR = 10
"""So many times the length of one's own leases: others may be set to other lengths, but not to such."""


Among = tuple[Select[str], dict[str, Any]]
"""A query of the leases that are wanted, and what it binds."""


class LeaseLost(Exception):
    """Another owner may be at work: drop what is in hand."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """`abandoned`: seconds since the owner before renewed it, if that was somebody else who did not give it back."""

    resource: str
    owner: str
    epoch: int
    abandoned: float | None = None


def stream(identity: int) -> str:
    return f"{_STREAM}{identity}"


def stream_id(lease: Lease) -> int:
    """The stream that a lease is of."""
    return int(lease.resource.removeprefix(_STREAM))


def sealer(owner: str, primary: int) -> str:
    """The lease of a worker that numbers streams of a primary: as long as it is held, the worker has its share."""
    return f"{_sealers_of(primary)}{owner}"


def _sealers_of(primary: int) -> str:
    return _SEALER if primary == 1 else f"sealer/{primary}:"


_STREAM, _SEALER = "stream:", "sealer:"


def publication(identity: int) -> str:
    return f"publication:{identity}"


def queries(publication: int) -> str:
    """The lease of the one process that compares linear queries of a publication with its records."""
    return f"queries:{publication}"


def exploration(identity: int) -> str:
    return f"exploration:{identity}"


def publication_of(identity: ColumnElement[int]) -> ColumnElement[str]:
    """The same of a column, in a query."""
    return literal("publication:").concat(cast(identity, Text))


def stream_of(identity: ColumnElement[int]) -> ColumnElement[str]:
    """The same of a column, in a query."""
    return literal(_STREAM).concat(cast(identity, Text))


def create(connection: Connection, resource: str) -> None:
    connection.execute(insert(leases).values(resource=resource))


def create_once(connection: Connection, resource: str) -> None:
    """Create a lease, unless there is one of this resource."""
    connection.execute(postgresql.insert(leases).values(resource=resource).on_conflict_do_nothing())


def revoke(connection: Connection, resource: str) -> None:
    """Take a lease from whoever holds it: no commit under it succeeds any more. Anybody can take it at once."""
    revoked = {"owner": None, "epoch": leases.c.epoch + 1, "expires_at": func.clock_timestamp()}
    connection.execute(update(leases).where(leases.c.resource == resource).values(**revoked, timeline=TIMELINE))
    if resource.startswith(_STREAM):
        notify(connection, FREE_STREAM)


def is_free(seconds: float, *, since: float = 0.0) -> ColumnElement[bool]:
    """Return the condition, for a query, that nobody has held a lease for `since` seconds.

    A clock that was ahead, and set right since, may have written when it ends: a lease that ends far too late is free,
    and for `since` 0 one that was given back. `seconds`: the length of one's own leases.
    """
    now = func.clock_timestamp()
    return or_(
        *([] if since else [leases.c.owner.is_(None)]),
        leases.c.expires_at <= now - timedelta(seconds=since),
        leases.c.expires_at > now + NOBODY_ASKS_FOR * timedelta(seconds=seconds),
    )


def take(
    connection: Connection, resource: str, *, owner: str, seconds: float, among: Among | None = None
) -> Lease | None:
    """Take a lease; None: another owner holds it, or it is not among those that a query wants.

    among: the query, and what it binds; without it any lease will do.
    """
    query, bound = among or (None, dict[str, Any]())
    rows = write(connection, _taking_one(query, seconds), {"wanted": resource, "taker": owner} | bound)
    return next(iter(_taken(rows, owner=owner, seconds=seconds)), None)


@lru_cache(maxsize=16)
def _taking_one(among: Select[str] | None, seconds: float) -> Update:
    wanted = [] if among is None else [leases.c.resource.in_(among)]
    return _taking(leases.c.resource == bindparam("wanted"), *wanted, seconds=seconds, most=1)


def take_several(
    connection: Connection,
    wanted: Select[str],
    *,
    owner: str,
    seconds: float,
    most: int,
    since: float = 0.0,
) -> list[Lease]:
    """Take the leases of resources that nobody has held for `since` seconds, at most so many."""
    statement = _taking(leases.c.resource.in_(wanted), seconds=seconds, most=most, since=since)
    rows = connection.execute(statement, {"taker": owner})
    return _taken(rows, owner=owner, seconds=seconds)


def _taking(*wanted: ColumnElement[bool], seconds: float, most: int, since: float = 0.0) -> Update:
    """Return what takes wanted leases for the owner `taker`.

    It does not wait for an owner that is at the lease's row, renewing it or in a commit: the owner may hang. It takes
    none on a schema on which this version of the service can't run.
    """
    now = func.clock_timestamp()
    free = (
        select(leases.c.resource, leases.c.owner, leases.c.expires_at, leases.c.timeline)
        .where(*wanted, is_free(seconds, since=since), is_served())
        .limit(most)
        .with_for_update(skip_locked=True)
        .cte("before")
    )
    length = timedelta(seconds=seconds)
    return (
        update(leases)
        .where(leases.c.resource == free.c.resource)
        .values(owner=bindparam("taker"), epoch=leases.c.epoch + 1, expires_at=now + length, taken_at=now)
        .returning(
            leases.c.resource,
            leases.c.epoch,
            free.c.owner,
            func.extract("epoch", now - free.c.expires_at).label("over"),
            (free.c.timeline != TIMELINE).label("elsewhere"),
        )
    )


def _taken(rows: Iterable[Row[Any]], *, owner: str, seconds: float) -> list[Lease]:
    taken = []
    for row in rows:
        given_back = row.owner is None and not row.elsewhere  # else its newest owner may be lost with a failover
        abandoned = None if given_back or row.owner == owner else float(row.over) + seconds
        taken.append(Lease(resource=row.resource, owner=owner, epoch=row.epoch, abandoned=abandoned))
    return taken


def appear(connection: Connection, owner: str, *, primary: int, seconds: float) -> Lease:
    """Take the lease by which others know that this worker numbers streams of a primary; delete those of the dead."""
    long_ago = func.clock_timestamp() - NOBODY_ASKS_FOR * timedelta(seconds=seconds)
    connection.execute(delete(leases).where(_is_of_sealers(primary), leases.c.expires_at < long_ago))
    held = {"owner": owner, "expires_at": func.clock_timestamp() + timedelta(seconds=seconds)}
    query = (
        postgresql.insert(leases)
        .values(resource=sealer(owner, primary), epoch=1, **held)
        .on_conflict_do_update(index_elements=[leases.c.resource], set_=held | {"epoch": leases.c.epoch + 1})
        .returning(leases.c.epoch)
    )
    return Lease(resource=sealer(owner, primary), owner=owner, epoch=connection.execute(query).scalar_one())


def sealers(seconds: float, *, primary: int) -> ColumnElement[int]:
    """How many workers number streams of a primary, in a query; `seconds`: as in `is_free`."""
    return select(func.count()).where(_is_of_sealers(primary), not_(is_free(seconds))).scalar_subquery()


def _is_of_sealers(primary: int) -> ColumnElement[bool]:
    return leases.c.resource.startswith(_sealers_of(primary))


def renew(connection: Connection, held: Iterable[Lease], *, seconds: float) -> list[Lease]:
    """Holds them for `seconds` from now on; which of them are held no more.

    A commit under way holds its lease's row: that one is passed over, so that a slow commit costs no other lease.
    """
    held = list(held)
    lost = {tuple(row) for row in connection.execute(_RENEW, _each(held) | {"length": timedelta(seconds=seconds)})}
    return [lease for lease in held if (lease.resource, lease.owner, lease.epoch) in lost]


# However many they are, it is one statement, and always the same.
_EACH = """
WITH asked AS (
  SELECT resource, owner, CAST(epoch AS bigint) FROM unnest(
    string_to_array(:resources, chr(10)), string_to_array(:owners, chr(10)), string_to_array(:epochs, chr(10)))
  AS asked(resource, owner, epoch))
"""
_RENEW = text(f"""
{_EACH}, unlocked AS (
  SELECT asked.* FROM leases JOIN asked USING (resource) FOR UPDATE OF leases SKIP LOCKED),
renewed AS (
  UPDATE leases SET expires_at = clock_timestamp() + :length FROM unlocked
  WHERE leases.resource = unlocked.resource AND leases.owner = unlocked.owner AND leases.epoch = unlocked.epoch
  AND expires_at > clock_timestamp()
  RETURNING unlocked.*)
SELECT * FROM unlocked EXCEPT SELECT * FROM renewed
UNION ALL
SELECT * FROM asked WHERE NOT EXISTS (SELECT FROM leases WHERE leases.resource = asked.resource)
""")  # noqa: S608 - of constants
_RELEASE = text(f"""
{_EACH}
UPDATE leases SET owner = NULL, expires_at = clock_timestamp(), timeline = {TIMELINE} FROM asked
WHERE leases.resource = asked.resource AND leases.owner = asked.owner AND leases.epoch = asked.epoch
AND expires_at > clock_timestamp()
""")  # noqa: S608 - of constants


def _each(held: Sequence[Lease]) -> dict[str, Any]:
    """Return what `_EACH` binds: texts of lines, since the driver takes 3 ms to write 1,000 leases as arrays."""
    return {
        "resources": "\n".join([lease.resource for lease in held]),
        "owners": "\n".join([lease.owner for lease in held]),
        "epochs": "\n".join([str(lease.epoch) for lease in held]),
    }


def keep(connection: Connection, lease: Lease, *, seconds: float) -> bool:
    """Renew one lease for `seconds` from now on; return whether it was still held. This is a write in any case."""
    renewed = connection.execute(
        update(leases)
        .where(*is_held(lease.resource, lease.owner, lease.epoch))
        .values(expires_at=func.clock_timestamp() + timedelta(seconds=seconds))
    )
    return bool(renewed.rowcount)


def check(connection: Connection, lease: Lease) -> None:
    """Holds the lease until the transaction ends; first thing in every commit.

    Raises:
        LeaseLost: it ran out or is another's.
    """
    mine = {"resource": lease.resource, "owner": lease.owner, "epoch": lease.epoch}
    if not read_together(connection, (_checking(), mine))[0]:
        raise LeaseLost(lease.resource)


@cache
def _checking() -> Select[tuple[int]]:
    mine = is_held(bindparam("resource"), bindparam("owner"), bindparam("epoch"))
    return select(leases.c.epoch).where(*mine).with_for_update()


def release(connection: Connection, lease: Lease) -> None:
    release_several(connection, [lease])


def release_several(connection: Connection, held: Sequence[Lease]) -> None:
    """Give leases back, so that anybody can take them at once."""
    write(connection, _RELEASE, _each(held))
    if any(lease.resource.startswith(_STREAM) for lease in held):
        notify(connection, FREE_STREAM)


def abandon(connection: Connection, lease: Lease, *, abandoned: float, seconds: float) -> None:
    """End a lease as if its owner had died `abandoned` seconds ago: its next owner is told so (`Lease`).

    seconds: the length of leases.
    """
    ended = func.clock_timestamp() - timedelta(seconds=max(0.0, abandoned - seconds))
    mine = is_held(lease.resource, lease.owner, lease.epoch)
    connection.execute(update(leases).where(*mine).values(owner=_NOBODY, expires_at=ended))


def is_held(resource: Any, owner: Any, epoch: Any) -> tuple[ColumnElement[bool], ...]:
    """Return the condition that a lease is still this one and runs. After a failover another's may have its epoch."""
    return (
        leases.c.resource == resource,
        leases.c.owner == owner,
        leases.c.epoch == epoch,
        leases.c.expires_at > func.clock_timestamp(),
    )
