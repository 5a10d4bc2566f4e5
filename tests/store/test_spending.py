"""The sums that are kept up with each charge, against adding up every charge over every record."""

import random
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, update

from service.ledger import admission, charging, open_entry, open_ledger, reservations, spending, summaries
from service.ledger.errors import BudgetExceeded
from service.ledger.verify import verify
from service.privacy.accounting import composition
from service.privacy.accounting.composition import PrivacyLoss, Slots
from service.privacy.accounting.obligations import FitSize, Obligations, WithEachRelease
from service.privacy.currency import Currency, capacity, round_down
from service.store import publications, streams, tables
from service.store.database import Database
from service.store.publications import NewPublication
from service.store.rows import Rows
from service.store.step_records import NewCharge
from tests.conftest import World

RECORDS = 150
RANDOM = random.Random(7)
LITTLE = 2.0**-12


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    database = Database(world.settings.database_url)
    with database.transaction() as connection:
        yield connection
    database.close()


UNIT = {"max_records": 4, "min_separation": 1, "factor": "4"}


def described(
    name: str, *, delta: str = "0", start: int = 0, slots: Slots = Slots.TRAINING, unit: dict[str, Any] | None = None
) -> NewPublication:
    with_delta = {"epsilon": Decimal("0.5"), "delta": Decimal(delta), "kind": "zcdp" if delta != "0" else "pure"}
    configuration = {
        "mechanism": {"kind": "evaluation", "of": ["fits"]}
        if slots is Slots.EVALUATION
        else {"kind": "independent_batches"},
        "privacy": {"epsilon": 0.5, "delta": float(delta)},
        "publish_delay": 0,
    }
    return NewPublication(
        name=name,
        start=start,
        configuration=configuration,
        plan={},
        obligations=Obligations(charging=WithEachRelease(), slots=slots, fit=FitSize.from_json(None), unit=unit),
        due=1,
        publish_delay=Decimal(0),
        **with_delta,
    )


def make(connection: Connection, name: str, **settings: Any) -> publications.Publication:
    return publications.create(connection, 1, described(name, **settings))


def charge(connection: Connection, identity: int, *ranges: tuple[int, int, float]) -> None:
    entry = open_ledger(connection, 1).entry(identity)
    new = [NewCharge(start=low, stop=high, version=None, amount=amount) for low, high, amount in ranges]
    charged = entry.charge(new, Fraction(1), None)
    streams.move(connection, charging.append(connection, charged))
    counted = charged.counted
    publications.move(
        connection, replace(entry.publication, worst_record=counted.worst_record, worst_amount=counted.worst_amount)
    )


def by_record(connection: Connection, publication: publications.Publication, charges: int) -> list[Fraction]:
    """Return what a publication has charged each record, by the first so many charges of its stream."""
    steps = [Fraction(0)] * (RECORDS + 1)
    mine = tables.charges.c.publication_id == publication.id, tables.charges.c.id <= charges
    for row in connection.execute(select(tables.charges).where(*mine)):
        amount = Fraction(row.rho if row.epsilon is None else row.epsilon)
        steps[row.start] += amount
        steps[row.stop] -= amount
    return list(accumulate(steps))[:RECORDS]


def check_units(connection: Connection, charges: int, slots: Slots) -> None:
    """Units with any slots have lost what these were charged, and the most that any lost slots can have been."""
    each_charged = {
        spending.component_of(each): by_record(connection, each, charges)
        for each in publications.of_stream(connection, 1)
        if each.slots is slots
    }
    for lost, stop in (
        (spending.Lost(), RECORDS),
        (spending.Lost(slots=9, before=20), RECORDS),
        (spending.Lost(slots=40, before=99), 30),
    ):
        mine = sorted(RANDOM.sample(range(0, stop, 5), 4))  # where ranges begin
        expected = PrivacyLoss()
        for component, charged in each_charged.items():
            most = sorted(charged[: lost.before], reverse=True)[: lost.slots]
            amount = sum([charged[each] for each in mine] + most, Fraction(0))
            expected += component.loss(amount / 16)
        assert spending.of_unit(connection, 1, mine, 16, slots, lost) == expected


def brute(connection: Connection, charges: int, slots: Slots) -> tuple[list[PrivacyLoss], list[PrivacyLoss]]:
    """Return the spent and the reserved budget of each record by the first so many charges, from the charges alone.

    Records in other slots have none.
    """
    spent, reserved = [PrivacyLoss()] * RECORDS, [PrivacyLoss()] * RECORDS
    for each in publications.of_stream(connection, 1):
        if each.slots is not slots:
            continue
        of_it = spending.component_of(each)
        for record, amount in enumerate(by_record(connection, each, charges)):
            spent[record] += of_it.loss(amount)
            if each.visible_state != "running":
                reserved[record] += of_it.reserved_after_end(amount)
            elif record >= each.start:
                reserved[record] += of_it.cap
    return spent, reserved


def check(connection: Connection, slots: Slots = Slots.TRAINING) -> None:
    charges = streams.get(connection, 1).charges
    committed, reserved = brute(connection, charges, slots)
    of_stream = publications.of_stream(connection, 1)
    assert reservations.reserved(connection, 1, of_stream, slots) == composition.worst(reserved)
    assert PrivacyLoss.of(*summaries.worst_of_each(connection, [1], slots)[1]) == composition.worst(committed)
    confirmed = RANDOM.choice((charges, max(0, charges - 3), 0))
    connection.execute(update(tables.streams).values(confirmed_charges=confirmed))
    check_units(connection, confirmed, slots)
    spent, _ = brute(connection, confirmed, slots)
    exact = spending.exact(connection, 1, 0, RECORDS, slots)
    assert [loss for start, end, loss in exact for _ in range(start, end)] == spent
    low, high = sorted(RANDOM.sample(range(RECORDS), 2))
    exact = spending.exact(connection, 1, low, high, slots)
    assert (exact[0][0], exact[-1][1]) == (low, high)
    assert [loss for start, end, loss in exact for _ in range(start, end)] == spent[low:high]
    outlined = [
        loss
        for start, end, loss in spending.outlined(Rows(connection), 1, 0, RECORDS, slots)
        for _ in range(start, end)
    ]
    stream = streams.get(connection, 1)
    for record in range(RECORDS):
        grain = stream.grain_of(slots)
        cell = record // grain * grain
        assert outlined[record] == composition.worst(committed[cell : cell + grain])
    drawn = spending.OUTLINES[slots]
    assert connection.execute(select(func.count()).select_from(drawn)).scalar_one() <= spending.MAX_RANGES
    assert connection.execute(select(func.count()).select_from(tables.spent)).scalar_one() <= RECORDS * len(of_stream)
    for start in RANDOM.sample(range(RECORDS), 10):
        part = "rho" if stream.budget.in_rho else "epsilon"
        most = max(getattr(each, part) for each in reserved[start:])
        left = getattr(stream.budget.limit, part) - most
        for amount in (left, left + Fraction(1, 2**40)):
            cost = PrivacyLoss(**{part: amount})
            over = reservations.refused(connection, stream, of_stream, cost, start, slots)
            assert (over is None) == all((each + cost).within(stream.budget.limit) for each in {*reserved[start:]})
            if over is not None:
                assert over.start >= start
                assert (over.spent, over.reserved) == (spent[over.start], reserved[over.start])
                assert getattr(over.reserved, part) == most


def check_both(connection: Connection) -> None:
    """Sums over both kinds of slots are the larger ones, record by record."""
    kinds = [brute(connection, streams.get(connection, 1).charges, slots) for slots in Slots]
    spent, reserved = ([one.at_least(two) for one, two in zip(*each, strict=True)] for each in zip(*kinds, strict=True))
    connection.execute(update(tables.streams).values(confirmed_charges=tables.streams.c.charges))
    assert reservations.reserved(connection, 1, publications.of_stream(connection, 1)) == composition.worst(reserved)
    assert PrivacyLoss.of(*summaries.worst_of_each(connection, [1])[1]) == composition.worst(spent)
    exact = spending.exact(connection, 1, 0, RECORDS)
    assert [loss for start, end, loss in exact for _ in range(start, end)] == spent
    outline = spending.outlined(Rows(connection), 1, 0, RECORDS)
    assert all(spent[record].within(loss) for start, end, loss in outline for record in range(start, end))
    assert (outline[0][0], outline[-1][1]) == (0, RECORDS)


@pytest.mark.more
@pytest.mark.parametrize("kinds", [(Slots.TRAINING,), tuple(Slots)], ids=["one kind", "both kinds"])
@pytest.mark.parametrize(
    ("most", "epsilon", "accounting"),
    [
        pytest.param(spending.MAX_RANGES, 2, "basic", id="fine"),
        pytest.param(16, 2, "basic", id="coarse"),
        pytest.param(spending.MAX_RANGES, 5, "zcdp", id="in rho"),
    ],
)
def test_every_sum_is_that_of_all_charges_record_by_record(
    connection: Connection, monkeypatch, most, epsilon, accounting, kinds
):
    monkeypatch.setattr(spending, "MAX_RANGES", most)
    schema = {} if len(kinds) == 1 else {"evaluation": {"every": 7}}
    streams.create(
        connection,
        name="s",
        log="s",
        schema=schema,
        retention="keep",
        epsilon=Decimal(epsilon),
        delta=Decimal("1e-5"),
        accounting=accounting,
    )
    made = [
        make(
            connection,
            f"p{index}",
            delta="1e-6" if index % 2 else "0",
            start=20 * index,
            slots=kinds[index // 2 % len(kinds)],
        )
        for index in range(4)
    ]
    for position in range(0, RECORDS - 20, 5):
        for each in made:
            state = publications.get(connection, each.id).state
            if state == "running" and position >= each.start:
                low = max(each.start, position - RANDOM.randrange(30))
                charge(
                    connection,
                    each.id,
                    (low, position + 20, LITTLE),
                    (position, position + 5, RANDOM.choice((1, 3)) * LITTLE),
                )
        if position in (50, 100):
            connection.execute(update(tables.streams).values(confirmed_charges=tables.streams.c.charges))
            open_entry(connection, made[position // 50]).end("stopped")
        if position % 50 == 0:
            for slots in Slots:
                check(connection, slots)
    for slots in Slots:
        check(connection, slots)
    check_both(connection)
    connection.execute(update(tables.streams).values(records=0, confirmed_charges=0))  # nothing is shown
    assert verify(connection, isolated=False).findings == []


def test_more_ranges_than_anybody_reads_are_told_as_at_most(connection: Connection, monkeypatch):
    monkeypatch.setattr(spending, "MAX_RANGES", 16)
    streams.create(connection, name="s", log="s", schema={}, retention="keep", epsilon=Decimal(2), delta=Decimal(0))
    publication = make(connection, "p")
    for record in range(0, RECORDS, 2):
        charge(connection, publication.id, (record, record + 2, LITTLE * (1 + record % 3)))
    connection.execute(update(tables.streams).values(confirmed_charges=tables.streams.c.charges))
    assert spending.exact(connection, 1, 0, RECORDS, most=16) is None
    assert len(spending.exact(connection, 1, 100, 120, most=16)) == 10
    outline = spending.outlined(Rows(connection), 1, 0, RECORDS)
    assert (outline[0][0], outline[-1][1]) == (0, RECORDS)
    assert len(outline) <= 17
    check(connection)


def test_exact_decimals_and_doubles_become_exact_decimals():
    for amount in (Fraction(0), Fraction(0.1), Fraction("0.1"), Fraction(0.1) + Fraction("0.3"), -Fraction(3, 80)):
        assert Fraction(spending.decimal(amount)) == amount
    assert Fraction(spending.decimal(Fraction(2.0**-1074))) == Fraction(2.0**-1074)
    with pytest.raises(ValueError, match="not a sum"):
        spending.decimal(Fraction(1, 3))


def test_the_tighter_bound_counts_what_is_reserved_and_what_ended_ones_spent(connection: Connection):
    streams.create(
        connection, name="s", log="s", schema={}, retention="keep", epsilon=Decimal(9), delta=Decimal("1e-5")
    )
    running, ended, unused = (make(connection, name) for name in ("running", "ended", "unused"))
    gaussian = [make(connection, f"g{index}", delta="1e-6") for index in range(4)]
    of_units = make(connection, "of units", unit=UNIT)
    for each, amount in ((ended, 0.25), (of_units, 0.125)):
        charge(connection, each.id, (0, 10, amount))
    connection.execute(update(tables.streams).values(confirmed_charges=tables.streams.c.charges))
    for each in (ended, unused, of_units):
        open_entry(connection, each).end("stopped")
    of_stream = publications.of_stream(connection, 1)
    reserved = reservations.reserved(connection, 1, of_stream)
    tighter = reservations.tighter(streams.get(connection, 1), of_stream, reserved)
    assert tighter.pure == Fraction("0.5") + Fraction(1, 4) + Fraction("0.5"), "all that a unit was promised"
    assert tighter.zcdp - tighter.gaussian == 3 * Fraction("0.5") ** 2 / 2, (
        "what ended is capped by what it had asked for"
    )
    assert tighter.loss.epsilon < reserved.epsilon == Fraction("0.75") + 5 * Fraction("0.5")
    assert tighter.loss.delta == reserved.delta
    assert Currency(gaussian[0].kind) is Currency.ZCDP
    assert running.id


def test_each_kind_of_slots_holds_the_whole_budget_by_itself(connection: Connection):
    """Training and evaluation at (1/2, 1e-6) each on a stream of (1/2, 1e-6): a record's sum is never that of both."""
    schema = {"evaluation": {"every": 20}}
    stream = streams.create(
        connection, name="s", log="s", schema=schema, retention="keep", epsilon=Decimal("0.5"), delta=Decimal("1e-6")
    )
    cap = PrivacyLoss.of(stream.epsilon, stream.delta)
    made = []
    for slots in Slots:
        admission.check(connection, stream, cap, 0, slots)
        made.append(make(connection, slots.value, delta="1e-6", slots=slots))
        with pytest.raises(BudgetExceeded):
            admission.check(connection, stream, PrivacyLoss(epsilon=Fraction(1, 10**6)), 0, slots)
    for each in made:
        charge(connection, each.id, (0, 100, float(round_down(capacity(each.epsilon, each.delta)[1]))))
    connection.execute(update(tables.streams).values(confirmed_charges=tables.streams.c.charges))
    for slots in (None, *Slots):
        ((_, _, spent), *_) = spending.exact(connection, 1, 0, 100, slots)
        assert 0.99 * cap.epsilon < spent.epsilon <= cap.epsilon
        assert spent.delta == cap.delta
        assert reservations.reserved(connection, 1, publications.of_stream(connection, 1), slots) == cap
    tighter = reservations.tighter(stream, publications.of_stream(connection, 1), cap, cap)
    assert (tighter.loss, tighter.gaussian) == (cap, capacity(stream.epsilon, stream.delta)[1]), "of one kind alone"
    less = replace(cap, epsilon=cap.epsilon / 2), replace(cap, delta=cap.delta / 2)
    for reserved in (less, less[::-1]):
        assert reservations.tighter(stream, publications.of_stream(connection, 1), *reserved).loss == cap
    open_entry(connection, made[0]).end("stopped")
    for slots in Slots:
        with pytest.raises(BudgetExceeded):
            admission.check(connection, stream, PrivacyLoss(epsilon=Fraction(1, 10**6)), 0, slots)
    admission.check(connection, stream, cap, 100, Slots.TRAINING)
    with pytest.raises(BudgetExceeded):
        admission.check(connection, stream, cap, 100, Slots.EVALUATION)
    with pytest.raises(BudgetExceeded):
        open_ledger(connection, 1).admit(described("more", delta="1e-6", start=100, slots=Slots.EVALUATION))
    open_entry(connection, made[1]).end("stopped")
    for slots in Slots:
        admission.check(connection, stream, cap, 100, slots)
        with pytest.raises(BudgetExceeded):
            admission.check(connection, stream, PrivacyLoss(epsilon=Fraction(1, 10**6)), 99, slots)
    connection.execute(update(tables.streams).values(records=0, confirmed_charges=0))
    assert verify(connection, isolated=False).findings == []


@pytest.mark.parametrize("slots", list(Slots))
def test_verify_finds_charges_that_are_counted_on_slots_of_the_other_kind(connection: Connection, slots):
    streams.create(
        connection, name="s", log="s", schema={}, retention="keep", epsilon=Decimal(2), delta=Decimal("1e-5")
    )
    publication = make(connection, "p", slots=slots)
    owes = replace(publication.owes, slots=Slots.EVALUATION)
    changed = replace(publication, obligations=owes.to_json())
    connection.execute(
        update(tables.publications).values(
            obligations=owes.to_json(), obligations_digest=publications.obligations_digest(changed)
        )
    )
    findings = verify(connection, isolated=False).findings
    assert "publication p: its charges are counted on slots that it does not read (stream s)" in findings


def test_verify_finds_draws_that_add_too_much_to_a_budget_in_rho(connection: Connection):
    stream = streams.create(
        connection,
        name="s",
        log="s",
        schema={},
        retention="keep",
        epsilon=Decimal(5),
        delta=Decimal("1e-5"),
        accounting="zcdp",
    )
    publication = make(connection, "p", delta="1e-6")
    finding = f"stream {stream.name}: its publications' draws add more to delta than the budget leaves room for"
    for draws, state, worst_amount, expected in (
        (1, "running", 0, []),
        (2**50, "running", 0, [finding]),
        (2**50, "stopped", 1, [finding]),
        (2**50, "stopped", 0, []),
    ):
        owes = replace(publication.owes, draws=draws).to_json()
        changed = replace(publication, obligations=owes, state=state, worst_amount=Decimal(worst_amount))
        columns = {name: getattr(changed, name) for name in ("obligations", "state", "worst_amount")}
        digests = {
            "obligations_digest": publications.obligations_digest(changed),
            "seal": publications.state_digest(changed),
        }
        connection.execute(update(tables.publications).values(columns | digests))
        connection.execute(update(tables.shown).values(state=state))
        assert [each for each in verify(connection, isolated=False).findings if "draws" in each] == expected
