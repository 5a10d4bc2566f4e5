"""Who may work on a stream or a publication now: one owner at a time, on PostgreSQL's clock.

A lease that runs out can be taken by another; taking it raises its epoch. Every commit checks the epoch, so that an
owner that slept through its lease can't commit what it still had in hand.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, cast, func, insert, literal, or_, select, tuple_, update

from service.store.tables import leases

NOBODY_ASKS_FOR = 10
"""So many times the length of one's own leases: others may be set to other lengths, but not to such."""


class LeaseLost(Exception):
    """Another owner may be at work: drop what is in hand."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    resource: str
    owner: str
    epoch: int


def stream(identity: int) -> str:
    return f"stream:{identity}"


def publication(identity: int) -> str:
    return f"publication:{identity}"


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
    free = select(leases.c.resource).where(
        leases.c.resource == resource,
        or_(
            leases.c.expires_at <= func.clock_timestamp(),
            leases.c.expires_at > func.clock_timestamp() + NOBODY_ASKS_FOR * timedelta(seconds=seconds),
        ),
    )
    row = connection.execute(
        update(leases)
        .where(leases.c.resource.in_(free.with_for_update(skip_locked=True)))
        .values(owner=owner, epoch=leases.c.epoch + 1, expires_at=func.clock_timestamp() + timedelta(seconds=seconds))
        .returning(leases.c.epoch)
    ).one_or_none()
    return Lease(resource=resource, owner=owner, epoch=row.epoch) if row else None


def renew(connection: Connection, held: Iterable[Lease], *, seconds: float) -> list[Lease]:
    """Holds them for `seconds` from now on; which of them are held no more.

    A commit under way holds its lease's row: that one is passed over, so that a slow commit costs no other lease.
    """
    held = list(held)
    rows = select(leases.c.resource).where(leases.c.resource.in_([lease.resource for lease in held]))
    free = set(connection.scalars(rows.with_for_update(skip_locked=True)))
    asked = {(lease.resource, lease.epoch): lease for lease in held if lease.resource in free}
    renewed = connection.execute(
        update(leases)
        .where(tuple_(leases.c.resource, leases.c.epoch).in_(asked), leases.c.expires_at > func.clock_timestamp())
        .values(expires_at=func.clock_timestamp() + timedelta(seconds=seconds))
        .returning(leases.c.resource, leases.c.epoch)
    )
    for row in renewed:
        del asked[row.resource, row.epoch]
    return list(asked.values())


def check(connection: Connection, lease: Lease) -> None:
    """Holds the lease until the transaction ends; first thing in every commit.

    Raises:
        LeaseLost: it ran out or is another's.
    """
    query = select(leases.c.epoch).where(*is_held(lease.resource, lease.epoch)).with_for_update()
    if connection.execute(query).one_or_none() is None:
        raise LeaseLost(lease.resource)


def release(connection: Connection, lease: Lease) -> None:
    connection.execute(
        update(leases)
        .where(*is_held(lease.resource, lease.epoch))
        .values(owner=None, expires_at=func.clock_timestamp())
    )


def is_held(resource: Any, epoch: Any) -> tuple[ColumnElement[bool], ...]:
    """That it is still this one, and has not run out; in a query."""
    return (
        leases.c.resource == resource,
        leases.c.epoch == epoch,
        leases.c.expires_at > func.clock_timestamp(),
    )
