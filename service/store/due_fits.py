"""Fits whose records are all there: since when they run, or wait for a free worker.

The time at which a fit ends depends on its records, so nobody sees it: a step that waits for its tick is shown as one
that still runs. The time at which a fit began depends on how long other fits took. The promise does not cover such
times (docs/privacy.md), and people see this one in whole minutes.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

from sqlalchemy import ARRAY, BigInteger, Connection, Select, and_, bindparam, case, func, not_, or_, select

from service.store import features, labels, leases
from service.store.tables import entries, parked, publications, shown, streams, waits
from service.store.tables import leases as leased


@dataclass(frozen=True, kw_only=True)
class DueFit:
    """`since`: when a worker took the fit, or, while it waits for one, when its last record was numbered; in UTC.

    `reason`: why no worker takes it that met it; None: it waits for a free one.
    """

    state: Literal["fitting", "waiting"]
    since: datetime
    reason: str | None = None


DUE_AT = func.greatest(
    select(entries.c.numbered_at)
    .where(entries.c.stream_id == publications.c.stream_id, entries.c.start < shown.c.due)
    .order_by(entries.c.start.desc())
    .limit(1)
    .scalar_subquery(),
    features.published_at(),
)
"""When the last record was numbered that a publication's next visible release needs, and its features were there."""

IS_DUE = and_(
    publications.c.state == "running",
    shown.c.due <= streams.c.records,
    features.ready(),
    streams.c.distrusted.is_(None),
    streams.c.halted.is_(None),
    # A step that is due where the last one was taken waits for labels.
    or_(publications.c.due > publications.c.start + publications.c.position, not_(labels.any_open())),
)
OF_THIS_PUBLICATION = leased.c.resource == leases.publication_of(publications.c.id)
_WAITS_FOR_ITS_TICK = select(parked.c.publication_id).where(parked.c.publication_id == publications.c.id).exists()
IS_FITTING = and_(
    or_(_WAITS_FOR_ITS_TICK, and_(leased.c.owner.is_not(None), leased.c.expires_at > func.clock_timestamp())),
    leased.c.taken_at >= DUE_AT,
)


@cache
def _due() -> Select[Any]:
    """Return the query, built once."""
    since = case((IS_FITTING, leased.c.taken_at), else_=DUE_AT)
    return (
        select(
            publications.c.id,
            case((IS_FITTING, "fitting"), else_="waiting"),
            func.date_trunc("minute", since),
            case((not_(IS_FITTING), waits.c.reason)),
        )
        .join(streams, streams.c.id == publications.c.stream_id)
        .join(shown, shown.c.publication_id == publications.c.id)
        .join(leased, OF_THIS_PUBLICATION)
        .outerjoin(waits, and_(waits.c.publication_id == publications.c.id, waits.c.due == shown.c.due))
        .where(publications.c.id == func.any(bindparam("among", type_=ARRAY(BigInteger))), IS_DUE, since.is_not(None))
    )


def due_fits(connection: Connection, among: Collection[int]) -> dict[int, DueFit]:
    """Return the fits that are due, by their publication's id; those whose time is not known are left out."""
    rows = connection.execute(_due(), {"among": list(among)})
    return {row[0]: DueFit(state=row[1], since=row[2].astimezone(UTC), reason=row[3]) for row in rows}
