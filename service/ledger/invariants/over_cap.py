"""No record was charged more by a publication than that may ever charge, nor is more reserved than its stream holds."""

from fractions import Fraction
from itertools import groupby
from operator import attrgetter

from sqlalchemy import Connection, func, select

from service.ledger import reservations
from service.privacy.currency import capacity
from service.store import streams
from service.store.publications import SLOTS, UNIT_FACTOR
from service.store.tables import publications, shown, spent
from service.store.tables import streams as streams_table


def violations(connection: Connection) -> list[str]:
    """All streams are asked for together: there may be many."""
    query = select(spent.c.publication_id, func.max(spent.c.amount).label("amount")).group_by(spent.c.publication_id)
    highest = {row.publication_id: Fraction(row.amount) for row in connection.execute(query)}
    known = {each.id: each for each in streams.every(connection)}
    names = ("id", "name", "stream_id", "start", "epsilon", "delta", "worst_amount")
    rows = connection.execute(
        select(
            *(publications.c[name] for name in names),
            shown.c.state.label("visible_state"),
            SLOTS.label("slots"),
            UNIT_FACTOR,
            streams_table.c.accounting,
        )
        .join(shown, shown.c.publication_id == publications.c.id)
        .join(streams_table, streams_table.c.id == publications.c.stream_id)
        .order_by(publications.c.stream_id)
    ).all()
    of_each = {stream: list(of_it) for stream, of_it in groupby(rows, attrgetter("stream_id"))}
    violations = [
        f"publication {each.name} of stream {known[each.stream_id].name}"
        for each in rows
        if highest.get(each.id, 0) * Fraction(each.unit_factor or 1) > capacity(each.epsilon, each.delta)[1]
    ]
    for stream, reserved in reservations.reserved_of_each(connection, of_each).items():
        if not reserved.within(known[stream].budget.limit):
            violations.append(f"stream {known[stream].name}")
    return violations
