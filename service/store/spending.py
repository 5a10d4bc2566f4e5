"""What every record has spent and what is reserved on it, kept up with each charge, so that no answer walks the ledger.

All of it follows from the charges; `perennial ledger verify` adds them up anew and compares.

| table | of | what |
|---|---|---|
| `spent` | a publication | the amount each range of records was charged, exactly, in its currency |
| `outlines` | a stream | the most that a record of each stretch has spent over all; the largest is the worst record's |
| `kept` | a stream | what ended publications keep reserved on the worst record from some record on |

Amounts are added exactly (`fractions.Fraction`): a charge is a binary double, a budget a decimal. Rounding happens only
where a sum is shown, and then up. A charge touches the rows of the records it charges and no others. What a record has
spent never falls, so the outline of what a charge did not touch needs no second look.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import Connection, Row, ScalarSelect, Table, and_, delete, func, insert, select, update

from service.privacy import account
from service.privacy.account import Account, Holding, Loss, Range, Tighter
from service.privacy.loss import Kind, capacity
from service.privacy.profile import Profile
from service.store import publications
from service.store.publications import Publication
from service.store.streams import Stream
from service.store.tables import kept, outlines, spent, streams
from service.store.tables import publications as publications_table

MOST_RANGES = 1024  # of a stream's outline, and of what is told at once exactly


class OverBudget(Exception):
    """A charge would pass the cap of its publication. Nothing may be published."""


@dataclass(frozen=True, kw_only=True)
class Worst:
    """What is reserved on the worst record of a stream, and what the worst one has spent; the two may differ."""

    reserved: Loss
    spent: Loss


def charge(
    connection: Connection,
    stream: Stream,
    publication: Publication,
    most: Fraction,
    new: Sequence[tuple[int, int, Fraction]],
) -> None:
    """Counts charges (start, stop, amount) of one publication. The caller holds the stream's lock.

    Raises:
        OverBudget: a record would pay more than `most` in all.
    """
    start, stop = min(each[0] for each in new), max(each[1] for each in new)
    # Neighbours are read too, so that equal ones become one range again.
    own = select(spent.c.start, spent.c.stop, spent.c.amount).where(
        spent.c.publication_id == publication.id,
        spent.c.start <= stop,
        spent.c.start >= _first(publication.id, start),
        spent.c.stop >= start,
    )
    old = [tuple(row) for row in connection.execute(own)]
    profile = Profile.of((low, high, Fraction(amount)) for low, high, amount in old)
    for low, high, amount in new:
        profile = profile.add(low, high, amount)
    if profile.maximum() > most:
        raise OverBudget("a record would be charged more than the cap of this publication")
    ranges = [(low, high, amount) for low, high, amount in profile.ranges() if high is not None and amount]
    _write(
        connection, spent, {"publication_id": publication.id}, old, [(*each[:2], decimal(each[2])) for each in ranges]
    )
    record, _, amount = max(ranges, key=lambda each: each[2])
    if amount > Fraction(publication.worst_amount):
        connection.execute(
            update(publications_table)
            .where(publications_table.c.id == publication.id)
            .values(worst_record=record, worst_amount=decimal(amount))
        )
    _draw(connection, stream, start, stop)


def exact(connection: Connection, stream: int, start: int, stop: int, *, most: int = MOST_RANGES) -> list[Range] | None:
    """What each record of [start, stop) has spent and what is reserved on it; None: that takes over `most` rows."""
    rows = _rows(connection, stream, start, stop, limit=most + 1)
    return None if len(rows) > most else _added_up(connection, stream, rows, start, stop)


def outlined(connection: Connection, stream: int, start: int, stop: int) -> list[tuple[int, int | None, Loss]]:
    """The most that any record of each stretch of [start, stop) has spent; they cover it, at most `MOST_RANGES`."""
    rows = connection.execute(
        select(outlines)
        .where(outlines.c.stream_id == stream, outlines.c.start < stop, outlines.c.stop > start)
        .order_by(outlines.c.start)
    )
    found: list[tuple[int, int | None, Loss]] = []
    position = start
    for row in rows:
        low, high = max(start, row.start), min(stop, row.stop)
        if position < low:
            found.append((position, low, Loss()))
        found.append((low, high, Loss.of(row.epsilon, row.delta)))
        position = high
    if position < stop:
        found.append((position, stop, Loss()))
    return found


def worst(connection: Connection, stream: int, found: Sequence[Publication]) -> Worst:
    """Of any record of a stream; `found` are all its publications."""
    epsilon, delta = connection.execute(
        select(func.max(outlines.c.epsilon), func.max(outlines.c.delta)).where(outlines.c.stream_id == stream)
    ).one()
    return Worst(
        reserved=account.worst(loss for _, loss in _reserved_from(connection, stream, found, 0)),
        spent=Loss.of(epsilon or Decimal(0), delta or Decimal(0)),
    )


def refused(
    connection: Connection, stream: Stream, found: Sequence[Publication], asked: Loss, start: int
) -> Range | None:
    """The worst of the records from `start` on that can't hold `asked` beside all that is reserved; None: all can.

    The cost is that of the publications and of the staircase, not of what was ever charged.
    """
    budget = Loss.of(stream.epsilon, stream.delta)
    reserved = _reserved_from(connection, stream.id, found, start)
    if all((loss + asked).within(budget) for _, loss in reserved):
        return None
    over = "epsilon" if any(loss.epsilon + asked.epsilon > budget.epsilon for _, loss in reserved) else "delta"
    part = attrgetter(over)
    position, _ = max(reserved, key=lambda each: (part(each[1]), each[0]))
    # What ended publications keep from there on, they keep on the record before their staircase falls.
    ended = kept_stairs(connection, stream.id)
    index = bisect_right(ended, position, key=itemgetter(0)) - 1
    falls = next((begins for begins, loss in ended[index:] if part(loss) < part(ended[index][1])), position + 1)
    rows = _rows(connection, stream.id, falls - 1, falls)
    (at,) = _added_up(connection, stream.id, rows, falls - 1, falls)
    return at


def settle(connection: Connection, stream: int) -> None:
    """Once a publication has ended: what remains reserved of all that have. This walks what those have charged."""
    found = stairs(connection, publications.of_stream(connection, stream))
    connection.execute(delete(kept).where(kept.c.stream_id == stream))
    connection.execute(
        insert(kept),
        [
            {"stream_id": stream, "start": start, "epsilon": decimal(loss.epsilon), "delta": decimal(loss.delta)}
            for start, loss in found
        ],
    )


def stairs(connection: Connection, found: Sequence[Publication]) -> list[tuple[int, Loss]]:
    """From some record on, the most that those which have ended keep of any later one; from what they have charged."""
    ended = [account_of(each) for each in found if each.state != "running"]
    return account.worst_from(account.add_up(ended, changes(connection, [each.id for each in ended])))


def kept_stairs(connection: Connection, stream: int) -> list[tuple[int, Loss]]:
    """The same, as kept; before anything has ended, nothing is kept from record 0 on."""
    rows = connection.execute(
        select(kept.c.start, kept.c.epsilon, kept.c.delta).where(kept.c.stream_id == stream).order_by(kept.c.start)
    )
    return [(row.start, Loss.of(row.epsilon, row.delta)) for row in rows] or [(0, Loss())]


def tighter(found: Iterable[Publication], reserved: Loss) -> Tighter:
    """The least bound for any record that can be shown from what all publications of a stream have reserved."""
    holdings = []
    for each in found:
        most = capacity(each.epsilon, each.delta)[1]
        if each.state == "running" or each.worst_amount:
            left = most if each.state == "running" else Fraction(each.worst_amount)
            kind = Kind(each.kind)
            holdings.append(Holding(kind=kind, capacity=most, pure=left if kind is Kind.PURE else Fraction(0)))
    return account.tighter(holdings, reserved)


def accounts(connection: Connection, stream: int) -> list[Account]:
    """Of every publication that the stream ever had."""
    return [account_of(each) for each in publications.of_stream(connection, stream)]


def account_of(publication: Publication) -> Account:
    return Account(
        id=publication.id,
        kind=Kind(publication.kind),
        cap=Loss.of(publication.epsilon, publication.delta),
        start=publication.start,
        running=publication.state == "running",
    )


def changes(connection: Connection, identities: Sequence[int]) -> Iterator[tuple[int, int, Fraction]]:
    """Where what these publications have charged changes, by how much, in order; however many, they take no memory."""
    up = select(spent.c.start.label("record"), spent.c.publication_id, spent.c.amount)
    down = select(spent.c.stop, spent.c.publication_id, -spent.c.amount)
    both = up.union_all(down).subquery()
    query = (
        select(both.c.record, both.c.publication_id, func.sum(both.c.amount))
        .where(both.c.publication_id.in_(identities))
        .group_by(both.c.record, both.c.publication_id)
        .order_by(both.c.record)
    )
    with connection.execute(query, execution_options={"yield_per": 1000}) as rows:
        for record, publication, amount in rows:
            yield record, publication, Fraction(amount)


def decimal(amount: Fraction) -> Decimal:
    """Exact: sums of binary doubles and of decimals have nothing but twos and fives below the line."""
    twos = (amount.denominator & -amount.denominator).bit_length() - 1
    fives, rest = 0, amount.denominator >> twos
    while rest > 1:
        rest, left = divmod(rest, 5)
        if left:
            raise ValueError("not a sum of binary doubles and decimals")
        fives += 1
    power = max(twos, fives)
    digits = amount.numerator * 2 ** (power - twos) * 5 ** (power - fives)
    return Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -power))


def _first(publication: Any, record: int) -> ScalarSelect[int]:
    """Where the last of its rows that begins at or before a record begins: none before that one reaches the record."""
    rows = spent.alias()
    query = select(func.coalesce(func.max(rows.c.start), 0))
    return query.where(rows.c.publication_id == publication, rows.c.start <= record).scalar_subquery()


def _rows(
    connection: Connection, stream: int, start: int, stop: int, *, limit: int | None = None
) -> Sequence[Row[Any]]:
    """Of `spent`, of every publication of a stream, those that hold any of [start, stop)."""
    mine = (
        select(publications_table.c.id, _first(publications_table.c.id, start).label("first"))
        .where(publications_table.c.stream_id == stream)
        .subquery()
        .lateral()
    )
    query = (
        select(spent)
        .join(mine, and_(spent.c.publication_id == mine.c.id, spent.c.start >= mine.c.first))
        .where(spent.c.start < stop, spent.c.stop > start)
        .limit(limit)
    )
    return connection.execute(query).all()


def _added_up(connection: Connection, stream: int, rows: Sequence[Row[Any]], start: int, stop: int) -> list[Range]:
    """Over [start, stop), from its rows of `spent`."""
    found: dict[tuple[int, int], Fraction] = {}
    for row in rows:
        amount = Fraction(row.amount)
        for where, change in (
            ((max(start, row.start), row.publication_id), amount),
            ((min(stop, row.stop), row.publication_id), -amount),
        ):
            found[where] = found.get(where, Fraction(0)) + change
    ranges = account.add_up(accounts(connection, stream), ((*where, found[where]) for where in sorted(found)))
    return [
        replace(each, start=max(start, each.start), end=stop if each.end is None else min(stop, each.end))
        for each in ranges
        if each.start < stop and (each.end is None or each.end > start)
    ]


def _reserved_from(
    connection: Connection, stream: int, found: Sequence[Publication], start: int
) -> list[tuple[int, Loss]]:
    """Of some records from `start` on what is reserved from there on, at most; the largest of all is among them.

    What running publications reserve never falls with the record number, so at each record where it rises it may be
    added to the most that ended ones keep from there on: wherever that is kept, no less is reserved by running ones.
    """
    ended = kept_stairs(connection, stream)
    running = [each for each in found if each.state == "running"]
    sums = []
    for record in sorted({start, *(each.start for each in running if each.start > start)}):
        total = Loss()
        for each in running:
            if each.start <= record:
                total += Loss.of(each.epsilon, each.delta)
        sums.append((record, total + ended[bisect_right(ended, record, key=itemgetter(0)) - 1][1]))
    return sums


def _draw(connection: Connection, stream: Stream, start: int, stop: int) -> None:
    """Raises the stream's outline to what records of [start, stop) have spent now."""
    grain = stream.grain
    while stop > grain * MOST_RANGES:
        grain *= 2
    low, high = start // grain * grain, -(-stop // grain) * grain
    query = select(outlines.c.start, outlines.c.stop, outlines.c.epsilon, outlines.c.delta).where(
        outlines.c.stream_id == stream.id
    )
    if grain == stream.grain:
        # Neighbours too, so that equal ones become one again.
        query = query.where(outlines.c.start <= high, outlines.c.stop >= low)
    else:  # all of it is drawn anew, coarser
        connection.execute(update(streams).where(streams.c.id == stream.id).values(grain=grain))
    old = [tuple(row) for row in connection.execute(query)]
    rows = _rows(connection, stream.id, start, stop)
    now = [(each.start, each.end or stop, each.spent) for each in _added_up(connection, stream.id, rows, start, stop)]
    before = [(first, last, Loss.of(epsilon, delta)) for first, last, epsilon, delta in old]
    new = [
        (first, last, decimal(loss.epsilon), decimal(loss.delta))
        for first, last, loss in account.outline([*before, *now], grain)
    ]
    _write(connection, outlines, {"stream_id": stream.id}, old, new)


def _write(
    connection: Connection,
    table: Table,
    owner: dict[str, int],
    old: Sequence[tuple[Any, ...]],
    new: Sequence[tuple[Any, ...]],
) -> None:
    """Puts ranges (start, …) in the place of others; what stays the same is not written again."""
    names = [column.name for column in table.c if column.name not in owner]
    ((key, identity),) = owner.items()
    gone, come = set(old) - set(new), set(new) - set(old)
    if gone:
        connection.execute(delete(table).where(table.c[key] == identity, table.c.start.in_([each[0] for each in gone])))
    if come:
        connection.execute(insert(table), [owner | dict(zip(names, each, strict=True)) for each in sorted(come)])
