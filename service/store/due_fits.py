"""Fits whose records are all there: since when they are due.

Statement. All that is shown of a fit before its release appears follows from public facts: when its last record was
numbered, when its features were there, whether its publication runs as far as is confirmed, and the clock. When a
worker takes a fit depends on how long other fits took, and when it ends on its own records: neither is shown, on any
stream. A reason why no worker takes it is shown from the tick on at which a release would appear that was ready then.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    func,
    not_,
    or_,
    select,
)

from service.store import features, labels
from service.store.tables import entries, publications, shown, streams, waits


@dataclass(frozen=True, kw_only=True)
class DueFit:
    """`since`: when all was there that the fit needs, in UTC. `reason`: why no worker takes it; None: nobody said."""

    since: datetime
    reason: str | None = None


NOW = func.statement_timestamp()


def past(moment: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a time, or now where a clock that was ahead wrote one that has not come: so no age is negative."""
    return case((moment > NOW, NOW), else_=moment)


DUE_AT = func.coalesce(
    func.greatest(
        select(past(entries.c.numbered_at))
        .where(entries.c.stream_id == publications.c.stream_id, entries.c.start < shown.c.due)
        .order_by(entries.c.start.desc())
        .limit(1)
        .scalar_subquery(),
        past(features.published_at()),
    ),
    past(publications.c.created_at),
)
"""When the last record was numbered that a publication's next visible release needs, and its features were there.

Once those rows are forgotten (`store.retention`), the time at which the publication was made.
"""

IS_DUE = and_(
    shown.c.state == "running",
    shown.c.due <= streams.c.records,
    features.ready(),
    streams.c.distrusted.is_(None),
    streams.c.halted.is_(None),
    # A step that is due where the last one was taken waits for labels.
    or_(shown.c.due > publications.c.start + shown.c.position, not_(labels.any_open())),
)


@cache
def _due() -> Select[Any]:
    """Return the query, built once."""
    is_shown = or_(waits.c.shown_at.is_(None), waits.c.shown_at <= func.clock_timestamp())
    return (
        select(publications.c.id, func.date_trunc("minute", DUE_AT), case((is_shown, waits.c.reason)))
        .join(streams, streams.c.id == publications.c.stream_id)
        .join(shown, shown.c.publication_id == publications.c.id)
        .outerjoin(waits, and_(waits.c.publication_id == publications.c.id, waits.c.due == shown.c.due))
        .where(publications.c.id == func.any(bindparam("among", type_=ARRAY(BigInteger))), IS_DUE)
    )


def due_fits(connection: Connection, among: Collection[int]) -> dict[int, DueFit]:
    """Return the fits that are due, by their publication's id."""
    rows = connection.execute(_due(), {"among": list(among)})
    return {row[0]: DueFit(since=row[1].astimezone(UTC), reason=row[2]) for row in rows}
