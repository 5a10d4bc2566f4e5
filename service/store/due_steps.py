"""Which publications can go on: their next step has all the records that it needs."""

from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ARRAY, BigInteger, Connection, Select, bindparam, func, not_, or_, select

from service.store import features, labels, leases, parked
from service.store.database import read_together
from service.store.tables import leases as leased
from service.store.tables import parked as parked_steps
from service.store.tables import publications, streams


class DueStep(NamedTuple):
    """A publication whose next step has all it needs, and what is committed of its clock; `ahead`: steps parked."""

    id: int
    name: str
    stream_id: int
    stream: str
    position: int
    version: int
    ahead: int


def due_steps(connection: Connection, *, but: Collection[int] = (), most: int = 1000) -> list[DueStep]:
    """Running publications whose next step has all it needs, first the one that nobody worked on for longest.

    The next step is the one after those that wait for their tick. A lease that is given back ends at that moment; one
    that is held ends in the future. A publication whose features will never come is due at once: it halts.

    but, most: some publications aside, and so many at most.
    """
    bound = {"but": list(but), "most": most, "steps": parked.MAX_WAITING, "bytes": parked.MAX_BYTES}
    (rows,) = read_together(connection, (_due(), bound))
    return [DueStep(*row) for row in rows]


def untaken(step: DueStep) -> leases.Among:
    """Return the query of a publication's lease that names none once the step is taken, and what it binds."""
    bound = {"publication": step.id, "at": step.position, "after": step.version, "ahead": step.ahead}
    return _untaken(), bound


@cache
def _untaken() -> Select[str]:
    own = publications.c
    ahead = select(func.count()).where(parked_steps.c.publication_id == bindparam("publication")).scalar_subquery()
    return select(leases.publication_of(own.id)).where(
        own.id == bindparam("publication"),
        own.position == bindparam("at"),
        own.version == bindparam("after"),
        ahead == bindparam("ahead"),
    )


@cache
def _due() -> Select[Any]:
    ahead = (
        select(
            parked_steps.c.publication_id,
            func.count().label("steps"),
            func.max(parked_steps.c.following_due).label("due"),
            or_(
                func.bool_or(parked_steps.c.following_due.is_(None)),
                func.count() >= bindparam("steps"),
                func.sum(func.octet_length(parked_steps.c.content)) >= bindparam("bytes"),
            ).label("full"),
        )
        .group_by(parked_steps.c.publication_id)
        .subquery()
    )
    own = publications.c
    columns = own.id, own.name, own.stream_id, streams.c.name.label("stream"), own.position, own.version
    return (
        select(*columns, func.coalesce(ahead.c.steps, 0))
        .join(streams, streams.c.id == publications.c.stream_id)
        .join(leased, leased.c.resource == leases.publication_of(publications.c.id))
        .outerjoin(ahead, ahead.c.publication_id == publications.c.id)
        .where(
            publications.c.state == "running",
            # True of all that follow, and cheap: of most publications nothing is due, and no more is looked up.
            or_(streams.c.records >= publications.c.due, publications.c.features_from.is_not(None)),
            or_(
                (streams.c.records >= func.coalesce(ahead.c.due, publications.c.due)) & features.ready(),
                features.lost(),
            ),
            ahead.c.full.isnot(True),
            # A step that is due where the last one was taken waits for labels.
            or_(publications.c.due > publications.c.start + publications.c.position, not_(labels.any_open())),
            streams.c.halted.is_(None),
            streams.c.distrusted.is_(None),
            publications.c.id != func.all(bindparam("but", type_=ARRAY(BigInteger))),
        )
        .order_by(leased.c.expires_at)
        .limit(bindparam("most", type_=BigInteger))
    )
