"""Who may work on a stream or a publication now: one owner at a time, on PostgreSQL's clock.

A lease that runs out can be taken by another; taking it raises its epoch. Every commit checks the epoch, so that an
owner that slept through its lease can't commit what it still had in hand.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Text,
    cast,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from service.store.database import TIMELINE
from service.store.tables import leases

NOBODY_ASKS_FOR = 10
"""So many times the length of one's own leases: others may be set to other lengths, but not to such."""


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
    return f"stream:{identity}"


def publication(identity: int) -> str:
    return f"publication:{identity}"


def queries(publication: int) -> str:
    """Of the one process that compares linear queries of a publication with its records."""
    return f"queries:{publication}"


def exploration(identity: int) -> str:
    return f"exploration:{identity}"


def publication_of(identity: ColumnElement[int]) -> ColumnElement[str]:
    """The same of a column, in a query."""
    return literal("publication:").concat(cast(identity, Text))


def create(connection: Connection, resource: str) -> None:
    connection.execute(insert(leases).values(resource=resource))


def take(connection: Connection, resource: str, *, owner: str, seconds: float) -> Lease | None:
    """The lease, if nobody else holds it; one that ends far too late was taken before the clock was set back.

    Who is at its row, renewing it or in the middle of a commit, is not waited for: he may hang.
    """
    now = func.clock_timestamp()
    free = (
        select(leases.c.resource, leases.c.owner, leases.c.expires_at, leases.c.timeline)
        .where(
            leases.c.resource == resource,
            or_(
                leases.c.expires_at <= now,
                leases.c.expires_at > now + NOBODY_ASKS_FOR * timedelta(seconds=seconds),
            ),
        )
        .with_for_update(skip_locked=True)
        .cte("before")
    )
    row = connection.execute(
        update(leases)
        .where(leases.c.resource == free.c.resource)
        .values(owner=owner, epoch=leases.c.epoch + 1, expires_at=now + timedelta(seconds=seconds), taken_at=now)
        .returning(
            leases.c.epoch,
            free.c.owner,
            func.extract("epoch", now - free.c.expires_at).label("over"),
            (free.c.timeline != TIMELINE).label("elsewhere"),
        )
    ).one_or_none()
    if row is None:
        return None
    given_back = row.owner is None and not row.elsewhere  # else its newest owner may be lost with a failover
    abandoned = None if given_back or row.owner == owner else float(row.over) + seconds
    return Lease(resource=resource, owner=owner, epoch=row.epoch, abandoned=abandoned)


def renew(connection: Connection, held: Iterable[Lease], *, seconds: float) -> list[Lease]:
    """Holds them for `seconds` from now on; which of them are held no more.

    A commit under way holds its lease's row: that one is passed over, so that a slow commit costs no other lease.
    """
    held = list(held)
    rows = select(leases.c.resource).where(leases.c.resource.in_([lease.resource for lease in held]))
    free = set(connection.scalars(rows.with_for_update(skip_locked=True)))
    asked = {(lease.resource, lease.owner, lease.epoch): lease for lease in held if lease.resource in free}
    whose = tuple_(leases.c.resource, leases.c.owner, leases.c.epoch)
    renewed = connection.execute(
        update(leases)
        .where(whose.in_(asked), leases.c.expires_at > func.clock_timestamp())
        .values(expires_at=func.clock_timestamp() + timedelta(seconds=seconds))
        .returning(leases.c.resource, leases.c.owner, leases.c.epoch)
    )
    for row in renewed:
        del asked[row.resource, row.owner, row.epoch]
    return list(asked.values())


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
    query = select(leases.c.epoch).where(*is_held(lease.resource, lease.owner, lease.epoch)).with_for_update()
    if connection.execute(query).one_or_none() is None:
        raise LeaseLost(lease.resource)


def release(connection: Connection, lease: Lease) -> None:
    connection.execute(
        update(leases)
        .where(*is_held(lease.resource, lease.owner, lease.epoch))
        .values(owner=None, expires_at=func.clock_timestamp(), timeline=TIMELINE)
    )


def is_held(resource: Any, owner: Any, epoch: Any) -> tuple[ColumnElement[bool], ...]:
    """That it is still this one, and has not run out; in a query. After a failover another's may have its epoch."""
    return (
        leases.c.resource == resource,
        leases.c.owner == owner,
        leases.c.epoch == epoch,
        leases.c.expires_at > func.clock_timestamp(),
    )
