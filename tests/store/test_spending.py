"""The sums that are kept up with each charge, against adding up every charge over every record."""

import random
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from sqlalchemy import Connection, func, select, update

from service.ledger import charging, open_entry, open_ledger, reservations, spending, summaries
from service.ledger.charging import NewCharge
from service.ledger.verify import verify
from service.privacy.accounting import composition
from service.privacy.accounting.composition import Loss
from service.privacy.accounting.obligations import FitSize, Obligations, WithEachRelease
from service.privacy.currency import Currency
from service.store import publications, streams, tables
from service.store.database import Database
from service.store.publications import NewPublication
from service.store.rows import Rows
from tests.conftest import World

RECORDS = 300
RANDOM = random.Random(7)
LITTLE = 2.0**-12


@pytest.fixture
def connection(world: World) -> Iterator[Connection]:
    database = Database(world.settings.database_url)
    with database.transaction() as connection:
        yield connection
    database.close()


def make(connection: Connection, name: str, *, delta: str = "0", start: int = 0) -> publications.Publication:
    with_delta = {"epsilon": Decimal("0.5"), "delta": Decimal(delta), "kind": "zcdp" if delta != "0" else "pure"}
    configuration = {
        "mechanism": {"kind": "independent_batches"},
        "privacy": {"epsilon": 0.5, "delta": float(delta)},
        "publish_delay": 0,
    }
    new = NewPublication(
        name=name,
        start=start,
        configuration=configuration,
        plan={},
        obligations=Obligations(charging=WithEachRelease(), fit=FitSize.from_json(None)),
        due=1,
        publish_delay=Decimal(0),
        **with_delta,
    )
    return publications.create(connection, 1, new)


def charge(connection: Connection, identity: int, *ranges: tuple[int, int, float]) -> None:
    entry = open_ledger(connection, 1).entry(identity)
    new = [NewCharge(start=low, stop=high, version=None, amount=amount) for low, high, amount in ranges]
    charged = entry.charge(new, Fraction(1), None)
    streams.move(connection, charging.append(connection, charged))
    counted = charged.counted
    publications.move(
        connection, replace(entry.publication, worst_record=counted.worst_record, worst_amount=counted.worst_amount)
    )


def brute(connection: Connection, charges: int) -> tuple[list[Loss], list[Loss]]:
    """Return the spent and the reserved of each record by the first so many charges, from the charges alone."""
    spent, reserved = [Loss()] * RECORDS, [Loss()] * RECORDS
    for each in publications.of_stream(connection, 1):
        amounts = [Fraction(0)] * RECORDS
        mine = tables.charges.c.publication_id == each.id, tables.charges.c.id <= charges
        for row in connection.execute(select(tables.charges).where(*mine)):
            for record in range(row.start, row.stop):
                amounts[record] += Fraction(row.rho if row.epsilon is None else row.epsilon)
        of_it = spending.account_of(each)
        for record, amount in enumerate(amounts):
            spent[record] += of_it.loss(amount)
            if each.state != "running":
                reserved[record] += of_it.kept(amount)
            elif record >= each.start:
                reserved[record] += of_it.cap
    return spent, reserved


def check(connection: Connection) -> None:
    charges = streams.get(connection, 1).charges
    committed, reserved = brute(connection, charges)
    found = publications.of_stream(connection, 1)
    assert reservations.reserved(connection, 1, found) == composition.worst(reserved)
    assert Loss.of(*summaries.worst_of_each(connection, [1])[1]) == composition.worst(committed)
    confirmed = RANDOM.choice((charges, max(0, charges - 3), 0))
    connection.execute(update(tables.streams).values(confirmed_charges=confirmed))
    spent, _ = brute(connection, confirmed)
    exact = spending.exact(connection, 1, 0, RECORDS)
    assert [loss for start, end, loss in exact for _ in range(start, end)] == spent
    low, high = sorted(RANDOM.sample(range(RECORDS), 2))
    exact = spending.exact(connection, 1, low, high)
    assert (exact[0][0], exact[-1][1]) == (low, high)
    assert [loss for start, end, loss in exact for _ in range(start, end)] == spent[low:high]
    outlined = [
        loss for start, end, loss in spending.outlined(Rows(connection), 1, 0, RECORDS) for _ in range(start, end)
    ]
    stream = streams.get(connection, 1)
    for record in range(RECORDS):
        cell = record // stream.grain * stream.grain
        assert outlined[record] == composition.worst(committed[cell : cell + stream.grain])
    assert connection.execute(select(func.count()).select_from(tables.outlines)).scalar_one() <= spending.MOST_RANGES
    assert connection.execute(select(func.count()).select_from(tables.spent)).scalar_one() <= RECORDS * len(found)
    for start in RANDOM.sample(range(RECORDS), 10):
        part = "rho" if stream.budget.in_rho else "epsilon"
        most = max(getattr(each, part) for each in reserved[start:])
        left = getattr(stream.budget.limit, part) - most
        for amount in (left, left + Fraction(1, 2**40)):
            asked = Loss(**{part: amount})
            over = reservations.refused(connection, stream, found, asked, start)
            assert (over is None) == all((each + asked).within(stream.budget.limit) for each in reserved[start:])
            if over is not None:
                assert over.start >= start
                assert (over.spent, over.reserved) == (spent[over.start], reserved[over.start])
                assert getattr(over.reserved, part) == most


@pytest.mark.parametrize(
    ("most", "epsilon", "accounting"),
    [
        pytest.param(spending.MOST_RANGES, 2, "basic", id="fine"),
        pytest.param(16, 2, "basic", id="coarse"),
        pytest.param(spending.MOST_RANGES, 5, "zcdp", id="in rho"),
    ],
)
def test_every_sum_is_that_of_all_charges_record_by_record(
    connection: Connection, monkeypatch, most, epsilon, accounting
):
    monkeypatch.setattr(spending, "MOST_RANGES", most)
    streams.create(
        connection,
        name="s",
        log="s",
        schema={},
        retention="keep",
        epsilon=Decimal(epsilon),
        delta=Decimal("1e-5"),
        accounting=accounting,
    )
    made = [make(connection, f"p{index}", delta="1e-6" if index % 2 else "0", start=40 * index) for index in range(4)]
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
        if position in (100, 200):
            open_entry(connection, made[position // 100]).end("stopped")
        if position % 100 == 0:
            check(connection)
    check(connection)
    connection.execute(update(tables.streams).values(records=0, confirmed_charges=0))  # nothing is shown
    assert verify(connection, isolated=False).findings == []


def test_more_ranges_than_anybody_reads_are_told_as_at_most(connection: Connection, monkeypatch):
    monkeypatch.setattr(spending, "MOST_RANGES", 16)
    streams.create(connection, name="s", log="s", schema={}, retention="keep", epsilon=Decimal(2), delta=Decimal(0))
    publication = make(connection, "p")
    for record in range(0, RECORDS, 2):
        charge(connection, publication.id, (record, record + 2, LITTLE * (1 + record % 3)))
    connection.execute(update(tables.streams).values(confirmed_charges=tables.streams.c.charges))
    assert spending.exact(connection, 1, 0, RECORDS, most=16) is None
    assert len(spending.exact(connection, 1, 100, 120, most=16)) == 10
    told = spending.outlined(Rows(connection), 1, 0, RECORDS)
    assert (told[0][0], told[-1][1]) == (0, RECORDS)
    assert len(told) <= 17
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
    charge(connection, ended.id, (0, 10, 0.25))
    for each in (ended, unused):
        open_entry(connection, each).end("stopped")
    found = publications.of_stream(connection, 1)
    reserved = reservations.reserved(connection, 1, found)
    tighter = reservations.tighter(streams.get(connection, 1), found, reserved)
    assert tighter.pure == Fraction("0.5") + Fraction(1, 4)
    assert tighter.zcdp - tighter.gaussian == 2 * Fraction("0.5") ** 2 / 2, (
        "what ended is capped by what it had asked for"
    )
    assert tighter.loss.epsilon < reserved.epsilon == Fraction("0.75") + 4 * Fraction("0.5")
    assert tighter.loss.delta == reserved.delta
    assert Currency(gaussian[0].kind) is Currency.ZCDP
    assert running.id
