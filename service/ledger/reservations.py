"""Budgets: what is reserved on the records of a stream, and whether they can hold more.

A publication reserves its cap on every record from its start on, for as long as it runs. Once it has ended, each record
keeps what it was charged: the most that any later record keeps is a falling staircase, in the table `kept`. It follows
from the charges: `perennial ledger verify` adds them up anew and compares. On a stream with units one that has charged
anything reserves its whole cap for ever, unless the budget is held in ρ (`reserving`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from operator import attrgetter, itemgetter

from sqlalchemy import Connection, delete, insert, select

from service.ledger import spending
from service.ledger.exact_decimals import decimals
from service.ledger.reserving import Reserving, reserves_wholly
from service.ledger.spending import component_of
from service.privacy.accounting import budget, composition
from service.privacy.accounting.composition import Holding, PrivacyLoss, Range, Slots, Tighter
from service.privacy.currency import Currency, capacity
from service.store.database import ANY_OF_STREAMS, read
from service.store.publications import Publication, of_stream
from service.store.rows import Rows
from service.store.streams import Stream
from service.store.tables import evaluation_kept, kept_reservations


def reserved(
    connection: Connection, stream: int, publications: Sequence[Reserving], slots: Slots | None = None
) -> PrivacyLoss:
    """Return what is reserved on the worst record of a stream; `publications` are all its publications.

    slots: of this kind; None: the larger of both.
    """
    return reserved_of_each(connection, {stream: publications}, slots)[stream]


def reserved_of_each(
    connection: Connection, publications: Mapping[int, Sequence[Reserving]], slots: Slots | None = None
) -> dict[int, PrivacyLoss]:
    """Return the same by stream, from all publications of each, with one query of each kind for all streams."""
    most = dict.fromkeys(publications, PrivacyLoss())
    for kind in Slots if slots is None else (slots,):
        ended = kept_stairs_of_each(connection, list(publications), kind)
        for stream, of_it in publications.items():
            held = _reserved_from([each for each in of_it if each.slots == kind], ended[stream], 0)
            most[stream] = most[stream].at_least(composition.worst(loss for _, loss in held))
    return most


def refused(
    connection: Connection,
    stream: Stream,
    publications: Sequence[Publication],
    cost: PrivacyLoss,
    start: int,
    slots: Slots = Slots.TRAINING,
) -> Range | None:
    """The worst of the records from `start` on that can't hold `cost` beside all that is reserved; None: all can.

    slots: the kind that is asked for; what is reserved on the other kind does not matter. The cost is that of the
    publications and of the staircase, not of what was ever charged.
    """
    limit = stream.budget.limit
    ended = kept_stairs(connection, stream.id, slots)
    publications = [each for each in publications if each.slots == slots]
    held = _reserved_from(publications, ended, start)
    if all((loss + cost).within(limit) for _, loss in held):
        return None
    parts = [attrgetter(name) for name in ("rho", "epsilon", "delta")]
    part = next(each for each in parts if any(each(loss + cost) > each(limit) for _, loss in held))
    position, _ = max(held, key=lambda each: (part(each[1]), each[0]))
    # What ended publications keep from there on, they keep on the record before their staircase falls.
    index = bisect_right(ended, position, key=itemgetter(0)) - 1
    falls = next((begins for begins, loss in ended[index:] if part(loss) < part(ended[index][1])), position + 1)
    record = falls - 1
    charged, spent = spending.of_record(connection, stream.id, record, slots)
    ranges = composition.add_up([component_of(each) for each in publications], charged)
    at = next(each for each in ranges if each.end is None or each.end > record)
    return replace(at, start=record, end=record + 1, spent=spent)


def settle(connection: Connection, stream: int) -> None:
    """Once the end of a publication is shown: what remains reserved of all ended; this walks what those charged."""
    publications = of_stream(connection, stream)
    for slots in {each.slots for each in publications}:
        table, steps = KEPT[slots], stairs(Rows(connection), publications, slots)
        connection.execute(delete(table).where(table.c.stream_id == stream))
        connection.execute(
            insert(table),
            [
                {"stream_id": stream, "start": start}
                | dict(zip(("epsilon", "delta", "rho"), decimals(loss), strict=True))
                for start, loss in steps
            ],
        )


KEPT = {Slots.TRAINING: kept_reservations, Slots.EVALUATION: evaluation_kept}


def stairs(
    rows: Rows, publications: Sequence[Publication], slots: Slots = Slots.TRAINING
) -> list[tuple[int, PrivacyLoss]]:
    """From some record on, the most that those which have ended keep of any later one; from what they have charged."""
    ended = [component_of(each) for each in publications if not reserves_wholly(each) and each.slots == slots]
    return composition.worst_from(composition.add_up(ended, spending.changes(rows, [each.id for each in ended])))


def kept_stairs(connection: Connection, stream: int, slots: Slots = Slots.TRAINING) -> list[tuple[int, PrivacyLoss]]:
    """The same, as kept; before anything has ended, nothing is kept from record 0 on."""
    return kept_stairs_of_each(connection, [stream], slots)[stream]


def walk_stairs(rows: Rows, stream: int, slots: Slots = Slots.TRAINING) -> list[tuple[int, PrivacyLoss]]:
    """The same, for who walks all rows."""
    steps = rows.of(_STAIRS[slots], KEPT[slots].c.stream_id, stream)
    return [(row.start, PrivacyLoss.of(row.epsilon, row.delta, row.rho)) for row in steps] or [(0, PrivacyLoss())]


_STAIRS = {slots: select(table).order_by(table.c.start) for slots, table in KEPT.items()}
_STAIRS_OF_EACH = {slots: query.where(KEPT[slots].c.stream_id == ANY_OF_STREAMS) for slots, query in _STAIRS.items()}


def kept_stairs_of_each(
    connection: Connection, streams: Sequence[int], slots: Slots = Slots.TRAINING
) -> dict[int, list[tuple[int, PrivacyLoss]]]:
    """The same by stream, with one query for all of them."""
    stairs: dict[int, list[tuple[int, PrivacyLoss]]] = {each: [] for each in streams}
    for row in read(connection, _STAIRS_OF_EACH[slots], {"streams": list(streams)}) if streams else ():
        stairs[row.stream_id].append((row.start, PrivacyLoss.of(row.epsilon, row.delta, row.rho)))
    return {stream: steps or [(0, PrivacyLoss())] for stream, steps in stairs.items()}


def drawn(publications: Iterable[Publication]) -> int:
    """Return how many draws of nearly exact noise one record can have moved in all of a stream's publications.

    One that ended before it charged anything has released nothing.
    """
    return sum(each.owes.draws or 0 for each in publications if each.visible_state == "running" or each.worst_amount)


def tighter(
    stream: Stream, publications: Sequence[Publication], reserved: PrivacyLoss, evaluated: PrivacyLoss | None = None
) -> Tighter:
    """The least bound for any record that can be shown from what all publications of a stream have reserved.

    reserved: on the worst record; of a stream that sets slots aside on the worst training slot, and `evaluated` on the
    worst evaluation slot. The bound is then the larger of the two. In ρ it is `reserved`.
    """
    training = _tighter(stream, publications, Slots.TRAINING, reserved)
    if evaluated is None:
        return training
    other = _tighter(stream, publications, Slots.EVALUATION, evaluated)
    larger = max(training, other, key=attrgetter("loss.rho", "loss.epsilon"))
    return replace(larger, loss=training.loss.at_least(other.loss))


def _tighter(stream: Stream, publications: Iterable[Publication], slots: Slots, reserved: PrivacyLoss) -> Tighter:
    holdings = []
    for each in publications:
        if each.slots != slots:
            continue
        most = capacity(each.epsilon, each.delta)[1]
        if each.visible_state == "running" or each.worst_amount:
            left = most if reserves_wholly(each) else Fraction(each.worst_amount)
            kind = Currency(each.kind)
            holdings.append(Holding(currency=kind, capacity=most, pure=left if kind is Currency.PURE else Fraction(0)))
    bound = composition.tightest_epsilon(holdings, reserved)
    return replace(bound, loss=reserved, how="zcdp", zcdp=reserved.rho) if stream.budget.in_rho else bound


def _reserved_from(
    publications: Sequence[Reserving], ended: Sequence[tuple[int, PrivacyLoss]], start: int
) -> list[tuple[int, PrivacyLoss]]:
    """Return the most that is reserved from some records on, from `start`; the largest of all is among them.

    ended: the staircase of what ended publications keep.

    The reserve of running publications never falls with the record number, so at each record where it rises it may be
    added to the most that ended ones keep from there on: wherever that is kept, no less is reserved by running ones.
    """
    running = [each for each in publications if reserves_wholly(each)]
    sums = []
    for record in sorted({start, *(each.start for each in running if each.start > start)}):
        total = PrivacyLoss()
        for each in running:
            if each.start <= record:
                total += budget.cap(each.accounting, each.epsilon, each.delta, units=each.unit_factor is not None)
        sums.append((record, total + ended[bisect_right(ended, record, key=itemgetter(0)) - 1][1]))
    return sums
