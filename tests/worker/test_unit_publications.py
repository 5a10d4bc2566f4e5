"""Publications on a stream with units: what is charged, shown and reserved is a unit's, and `verify` sees it."""

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from sqlalchemy import func, select, text, update

from service.api.routes import units
from service.ledger import open_entry, open_ledger, reservations, spending
from service.ledger.errors import BudgetExceeded
from service.ledger.invariants import over_cap
from service.ledger.verify import unit_counts, verify, verify_segments
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.privacy.accounting.composition import PrivacyLoss
from service.privacy.accounting.groups import UnitBound
from service.privacy.currency import capacity
from service.store import publications, streams, tables
from service.store.database import Database
from service.store.publications import NewPublication
from service.streams.schema import stored_schema
from service.streams.units import UnitState, UnitStates, counting_slots
from tests.conftest import World
from tests.mechanisms import cases
from tests.worker.published import Bench, published
from tests.worker.test_confirmation import seen_while_a_worker_publishes

M, SEPARATION = 4, 3
SCHEMA = {
    "features": 1,
    "task": {"kind": "classification", "classes": 2},
    "norm_bound": 1.0,
    "feature_map": None,
    "unit": {"max_records": M, "min_separation": SEPARATION},
}
GAUSSIAN, PURE = {"epsilon": 1, "delta": 1e-6}, {"epsilon": 1, "delta": 0}
LEADER = {"mechanism": {"kind": "online_leader", "batch": 4}, "learner": {"kind": "noisy_gradient_descent"}}
(WINDOWS,) = cases.of_families("OF_UNITS").values()
SUMS = {"mechanism": WINDOWS | {"block": 4, "blocks": 2}, "learner": {"kind": "output_perturbation"}}
TASKS = {"mechanism": {"kind": "lifelong", "task_size": [4, 8], "batch": 4}, "learner": SUMS["learner"]}
WINDOW = {"mechanism": {"kind": "sliding_window", "block": 4, "blocks": 2}, "learner": LEADER["learner"]}
SELECTED = {
    "mechanism": {"kind": "active_learning", "batching": "fixed_window", "size": 4},
    "learner": LEADER["learner"],
}
SCALES = {"mechanism": {"kind": "preparation", "records": 8}}
TILTED = WINDOW | {"learner": {"kind": "objective_perturbation"}}
PERTURBED = WINDOW | {"learner": {"kind": "output_perturbation", "solver": "psgd"}}
PATTERN = np.array([0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 1, 0, 0, 0, 0, 0, 2, 3, 1, 0, 0, 0, 0, 0], dtype=np.int64)


def records() -> dict[str, np.ndarray]:
    """The last five slots are over the bound: of their batch no slot counts."""
    bound = UnitBound(max_records=M, min_separation=SEPARATION)
    counts, _ = counting_slots(bound, UnitStates.of([UnitState()] * 4), PATTERN, 0)
    return {
        "x": np.where(counts, 0.5, 0.0).astype(np.float32)[:, None],
        "y": counts.astype(np.int32),
        "unit": np.repeat(PATTERN.astype(np.uint8)[:, None], 16, axis=1),
        "counts": counts.astype(np.uint8),
    }


@pytest.fixture(params=[LEADER | {"privacy": GAUSSIAN}], ids=["leader"])
def bench(world: World, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with published(world, SCHEMA, request.param, records(), epsilon=1) as bench:
        yield bench


kinds = pytest.mark.parametrize(
    "bench",
    [
        LEADER | {"privacy": GAUSSIAN},
        LEADER | {"privacy": PURE},
        SUMS | {"privacy": GAUSSIAN},
        TASKS | {"privacy": GAUSSIAN},
        WINDOW | {"privacy": GAUSSIAN},
        PERTURBED | {"privacy": PURE},
        TILTED | {"privacy": PURE},
    ],
    ids=["leader", "leader, pure", "sums", "tasks", "window", "perturbed, pure", "tilted, pure"],
    indirect=True,
)


def findings(bench: Bench) -> list[str]:
    with bench.database.transaction() as connection:
        broken = verify(connection).findings
    broken += verify_segments(bench.database, bench.files)
    with bench.database.transaction() as connection:
        return broken + over_cap.violations(connection)


def stop(bench: Bench) -> None:
    with bench.database.transaction() as connection:
        open_entry(connection, publications.get(connection, bench.identity)).end("stopped")


def reserved(bench: Bench, start: int) -> PrivacyLoss:
    with bench.database.transaction() as connection:
        of_it = publications.of_stream(connection, bench.stream().id)
        return reservations.reserved(connection, bench.stream().id, of_it)


def another(name: str = "q", start: int = 0, **privacy: float) -> NewPublication:
    configuration = {"publish_delay": 0, "privacy": privacy} | LEADER
    mechanism = build(stored_schema(SCHEMA), PublicationConfiguration.model_validate(configuration))
    return NewPublication(
        name=name,
        start=start,
        configuration=configuration,
        plan=mechanism.plan(),
        obligations=mechanism.obligations(),
        kind=mechanism.currency,
        epsilon=Decimal(str(privacy["epsilon"])),
        delta=Decimal(str(privacy["delta"])),
        due=start + mechanism.next_time(0),
        publish_delay=Decimal(0),
    )


def admit(bench: Bench, new: NewPublication) -> publications.Publication:
    with bench.database.transaction() as connection:
        return open_ledger(connection, bench.stream().id).admit(new)


@pytest.mark.more
@kinds
def test_what_is_spent_is_the_units_and_within_what_was_promised(bench: Bench):
    bench.publish_all()
    now = bench.now()
    assert now.position == len(PATTERN)
    assert findings(bench) == []
    factor = Fraction(now.unit_factor)
    with bench.database.transaction() as connection:
        (*_, (_, _, spent)) = spending.exact(connection, now.stream_id, 4, 5)
        releases = connection.execute(
            select(tables.releases.c.model, tables.releases.c.fit_start, tables.releases.c.fit_stop)
        ).all()
    amount = Fraction(now.worst_amount) * factor
    if now.kind == "pure":
        assert spent.epsilon == amount <= 1
    else:
        assert 0 < spent.epsilon <= 1
        assert spent.delta == Fraction("0.000001")
    assert reserved(bench, 0) == PrivacyLoss.of(now.epsilon, now.delta)
    counts = records()["counts"].astype(bool)
    for model, start, end in releases:
        here = counts & (np.arange(len(PATTERN)) >= start) & (np.arange(len(PATTERN)) < end)
        assert model["units"] == len(set(PATTERN[here].tolist()))


@pytest.mark.more
@kinds
def test_whoever_stops_a_publication_that_has_charged_gets_nothing_back(bench: Bench):
    """Not on slots that it never read either: its units may come again."""
    bench.publish_all()
    stop(bench)
    now = bench.now()
    assert reserved(bench, 0) == PrivacyLoss.of(now.epsilon, now.delta)
    for start in (0, len(PATTERN), 10**9):
        with pytest.raises(BudgetExceeded):
            admit(bench, another(start=start, epsilon=0.1, delta=0))
    assert findings(bench) == []


def test_a_publication_that_ended_before_it_charged_anything_gives_all_back(bench: Bench):
    stop(bench)
    assert reserved(bench, 0) == PrivacyLoss()
    admit(bench, another(epsilon=1, delta=0))
    assert findings(bench) == []


@pytest.mark.more
@kinds
def test_a_factor_that_somebody_changed_is_found(bench: Bench):
    """Also if the digests are made to fit."""
    bench.publish_all()
    now = bench.now()
    unit = now.obligations["unit"]
    for other in (unit | {"factor": "1"}, unit | {"max_records": 1}, unit | {"min_separation": 10**6}, None):
        forged = now.obligations | {"unit": other}
        with bench.database.engine.connect() as connection, connection.begin() as transaction:
            connection.execute(update(tables.publications).values(obligations=forged))
            changed = publications.get(connection, now.id)
            digest = publications.obligations_digest(changed)
            connection.execute(update(tables.publications).values(obligations_digest=digest))
            broken = verify(connection, isolated=False).findings
            transaction.rollback()
        assert [each for each in broken if "less often" in each or "units of its stream" in each], other


def test_charges_that_pass_the_cap_only_as_often_as_a_unit_pays_them_are_found(bench: Bench):
    bench.publish_all()
    owner = Database(str(bench.world.settings.migration_url))
    with owner.engine.connect() as connection, connection.begin() as transaction:
        connection.execute(text("ALTER TABLE charges DISABLE TRIGGER append_only"))
        connection.execute(update(tables.charges).values(rho=2 * tables.charges.c.rho))
        broken = verify(connection, isolated=False).findings
        transaction.rollback()
    owner.close()
    assert [each for each in broken if "its charges pass its cap" in each]


@pytest.mark.more
@kinds
def test_a_number_of_units_that_somebody_changed_is_found(bench: Bench):
    """The releases' digests are made to fit: nothing but the pattern tells."""
    bench.publish_all()
    owner = Database(str(bench.world.settings.migration_url))
    with owner.transaction() as connection:
        connection.execute(text("ALTER TABLE releases DISABLE TRIGGER append_only"))
        newest = connection.scalar(select(func.max(tables.releases.c.version)))
        model = connection.scalar(select(tables.releases.c.model).where(tables.releases.c.version == newest))
        changed = update(tables.releases).where(tables.releases.c.version == newest)
        connection.execute(changed.values(model=model | {"units": model["units"] + 1}))
        connection.execute(text("ALTER TABLE releases ENABLE ALWAYS TRIGGER append_only"))
    owner.close()
    (finding,) = verify_segments(bench.database, bench.files)
    assert finding.startswith(f"publication p, version {newest}: it is of {model['units'] + 1} units, and its records")


def test_releases_whose_slots_are_dropped_while_they_are_counted_are_no_finding(bench: Bench, monkeypatch):
    bench.publish_all()
    real = unit_counts._units

    def dropped(*args, **options):
        with bench.database.transaction() as connection:
            connection.execute(tables.segments.delete())
        return real(*args, **options)

    monkeypatch.setattr(unit_counts, "_units", dropped)
    assert list(unit_counts.recounted(bench.database, bench.files, bench.stream())) == []


@pytest.mark.more
@kinds
def test_a_unit_whose_slots_are_lost_has_spent_no_less_than_it_has(bench: Bench):
    """Whichever slots of it are known; and not more than the most that so many slots may be charged."""
    bench.publish_all()
    mine = np.flatnonzero((PATTERN == 0) & (records()["counts"] == 1)).tolist()
    with bench.database.transaction() as connection:

        def spent(slots: list[int], lost: spending.Lost) -> Fraction:
            return spending.of_unit(connection, bench.stream().id, slots, M, lost=lost).epsilon

        truth = spent(mine, spending.Lost())
        assert truth > 0
        for first in range(1, len(mine)):
            bound = spent(mine[first:], spending.Lost(slots=first, before=mine[-1]))
            assert truth <= bound <= 1
            assert spent(mine[first:], spending.Lost()) < bound


def test_what_is_committed_while_a_unit_is_looked_up_takes_nothing_off(bench: Bench, monkeypatch):
    monkeypatch.setattr(units, "pseudonym", lambda *_: records()["unit"][0].tobytes())
    seen = seen_while_a_worker_publishes(bench, monkeypatch, "/v1/streams/s/units/any")
    assert (seen["spent"]["epsilon"], len(seen["records"])) == (0, M)


@pytest.mark.parametrize("bench", [SCALES | {"privacy": GAUSSIAN}], ids=["scales"], indirect=True)
def test_scales_of_units_are_charged_a_part_and_stay_reserved(bench: Bench):
    bench.publish_all()
    now = bench.now()
    assert (now.position, now.state) == (8, "stopped")
    assert 0 < Fraction(now.worst_amount) * M <= capacity(now.epsilon, now.delta)[1]
    assert reserved(bench, 10**6) == PrivacyLoss.of(now.epsilon, now.delta)
    assert findings(bench) == []


@pytest.mark.parametrize(
    "bench", [SELECTED | {"privacy": each} for each in (GAUSSIAN, PURE)], ids=["gaussian", "pure"], indirect=True
)
def test_slots_are_charged_a_part_when_their_coins_are_tossed(bench: Bench):
    bench.publish_all()
    now = bench.now()
    assert now.position == len(PATTERN)
    promised = capacity(now.epsilon, now.delta)[1]
    with bench.database.transaction() as connection:
        (*_, (_, _, spent)) = spending.exact(connection, now.stream_id, 4, 5)
    assert 0 < Fraction(now.worst_amount) * M <= promised
    assert 0 < spent.epsilon <= 1
    assert reserved(bench, 10**6) == PrivacyLoss.of(now.epsilon, now.delta)
    assert findings(bench) == []


def test_a_stream_without_units_knows_none(bench: Bench, world: World):
    with bench.database.transaction() as connection:
        plain = streams.create(
            connection,
            name="plain",
            log="plain",
            schema={name: value for name, value in SCHEMA.items() if name != "unit"},
            retention="keep",
            epsilon=Decimal(1),
            delta=Decimal(0),
        )
        assert plain.unit_secret_digest is None
        with pytest.raises(streams.SecretLost):
            streams.secret_of_units(connection, plain)
