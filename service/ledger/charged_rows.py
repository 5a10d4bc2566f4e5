"""Rows of `spent` with their components: the charges of some records of a stream, by publication."""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, and_, bindparam, func, select

from service.privacy.accounting import budget
from service.privacy.accounting.budget import Accounting
from service.privacy.accounting.composition import Component, Slots
from service.store.publications import SLOTS, UNIT_FACTOR
from service.store.tables import charges, shown, spent, streams
from service.store.tables import publications as publications_table

Charged = tuple[Component, int, int, Fraction]
"""Records [start, stop), and what the component has charged each of them."""

# Of `spent`, of every publication of a stream, the rows that hold any of [start, stop). The last row that begins at or
# before `start` may reach it; none before that one does.
_ends_before = spent.alias("earlier")
_MINE = (
    select(
        *(publications_table.c[name] for name in ("id", "kind", "epsilon", "delta")),
        shown.c.state,
        publications_table.c.start.label("since"),
        SLOTS.label("slots"),
        UNIT_FACTOR,
        streams.c.accounting,
        select(func.coalesce(func.max(_ends_before.c.start), 0))
        .where(
            _ends_before.c.publication_id == publications_table.c.id,
            _ends_before.c.start <= bindparam("start", type_=BigInteger),
        )
        .scalar_subquery()
        .label("first"),
    )
    .join(streams, streams.c.id == publications_table.c.stream_id)
    .join(shown, shown.c.publication_id == publications_table.c.id)
    .where(publications_table.c.stream_id == bindparam("stream"))
    .subquery("mine")
    .lateral()
)
_OF_COMPONENT = ("kind", "epsilon", "delta", "state", "since", "slots", "unit_factor", "accounting")
ROWS = (
    select(spent, *(_MINE.c[name] for name in _OF_COMPONENT))
    .join(_MINE, and_(spent.c.publication_id == _MINE.c.id, spent.c.start >= _MINE.c.first))
    .where(
        spent.c.start < bindparam("stop", type_=BigInteger),
        spent.c.stop > bindparam("start", type_=BigInteger),
    )
    .limit(bindparam("limit", type_=BigInteger))
)


def rows(connection: Connection, stream: int, start: int, stop: int, *, limit: int | None = None) -> Sequence[Row[Any]]:
    bound = {"stream": stream, "start": start, "stop": stop, "limit": limit}
    return connection.execute(ROWS, bound).all()


# Of a stream, the charges of [start, stop) that are not confirmed yet.
_UNCONFIRMED = (
    select(
        charges.c.publication_id,
        charges.c.start,
        charges.c.stop,
        func.coalesce(charges.c.rho, charges.c.epsilon).label("amount"),
        *(publications_table.c[name] for name in ("kind", "epsilon", "delta")),
        shown.c.state,
        publications_table.c.start.label("since"),
        SLOTS.label("slots"),
        UNIT_FACTOR,
        streams.c.accounting,
    )
    .join(publications_table, publications_table.c.id == charges.c.publication_id)
    .join(streams, streams.c.id == charges.c.stream_id)
    .join(shown, shown.c.publication_id == charges.c.publication_id)
    .where(
        charges.c.stream_id == bindparam("stream"),
        charges.c.id > streams.c.confirmed_charges,
        charges.c.start < bindparam("stop", type_=BigInteger),
        charges.c.stop > bindparam("start", type_=BigInteger),
    )
)


def unconfirmed(connection: Connection, stream: int, start: int, stop: int) -> list[Charged]:
    """Return what takes charges off again that nobody may see yet."""
    rows = connection.execute(_UNCONFIRMED, {"stream": stream, "start": start, "stop": stop}).all()
    return [(account_, low, high, -amount) for account_, low, high, amount in charged(rows)]


def charged(rows: Sequence[Any]) -> list[Charged]:
    components: dict[int, Component] = {}
    for row in rows:
        if row.publication_id not in components:
            components[row.publication_id] = budget.component(
                row.accounting,
                identity=row.publication_id,
                epsilon=row.epsilon,
                delta=row.delta,
                currency=row.kind,
                start=row.since,
                running=row.state == "running" or (row.unit_factor is not None and row.accounting == Accounting.BASIC),
                unit_factor=row.unit_factor,
                slots=Slots(row.slots),
            )
    return [(components[row.publication_id], row.start, row.stop, _fraction(row.amount)) for row in rows]


@lru_cache(maxsize=4096)
def _fraction(amount: Decimal | float) -> Fraction:
    """The same amounts come again and again."""
    return Fraction(amount)
