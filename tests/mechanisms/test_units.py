"""Publications on streams with units: what a slot may be charged, and that a unit is one contribution."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest

from service.inputs.refused import Refused
from service.learning.noisy_gradient_descent import clipped_sum, steepness
from service.learning.optimization.objective import summed
from service.learning.records import Records
from service.mechanisms.admission import admit
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.lifelong import encoder_pass
from service.mechanisms.mechanism import Model
from service.mechanisms.preparation.cells import counts_of
from service.mechanisms.registry import MECHANISMS
from service.mechanisms.released_models import Made, Predictions, Progress
from service.mechanisms.scheduled.mechanism import Fitting
from service.mechanisms.units import UnitTerms, of_carried_noise
from service.privacy.accounting.events.objective import curvature
from service.privacy.accounting.groups import UnitBound
from service.privacy.accounting.obligations import Obligations
from service.privacy.currency import Currency, capacity
from service.privacy.noise.sparse_vector import STEPS
from service.streams.schema import stored_schema
from service.streams.units import contributions
from tests.mechanisms import cases

DESCENT, OUTPUT = {"kind": "noisy_gradient_descent"}, {"kind": "output_perturbation"}
TILTED = {"kind": "objective_perturbation"}
STEEP = OUTPUT | {"loss": "huber_hinge", "regularization": 4.0}
"""The corner of the loss is far from what records can reach: at the centre they pull with all their force."""
LEADER = {"kind": "online_leader", "batch": 100}
(SUMS,) = cases.of_families("OF_UNITS").values()
WINDOW = {"kind": "sliding_window", "block": 8, "blocks": 3}
TASKS = {"kind": "lifelong", "task_size": 8}
SCALES = {"kind": "preparation", "records": 16}
EVALUATION = {"kind": "evaluation", "of": ["a", "b"], "block": 4}


def schema(unit=None):
    stored = {"features": 2, "task": {"kind": "classification", "classes": 2}}
    return stored_schema(stored if unit is None else stored | {"unit": unit})


def made(mechanism, learner=DESCENT, *, unit=None, epsilon=1, delta=1e-6):
    configuration = {"mechanism": mechanism, "learner": learner, "privacy": {"epsilon": epsilon, "delta": delta}}
    return build(schema(unit), PublicationConfiguration.model_validate(configuration))


def scale(mechanism):
    return mechanism.plan()["fits"][0]["noise"]["scale"]


@pytest.mark.parametrize(("separation", "times"), [(1, 10.4), (16 * 100, 5.1), (64 * 100, 4.2)])
def test_noise_that_is_carried_on_grows_as_the_law_says(separation, times):
    unit = {"max_records": 16, "min_separation": separation}
    ratio = scale(made(LEADER, unit=unit)) / scale(made(LEADER))
    assert times - 0.15 < ratio <= times


@pytest.mark.parametrize(
    ("mechanism", "learner", "delta", "factor"),
    [
        (LEADER, DESCENT, 0, 16),
        (LEADER | {"noise": "tree"}, DESCENT, 1e-6, 256),
        (SUMS, OUTPUT, 0, 16),
        (SUMS | {"blocks": 1}, OUTPUT, 1e-6, 16),
        (TASKS | {"memory": 2}, OUTPUT, 1e-6, 16),
        (TASKS, OUTPUT, 0, 16),
        (WINDOW, DESCENT, 1e-6, 16),
        (WINDOW, OUTPUT, 1e-6, 16),
        (WINDOW, OUTPUT, 0, 16),
        (WINDOW, TILTED, 1e-6, 16),
        (WINDOW, TILTED, 0, 16),
        (SCALES, None, 1e-6, 16),
        (EVALUATION, None, 0, 16),
    ],
)
def test_a_slot_may_be_charged_a_factors_part_of_what_a_unit_was_promised(mechanism, learner, delta, factor):
    alone = made(mechanism, learner, delta=delta)
    built = made(mechanism, learner, delta=delta, unit={"max_records": 16})
    assert factor <= built.factor < factor * (1 + Fraction(1, 1000))
    assert built.capacity * built.factor == alone.capacity == capacity(built.privacy.epsilon, built.privacy.delta)[1]
    plan = built.plan()
    assert plan["lifetime"]["epsilon"] == pytest.approx(alone.plan()["lifetime"]["epsilon"], abs=1e-12)
    assert plan["guarantee"]["unit"]["max_records"] == 16
    assert plan["fits"][0]["charge"] <= built.capacity
    owed = Obligations.from_json(built.obligations().to_json())
    assert UnitTerms.from_json(owed.unit) == built.unit
    assert "unit" not in alone.obligations().to_json()


@pytest.mark.parametrize(("delta", "slots"), [(0, 1), (0, 3), (0, 16), (1e-6, 1), (1e-6, 3), (1e-6, 16)])
def test_all_slots_of_a_unit_cost_what_queries_were_promised_and_no_more(delta, slots):
    """By the definitions: a unit's slots move each value by so many STEPS, in all instances that there can be."""
    task = {"task": {"kind": "categorical", "cardinality": 5}, "unit": {"max_records": slots}}
    body = {"mechanism": {"kind": "linear_queries", "first": 8, "hits": 2}, "privacy": {"epsilon": 1, "delta": delta}}
    built = build(stored_schema(task), PublicationConfiguration.model_validate(body))
    ratio = Fraction(slots * STEPS) / Fraction(built.plan()["first_instance"]["scale"])
    costs = [2 * ratio, ratio] if not delta else [(2 * ratio) ** 2 / 2, ratio**2 / 2]
    assert 0.999 < 2 * sum(costs) / capacity(built.privacy.epsilon, built.privacy.delta)[1] <= 1
    assert built.plan()["lifetime"]["epsilon"] == pytest.approx(1, abs=1e-9)


def test_draws_of_a_unit_are_those_of_all_its_slots():
    alone, built = (made(LEADER, delta=0, unit=unit) for unit in (None, {"max_records": 16}))
    assert built.guarantee()["sampling"]["draws"] == 16 * alone.guarantee()["sampling"]["draws"] > 0
    body = {"mechanism": LEADER, "learner": DESCENT, "privacy": {"epsilon": 12, "delta": 0}}
    configuration = PublicationConfiguration.model_validate(body)
    admit(schema(), configuration)
    with pytest.raises(Refused, match="epsilon must be at most"):
        admit(schema({"max_records": 2**16}), configuration)


@pytest.mark.parametrize(
    ("mechanism", "learner"),
    [(LEADER | {"batch": 2**40}, DESCENT), (SUMS | {"block": 2**40}, OUTPUT), (TASKS | {"task_size": 2**40}, OUTPUT)],
    ids=lambda each: each["kind"],
)
def test_batches_too_large_to_add_up_are_refused_with_units_too(mechanism, learner):
    for unit in (None, {"max_records": 16}):
        with pytest.raises(Refused, match="double precision"):
            made(mechanism, learner, unit=unit)


def examples():
    for family in MECHANISMS:
        for name, settings in family.examples.items():
            yield pytest.param(settings, id=name)


@pytest.mark.more
@pytest.mark.parametrize("settings", list(examples()))
@pytest.mark.parametrize("learner", [DESCENT, OUTPUT, TILTED, None], ids=["descent", "output", "tilted", "none"])
def test_a_mechanism_that_nobody_has_shown_is_refused_on_a_stream_with_units(settings, learner):
    known = {
        "online_leader": {} if settings.keys() & {"expiry", "steps"} else DESCENT,
        SUMS["kind"]: OUTPUT,
        "lifelong": OUTPUT,
        "active_learning": DESCENT,
        "preparation": {} if settings.get("of") == "whiten" else None,
        "evaluation": None,
    }.get(settings["kind"], [DESCENT, OUTPUT, TILTED] if MECHANISMS[settings["kind"]].takes_learner else {})
    unit = {"max_records": 4, "min_separation": 2}
    if settings.get("encoder") and not encoder_pass.available():
        known = {}
    if learner in (known if isinstance(known, list) else [known]):
        assert made(settings, learner, unit=unit).unit.bound.max_records == 4
        return
    with pytest.raises((Refused, ValueError)):
        made(settings, learner, unit=unit)


def test_a_learner_that_takes_each_record_by_itself_takes_no_units():
    records = Records(x=np.zeros((1, 2), dtype=np.float32), y=np.zeros(1), weights=np.ones(1), units=1)
    with pytest.raises(ValueError, match="have units"):
        made(WINDOW, OUTPUT).learner.prepared(records)


CORNERS = [(x, y) for x in ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0)) for y in (0, 1)]


def of_one_unit(contents):
    """Return records of one unit, of which those with content None are gone: their part stays theirs."""
    shares = contributions(np.zeros(len(contents), dtype=np.int64))
    here = [place for place, each in enumerate(contents) if each is not None]
    x = np.array([contents[place][0] for place in here], dtype=np.float32).reshape(-1, 2)
    y = np.array([contents[place][1] for place in here], dtype=np.int32)
    return Records(
        x=x,
        y=y,
        weights=shares[here],
        units=1,
        owners=np.zeros(len(here), dtype=np.int64),
        firsts=np.array([place == 0 for place in here], dtype=np.bool_),
    )


def without_tilt(learner, tilted):
    """Return what a fit near 0 takes that has no tilt."""
    return np.zeros(learner.shape), tilted, np.zeros(learner.shape)


def gradient(learner, records, weights):
    rows, y, shares = learner.weighed(records)
    return summed(learner.loss, rows, y, weights, steepest=steepness(rows, learner.longest), shares=shares)[1]


@pytest.mark.parametrize("what", ["gradients", "statistics", "exact", "psgd", "gradient_descent", "tilted"])
def test_all_records_of_a_unit_together_move_a_sum_as_far_as_one(what):
    """Whatever they are and whichever are gone; and some of them that far."""
    if what == "gradients":
        learner = made(LEADER).learner
        weights = np.full(learner.shape, 0.3)
        most = clipped_sum(learner, clip=learner.longest, records=100, weights=1.0)
        value = lambda records: gradient(learner, records, weights)  # noqa: E731
    elif what in ("exact", "psgd", "gradient_descent"):
        learner = made(WINDOW, STEEP | {"solver": what}).learner
        most = learner.sensitivity(1)
        value = lambda records: learner.fit(records, 1, np.zeros(learner.shape))  # noqa: E731
    elif what == "tilted":
        learner = made(WINDOW, STEEP | {"kind": "objective_perturbation"}).learner
        tilted = learner.perturbation(Currency.PURE, 8.0, 1)
        most = tilted.sensitivity / tilted.regularization + tilted.output_sensitivity
        value = lambda records: learner.fit(records, 1, *without_tilt(learner, tilted))  # noqa: E731
    else:
        learner = made(SUMS, OUTPUT).learner
        most = learner.perturbation(made(SUMS, OUTPUT).currency, 0.1, 8).sensitivity
        value = lambda records: learner.statistics(records, 8)  # noqa: E731
    for size in (1, 3):
        contents = (
            list(product([*CORNERS, None], repeat=size))
            if size == 1
            else [
                *[(each,) * size for each in [*CORNERS, None]],
                *[(CORNERS[0], each, None) for each in CORNERS],
                *[(CORNERS[1], CORNERS[4], each) for each in CORNERS],
            ]
        )
        sums = [value(of_one_unit(each)) for each in contents]
        farthest = max(float(np.linalg.norm(one - other)) for one, other in product(sums, repeat=2))
        assert 0.7 * most < farthest <= most


def test_the_curvature_of_all_records_of_a_unit_costs_no_more_than_is_stated():
    """How the density of models changes from a unit to none, by how minimisers follow the tilt; at worst orthogonal."""
    learner = made(WINDOW, TILTED | {"regularization": 0.1, "intercept": False}).learner
    tilted = learner.perturbation(Currency.PURE, 8.0, 1)
    assert tilted.regularization == 0.1
    stated = curvature(rank=tilted.rank, steepness=tilted.steepness, records=1, regularization=0.1)

    def follows(contents):
        records, step = of_one_unit(contents), 0.01
        ends = [
            learner.fit(records, 1, np.zeros(learner.shape), tilted, sign * step * tilt)
            for tilt in np.eye(learner.dimension).reshape(-1, *learner.shape)
            for sign in (1, -1)
        ]
        moved = (np.array(ends[::2]) - np.array(ends[1::2])) / (2 * step)
        return np.log(np.abs(np.linalg.det(moved.reshape(learner.dimension, -1))))

    nobody = follows(())
    for contents in ((CORNERS[0],), (CORNERS[4], CORNERS[5]), (CORNERS[0], CORNERS[1], CORNERS[4], CORNERS[5])):
        assert nobody - follows(contents) < stated + 0.02


class Signs:
    """Publications whose only model predicts whether the first feature is above 0, with the same confidence always."""

    def progress(self, name, first_slot):
        return Progress(releases=(Made(version=1, time=0),), passed=first_slot)

    def predict(self, name, version, x):
        return Predictions(labels=(x[:, 0] > 0).astype(int), confidences=np.full(len(x), 0.9))


def first_slots(contents, start, end):
    """Return records of one unit in slots 0, 1, … of a range, those with content None gone."""
    slots = [slot for slot, each in enumerate(contents) if each is not None and start <= slot < end]
    return replace(of_one_unit(contents[start:end]), slots=np.array(slots, dtype=np.int64))


@pytest.mark.parametrize("mechanism", [SCALES, EVALUATION], ids=lambda each: each["kind"])
def test_all_records_of_a_unit_together_move_counts_as_far_as_one(monkeypatch, mechanism):
    """Whatever they are and whichever are gone; and some of them that far."""
    monkeypatch.setattr(
        "service.privacy.noise.counts.discrete_gaussian", lambda variance, size: np.zeros(size, np.int64)
    )
    monkeypatch.setattr("service.mechanisms.evaluation.mechanism.AT_ONCE", 1)  # no unit may come in several pieces
    built = made(mechanism, None, unit={"max_records": 3})
    if mechanism is EVALUATION:
        built = replace(built, models=Signs())
    change = built.change if mechanism is SCALES else built.counts.change

    def counts(contents):
        (release,) = built.step(
            built.next_time(0), (), 1, lambda start, end: first_slots(contents, start, end)
        ).releases
        return release.parameters

    tables = [counts(each) for each in product([*CORNERS, None], repeat=3)]
    farthest = max(float(np.square(one - other).sum()) for one, other in combinations(tables, 2))
    assert farthest == change.squared_l2


def test_a_block_of_units_set_aside_is_of_as_many_slots_as_they_have_on_average():
    aside = {"features": 2, "task": {"kind": "classification", "classes": 2}, "unit": {"max_records": 3}}
    body = {"mechanism": EVALUATION, "privacy": {"epsilon": 1, "delta": 0}}
    configuration = PublicationConfiguration.model_validate(body)
    built = build(stored_schema(aside | {"evaluation": {"every": 5}}), configuration, start=3)
    plan = built.plan()
    assert plan["first_releases"][:3] == [20, 40, 60]
    assert plan["fits"][0]["when"] == "every 20 records, those of units set aside, 4 on average"
    assert plan["accuracy"] == made(EVALUATION, None, unit={"max_records": 3}, delta=0).plan()["accuracy"]
    assert (built.first_slot(40), built.reads(40), built.needs(25)) == (23, 20, 20)
    with pytest.raises(Refused, match="at most 5 where every 200000-th unit"):
        build(
            stored_schema(aside | {"evaluation": {"every": 200_000}}),
            configuration.model_copy(update={"mechanism": configuration.mechanism.model_copy(update={"block": 6})}),
        )


def test_counts_are_of_the_first_slots_of_units_and_scales_of_as_many_as_there_are(monkeypatch):
    monkeypatch.setattr(
        "service.privacy.noise.counts.discrete_gaussian", lambda variance, size: np.zeros(size, np.int64)
    )
    built = made(SCALES, None, unit={"max_records": 3})
    x = np.array([[1.0, 2.0], [8.0, 8.0], [1.0, 2.0]], dtype=np.float32)
    shares = contributions(np.array([0, 0, 1]))
    records = Records(x=x, y=np.zeros(3), weights=shares, units=2, firsts=np.array([True, False, True]))
    (release,) = built.step(16, (), 1, lambda start, end: records).releases
    assert np.array_equal(release.parameters, 2 * counts_of(x[:1]))
    assert release.model["units"] == 2
    nobody = Records(x=x[:0], y=np.zeros(0), weights=np.zeros(0), units=0, firsts=np.zeros(0, dtype=bool))
    (release,) = built.step(16, (), 1, lambda start, end: nobody).releases
    assert not release.parameters.any()
    with pytest.raises(ValueError, match="first slots"):
        built.step(16, (), 1, lambda start, end: replace(records, firsts=None))


def test_noise_is_for_as_many_units_as_a_fit_has_and_a_plan_knows_the_least_of_it():
    batches = {"kind": "independent_batches", "batch": 8}
    built = made(batches, OUTPUT, unit={"max_records": 4})
    x, owners = np.zeros((8, 2), dtype=np.float32), np.repeat([0, 1], 4)
    records = Records(x=x, y=np.zeros(8), weights=contributions(owners), units=2, owners=owners)
    (release,) = built.step(8, (), 1, lambda start, end: records).releases
    (alone,) = (
        made(batches, OUTPUT).step(8, (), 1, lambda start, end: replace(records, weights=None, units=None)).releases
    )
    assert release.perturbation.sensitivity == pytest.approx(4 * alone.perturbation.sensitivity)
    assert release.model["units"] == 2
    for fit in built.plan()["fits"]:
        assert fit["noise"]["scale"] is fit["sensitivity"] is None
        assert fit["at_least"]["scale"] < release.perturbation.noise.scale
        assert "number of units" in fit["at_least"]["why"]


def test_two_units_of_many_records_are_two_contributions():
    learner = made(SUMS, OUTPUT).learner
    one = Records(x=np.array([[1.0, 0.0]], dtype=np.float32), y=np.ones(1, dtype=np.int32))
    shares = contributions(np.array([0, 1, 1, 1]))
    many = Records(x=np.tile(one.x, (4, 1)), y=np.ones(4, dtype=np.int32), weights=shares, units=2)
    assert learner.statistics(many, 4) == pytest.approx(2 * learner.statistics(one, 4))


@pytest.mark.parametrize("mechanism", [LEADER | {"batch": 4}, SUMS | {"block": 4}], ids=lambda each: each["kind"])
def test_a_batch_without_any_unit_is_a_step_all_the_same(mechanism):
    built = made(mechanism, OUTPUT if mechanism["kind"] == SUMS["kind"] else DESCENT, unit={"max_records": 2})
    nobody = Records(x=np.zeros((0, 2), dtype=np.float32), y=np.zeros(0), weights=np.zeros(0), units=0)
    chain, released = (), []
    for time in (4, 8, 12):
        step = built.step(time, chain, time // 4, lambda start, end: nobody)
        chain = step.chain
        released += step.releases
    assert [each.model["units"] for each in released] == [0, 0, 0]
    assert all(np.isfinite(each.parameters).all() and each.charge > 0 for each in released)


def test_a_fit_of_no_unit_releases_nothing_and_charges_nothing():
    built = made(WINDOW, unit={"max_records": 2})
    nobody = Records(x=np.zeros((0, 2), dtype=np.float32), y=np.zeros(0), weights=np.zeros(0), units=0)
    somebody = Records(
        x=np.ones((4, 2), dtype=np.float32),
        y=np.ones(4, dtype=np.int32),
        weights=contributions(np.zeros(4, dtype=int)),
        units=1,
    )
    time, chain = 0, ()
    for number in range(12):
        time = built.next_time(time)
        step = built.step(time, chain, 1, lambda start, end: nobody if number % 3 == 0 else somebody)  # noqa: B023
        chain = step.chain
        assert bool(step.releases) == (number % 3 != 0)
        assert all(each.model["units"] == 1 for each in step.releases)


def test_the_last_model_stands_in_for_one_that_a_fit_of_no_unit_did_not_make():
    of_units, last = SimpleNamespace(unit="some"), Model(version=3, parameters=np.zeros((2, 3)))
    near, apart = SimpleNamespace(depth=2, near=1), SimpleNamespace(depth=2, near=None)
    assert Fitting._parent(of_units, near, [last]) is last
    assert Fitting._parent(of_units, near, []) is None
    assert Fitting._parent(of_units, apart, [last]) is None


def test_rounding_is_reckoned_for_the_noise_of_the_charge_that_a_slot_of_a_unit_gets():
    planned, factors = made(LEADER).first_noise(), []
    factor = of_carried_noise(UnitBound(max_records=4), 100, planned, lambda each: factors.append(each) or planned)
    assert factors[-1] == factor
