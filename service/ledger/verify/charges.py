"""Charges: their chain, their sums beside those that publishing counted, and the releases that they paid for."""

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, select

from service.ledger import spending
from service.privacy.currency import Currency, capacity
from service.store import charges as stored
from service.store import tables
from service.store.publications import Publication
from service.store.rows import Rows
from service.store.streams import Stream


def chain(rows: Rows, stream: Stream) -> Iterator[str]:
    """Check that every charge of a stream is as written, and none is missing. It walks all of them in little memory."""
    previous = None
    number = 0
    for number, charge in enumerate(stored.walk(rows, stream.id), 1):
        where = f"stream {stream.name}, charge {charge['id']}"
        if charge["id"] != number:
            yield f"{where}: charge {number} is missing before it"
            return
        if not stored.intact(charge):
            yield f"{where}: its hash is not that of its content"
        if charge["previous_hash"] != previous:
            yield f"{where}: its previous_hash is not the hash of the charge before"
        previous = charge["hash"]
    if (number, previous) != (stream.charges, stream.head):
        yield f"stream {stream.name}, charge {stream.charges}: it was the newest one, and is missing or another"
    for row in rows.of(_ELSEWHERE, tables.charges.c.stream_id, stream.id):
        # Not by name: who sees this stream may not see that one.
        yield f"stream {stream.name}: the publication with id {row.id} is charged on it, which is another stream's"


def sums(rows: Rows, publication: Publication) -> Iterator[str]:
    """Adds up a publication's charges anew, from record to record, beside what publishing counted."""
    kind, cap = capacity(publication.epsilon, publication.delta)
    if kind != publication.kind:
        yield f"publication {publication.name}: its kind is not that of its delta"
        return
    privacy = publication.configuration["privacy"]
    if (Decimal(str(privacy["epsilon"])), Decimal(str(privacy["delta"]))) != (publication.epsilon, publication.delta):
        yield f"publication {publication.name}: its configuration is of another guarantee than is reserved for it"
    wrong = next(rows.of(_WRONG[kind], tables.charges.c.publication_id, publication.id), None)
    if wrong is not None:
        yield f"publication {publication.name}, charge {wrong.id}: it is not in the publication's currency"
        return
    walked = rows.of(*_CHANGES[kind], publication.id)
    published = spending.changes(rows, [publication.id])
    level, highest, differs = Fraction(0), Fraction(0), False
    for record, here in groupby(walked, key=attrgetter("record")):
        change = sum((Fraction(row.amount) for row in here), start=Fraction(0))
        level += change
        highest = max(highest, level)
        if change and not differs:
            differs = next(published, None) != (record, publication.id, change)
    if differs or next(published, None) is not None:
        yield f"publication {publication.name}: what is kept as spent is not what its charges add up to"
    if highest != publication.worst_amount:
        yield f"publication {publication.name}: what is told of its worst record is not what its charges add up to"
    if highest * Fraction(publication.unit_factor or 1) > cap:
        yield f"publication {publication.name}: its charges pass its cap"


def have_releases(rows: Rows, publication: Publication) -> Iterator[str]:
    """Every charge with a version has its release."""
    for row in rows.of(_UNRELEASED, tables.charges.c.publication_id, publication.id):
        yield f"publication {publication.name}, version {row.version}: it was charged, but there is no such release"


def _wrong(amount: Column[Any]) -> Select[Any]:
    """Charges that are not in a currency."""
    table = tables.charges
    query: Select[Any] = select(table.c.publication_id, table.c.id)
    return query.where((amount > 0).isnot(True)).order_by(table.c.id)


def _changes(amount: Column[Any]) -> tuple[Select[Any], ColumnElement[int]]:
    """Where charges begin and end, and whose they are."""
    table = tables.charges
    up = select(table.c.publication_id, table.c.start.label("record"), amount.label("amount"))
    both = up.union_all(select(table.c.publication_id, table.c.stop, -amount)).subquery()
    return select(both).order_by(both.c.record), both.c.publication_id


_AMOUNTS = {kind: tables.charges.c.epsilon if kind is Currency.PURE else tables.charges.c.rho for kind in Currency}
_WRONG = {kind: _wrong(amount) for kind, amount in _AMOUNTS.items()}
_CHANGES = {kind: _changes(amount) for kind, amount in _AMOUNTS.items()}
_ELSEWHERE = (
    select(tables.charges.c.stream_id, tables.publications.c.id)
    .join(tables.charges, tables.charges.c.publication_id == tables.publications.c.id)
    .where(tables.publications.c.stream_id != tables.charges.c.stream_id)
    .distinct()
)
_UNRELEASED = (
    select(tables.charges.c.publication_id, tables.charges.c.version)
    .outerjoin(
        tables.releases,
        (tables.releases.c.stream_id == tables.charges.c.stream_id) & (tables.releases.c.charge == tables.charges.c.id),
    )
    .where(tables.charges.c.version.isnot(None), tables.releases.c.charge.is_(None))
    .order_by(tables.charges.c.id)
)
