"""Adds up what every record has spent, kept up with each charge, so that no answer walks the ledger.

All of it follows from the charges; `perennial ledger verify` adds them up anew and compares.

| table | of | what |
|---|---|---|
| `spent` | a publication | the amount each range of records was charged, exactly, in its currency |
| `outlines` | a stream | the most that a record of each stretch has spent over all; the largest is the worst record's |

Where a stream sets slots aside, all of it is of one kind of slots: ranges of charges cover both, and only the slots of
the publication's kind pay. `evaluation_outlines` is the outline of the evaluation slots. Sums over both are the larger
of the two, since a slot is of one kind alone.

Amounts are added exactly (`fractions.Fraction`): a charge is a binary double, a budget a decimal. Rounding happens only
where a sum is shown, and then up. A charge touches the rows of the records it charges and no others. Spending never
falls, so the outline of what a charge did not touch needs no second look.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Delete,
    Select,
    Table,
    bindparam,
    delete,
    func,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import Insert

from service.ledger import charged_rows
from service.ledger.charged_rows import Charged
from service.ledger.errors import OverBudget
from service.ledger.exact_decimals import decimal, decimals
from service.ledger.reserving import Charging, reserves_wholly
from service.privacy.accounting import budget, composition
from service.privacy.accounting.charges_by_record import ChargesByRecord
from service.privacy.accounting.composition import Component, PrivacyLoss, Slots
from service.store.publications import Publication
from service.store.rows import Rows
from service.store.streams import Stream
from service.store.tables import evaluation_outlines, outlines, spent

_ZERO = Fraction(0)
MAX_RANGES = 512  # of a stream's outline, and of what one answer holds exactly

Stretch = tuple[int, int, PrivacyLoss]
"""Records [start, stop) and what each of them has spent, or the most that any of them has."""
NewRange = tuple[int, int, Fraction]
"""Records [start, stop), and what each of them is charged."""
Query = tuple[Select[Any], dict[str, Any]]
"""And what it binds."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The changes of a charge on the rows of its publication and of its stream, and what is to be written elsewhere."""

    worst_record: int | None
    worst_amount: Decimal
    grain: int
    writes: list[tuple[Delete | Insert, list[dict[str, Any]]]]


def needed(stream: Stream, slots: Slots, new: Sequence[NewRange]) -> tuple[Query, Query]:
    """Return what is to be read to count these on such slots: what was spent there, and how it is outlined."""
    start, stop = _extent(new)
    low, high, _ = _redrawn(stream, slots, start, stop)
    # Of both the neighbours too, so that equal ones become one again.
    return (
        (charged_rows.ROWS, {"stream": stream.id, "start": start - 1, "stop": stop + 1, "limit": None}),
        (_OUTLINE[slots], {"stream": stream.id, "low": low, "high": high}),
    )


def count(
    stream: Stream,
    publication: Publication,
    most: Fraction,
    new: Sequence[NewRange],
    rows: Sequence[Any],
    outline: Sequence[Any],
) -> Counted:
    """Counts charges of one publication; rows and outline: what was `needed`, read under the stream's lock.

    The caller still holds it, and writes down what is counted.

    Raises:
        OverBudget: a record would pay more than `most` in all.
    """
    start, stop = _extent(new)
    old = [(row.start, row.stop, row.amount) for row in rows if row.publication_id == publication.id]
    profile = ChargesByRecord.of((low, high, Fraction(amount)) for low, high, amount in old)
    for low, high, amount in new:
        profile = profile.add(low, high, amount)
    ranges = [(low, high, amount) for low, high, amount in profile.ranges() if high is not None and amount]
    record, _, highest = max(ranges, key=itemgetter(2))
    if highest > most:
        raise OverBudget("a record would be charged more than the cap of this publication")
    writes = _writes(spent, publication.id, old, [(low, high, decimal(amount)) for low, high, amount in ranges])
    mine = component_of(publication)
    charged = [each for each in _of_kind(charged_rows.charged(rows), mine.slots) if each[0].id != mine.id]
    charged += [(mine, *each) for each in ranges]
    grain, drawn = _draw(stream, mine.slots, outline, _over(charged, start, stop), start, stop)
    worse = highest > publication.worst_amount
    return Counted(
        worst_record=record if worse else publication.worst_record,
        worst_amount=decimal(highest) if worse else publication.worst_amount,
        grain=grain,
        writes=writes + drawn,
    )


def exact(
    connection: Connection, stream: int, start: int, stop: int, slots: Slots | None = None, *, most: int = MAX_RANGES
) -> list[Stretch] | None:
    """Return what each record of [start, stop) has spent, as far as it is confirmed; None: over `most` rows.

    slots: of this kind; None: the larger of both.

    Charges that are committed and not confirmed are taken off again: few charges, since the next ones wait for that.
    """
    rows = charged_rows.rows(connection, stream, start, stop, limit=most + 1)
    if len(rows) > most:
        return None
    charged = charged_rows.charged(rows) + charged_rows.unconfirmed(connection, stream, start, stop)
    return _either(slots, lambda kind: _over(_of_kind(charged, kind), start, stop))


def of_record(
    connection: Connection, stream: int, record: int, slots: Slots
) -> tuple[list[tuple[int, int, Fraction]], PrivacyLoss]:
    """Return what each publication charged a record of such a slot, as changes there; and what it has spent, of what is
    confirmed.
    """
    charged = _of_kind(charged_rows.charged(charged_rows.rows(connection, stream, record, record + 1)), slots)
    changes = sorted((record, account_.id, amount) for account_, _, _, amount in charged)
    charged += _of_kind(charged_rows.unconfirmed(connection, stream, record, record + 1), slots)
    ((_, _, spent),) = _over(charged, record, record + 1)
    return changes, spent


@dataclass(frozen=True, kw_only=True)
class Lost:
    """So many slots of a unit that count, all before `before`; nothing that is stored says which they are."""

    slots: int = 0
    before: int = 0


def of_unit(
    connection: Connection,
    stream: int,
    slots: Sequence[int],
    most: int,
    kind: Slots = Slots.TRAINING,
    lost: Lost = Lost(),
) -> PrivacyLoss:
    """Return what a unit with these counting slots, at most `most`, has lost so far (`unit_ledger`), as confirmed.

    kind: whether evaluations read the unit, or all other publications. lost: slots of it beside `slots`. With any, the
    answer is a bound: each publication is taken to have charged them as much as any so many slots before `lost.before`.
    """
    if not slots:
        return PrivacyLoss()
    start, stop = 0 if lost.slots else slots[0], max(slots[-1] + 1, lost.before)
    charged = charged_rows.charged(charged_rows.rows(connection, stream, start, stop))
    charged += charged_rows.unconfirmed(connection, stream, start, stop)
    ranges: dict[Component, list[NewRange]] = {}
    for component, low, high, amount in _of_kind(charged, kind):
        ranges.setdefault(component, []).append((low, high, amount))
    return sum((each.loss(_charged(mine, slots, lost) / most) for each, mine in ranges.items()), start=PrivacyLoss())


def _charged(ranges: Sequence[NewRange], slots: Sequence[int], lost: Lost) -> Fraction:
    """Return what these slots were charged together, and the most that the lost ones can have been."""
    amount = sum((charge * (bisect_left(slots, high) - bisect_left(slots, low)) for low, high, charge in ranges), _ZERO)
    before = [(low, min(high, lost.before), charge) for low, high, charge in ranges if low < lost.before]
    left = lost.slots
    for low, high, charge in sorted(ChargesByRecord.of(before).ranges(), key=itemgetter(2), reverse=True):
        if high is not None:  # nothing is charged after the last one
            amount += charge * min(left, high - low)
            left -= min(left, high - low)
    return amount


def outlined(rows: Rows, stream: int, start: int, stop: int, slots: Slots | None = None) -> list[Stretch]:
    """The most that any record of each stretch of [start, stop) has spent; they cover it, at most `MAX_RANGES`.

    It counts what is committed: a bound on what is confirmed. slots: of this kind; None: the larger of both, which may
    be twice as many.
    """
    return _either(slots, lambda kind: _outlined(rows, stream, start, stop, kind))


def _outlined(rows: Rows, stream: int, start: int, stop: int, slots: Slots) -> list[Stretch]:
    stretches: list[Stretch] = []
    position = start
    for row in rows.of(_OUTLINES[slots], OUTLINES[slots].c.stream_id, stream):
        if row.start >= stop or row.stop <= start:
            continue
        low, high = max(start, row.start), min(stop, row.stop)
        if position < low:
            stretches.append((position, low, PrivacyLoss()))
        stretches.append((low, high, PrivacyLoss.of(row.epsilon, row.delta, row.rho)))
        position = high
    if position < stop:
        stretches.append((position, stop, PrivacyLoss()))
    return stretches


OUTLINES = {Slots.TRAINING: outlines, Slots.EVALUATION: evaluation_outlines}
_OUTLINES = {slots: select(table).order_by(table.c.start) for slots, table in OUTLINES.items()}


def component_of(publication: Charging) -> Component:
    return budget.component(
        publication.accounting,
        identity=publication.id,
        epsilon=publication.epsilon,
        delta=publication.delta,
        currency=publication.kind,
        start=publication.start,
        running=reserves_wholly(publication),
        unit_factor=publication.unit_factor,
        slots=publication.slots,
    )


def changes(rows: Rows, identities: Sequence[int]) -> Iterator[tuple[int, int, Fraction]]:
    """Where what these publications have charged changes, by how much, in order; however many, they take no memory."""
    for row in rows.of_each(_CHANGES, _both.c.publication_id, identities, order="record"):
        yield row.record, row.publication_id, Fraction(row.amount)


_both = (
    select(spent.c.start.label("record"), spent.c.publication_id, spent.c.amount)
    .union_all(select(spent.c.stop, spent.c.publication_id, -spent.c.amount))
    .subquery()
)
_CHANGES = (
    select(_both.c.record, _both.c.publication_id, func.sum(_both.c.amount).label("amount"))
    .group_by(_both.c.record, _both.c.publication_id)
    .order_by(_both.c.record)
)


def _of_kind(charged: Sequence[Charged], slots: Slots) -> list[Charged]:
    return [each for each in charged if each[0].slots is slots]


def _either(slots: Slots | None, stretches_of: Callable[[Slots], list[Stretch]]) -> list[Stretch]:
    """Return what is of one kind of slots; None: the larger of both."""
    if slots is not None:
        return stretches_of(slots)
    training, evaluated = stretches_of(Slots.TRAINING), stretches_of(Slots.EVALUATION)
    if all(loss == PrivacyLoss() for *_, loss in evaluated):
        return training
    return composition.pointwise_max(training, evaluated)


def _over(charged: Sequence[Charged], start: int, stop: int) -> list[Stretch]:
    """Return what every record of [start, stop) has spent, from ranges that hold any of it."""
    components = {each[0].id: each[0] for each in charged}
    if len(components) == 1 and all(amount > 0 for *_, amount in charged):  # nothing to add up
        return _alone(charged, start, stop)
    changes: dict[tuple[int, int], Fraction] = {}
    for account_, low, high, amount in charged:
        for where, change in (((max(start, low), account_.id), amount), ((min(stop, high), account_.id), -amount)):
            changes[where] = changes.get(where, Fraction(0)) + change
    ranges = composition.add_up(components.values(), ((*where, changes[where]) for where in sorted(changes)))
    return [
        (max(start, each.start), stop if each.end is None else min(stop, each.end), each.spent)
        for each in ranges
        if each.start < stop and (each.end is None or each.end > start)
    ]


def _alone(charged: Sequence[Charged], start: int, stop: int) -> list[Stretch]:
    losses: dict[Fraction, PrivacyLoss] = {}
    stretches: list[Stretch] = []
    position = start
    for account_, low, high, amount in sorted(charged, key=itemgetter(1)):
        if amount not in losses:
            losses[amount] = account_.loss(amount)
        if position < low:
            stretches.append((position, low, PrivacyLoss()))
        position = min(stop, high)
        stretches.append((max(start, low), position, losses[amount]))
    if position < stop:
        stretches.append((position, stop, PrivacyLoss()))
    return stretches


def grain_to(record: int, grain: int) -> int:
    """The grain of an outline that ends at a record: at least so much, doubled until there are few enough stretches."""
    while record > grain * MAX_RANGES:
        grain *= 2
    return grain


_OUTLINE = {
    slots: select(*(table.c[name] for name in ("start", "stop", "epsilon", "delta", "rho"))).where(
        table.c.stream_id == bindparam("stream"),
        table.c.start <= bindparam("high", type_=BigInteger),
        table.c.stop >= bindparam("low", type_=BigInteger),
    )
    for slots, table in OUTLINES.items()
}


def _extent(new: Sequence[NewRange]) -> tuple[int, int]:
    return min(each[0] for each in new), max(each[1] for each in new)


def _redrawn(stream: Stream, slots: Slots, start: int, stop: int) -> tuple[int, int, int]:
    """How much of a stream's outline a charge of [start, stop) can change: from where to where, and its grain then."""
    grain = grain_to(stop, stream.grain_of(slots))
    if grain != stream.grain_of(slots):  # all of it is drawn anew, coarser
        return 0, max(-(-stop // grain) * grain, stream.records), grain
    return start // grain * grain, -(-stop // grain) * grain, grain


def _draw(
    stream: Stream, slots: Slots, outline: Sequence[Any], now: Sequence[Stretch], start: int, stop: int
) -> tuple[int, list[tuple[Delete | Insert, list[dict[str, Any]]]]]:
    """Raises the stream's outline to what records of [start, stop) have spent now: its grain, and what to write."""
    *_, grain = _redrawn(stream, slots, start, stop)
    old = [tuple(row) for row in outline]
    before = [(first, last, PrivacyLoss.of(*loss)) for first, last, *loss in old]
    drawn = composition.outline([*before, *now], grain)
    new = [(first, last, *decimals(loss)) for first, last, loss in drawn]
    return grain, _writes(OUTLINES[slots], stream.id, old, new)


def _writes(
    table: Table, owner: int, old: Sequence[tuple[Any, ...]], new: Sequence[tuple[Any, ...]]
) -> list[tuple[Delete | Insert, list[dict[str, Any]]]]:
    """To put ranges (start, …) in the place of others; what stays the same is not written again."""
    remove, put = _STATEMENTS[table]
    names = [column.name for column in table.c]
    gone = {each[0] for each in old} - {each[0] for each in new}
    come = set(new) - set(old)
    writes: list[tuple[Delete | Insert, list[dict[str, Any]]]] = []
    if gone:
        writes.append((remove, [{"owner": owner, "at": each} for each in sorted(gone)]))
    if come:
        writes.append((put, [dict(zip(names, (owner, *each), strict=True)) for each in sorted(come)]))
    return writes


def _statements(table: Table) -> tuple[Delete, Insert]:
    owner, *others = table.c
    put = postgresql.insert(table)
    changed = {column.name: put.excluded[column.name] for column in others if column.name != "start"}
    return (
        delete(table).where(owner == bindparam("owner"), table.c.start == bindparam("at")),
        put.on_conflict_do_update(index_elements=[owner, table.c.start], set_=changed),
    )


_STATEMENTS = {table: _statements(table) for table in (spent, *OUTLINES.values())}
