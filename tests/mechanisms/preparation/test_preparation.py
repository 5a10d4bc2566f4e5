"""Preparation: which cells a record is in, which scales follow, and that no record moves the counts further."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.inputs.refused import Refused
from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.features import ReleasedMap, schema_of_features
from service.mechanisms.preparation.cells import CELLS, LOWER, UPPER, ZERO, cells_of, counts_of
from service.mechanisms.preparation.family import FAMILY
from service.mechanisms.preparation.once import NEVER
from service.mechanisms.preparation.scales import full_scales, scales
from service.mechanisms.timing import BYTES_OF_BLOCKS, fit_cost
from service.privacy.noise.samplers import discrete_gaussian
from service.streams.feature_maps import steps_of
from service.streams.schema import StreamSchema
from service.streams.units import contributions
from tests.mechanisms import contract

TWO = {"features": 3, "task": {"kind": "classification", "classes": 2}}
SCALE = {"kind": "preparation", "records": 64}
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def prepared(records=64, delta=1e-6, rule=None, **stream):
    schema = StreamSchema.model_validate(TWO | stream)
    return build(schema, contract.configured(SCALE | {"records": records, "rule": rule}, None, delta))


def reading(x):
    return lambda start, end: Records(x=x[start:end].astype(np.float32), y=np.zeros(len(x[start:end])))


def without_noise(monkeypatch):
    monkeypatch.setattr(
        "service.privacy.noise.counts.discrete_gaussian", lambda variance, size: np.zeros(size, np.int64)
    )


@settings(max_examples=200, deadline=None)
@given(floats)
def test_each_number_is_in_the_one_cell_whose_edges_hold_it(x):
    cell = int(cells_of(np.array([x]))[0])
    if cell == ZERO:
        assert abs(x) < 2.0**-20
    else:
        near, far = sorted((abs(LOWER[cell]), abs(UPPER[cell])))
        assert near <= abs(x)
        assert abs(x) < far or abs(x) >= 2.0**20
        assert (cell > ZERO) == (x > 0)
    assert cells_of(np.array([-x]))[0] == 2 * ZERO - cell


@pytest.mark.parametrize("of", ["scale", "whiten"])
def test_evaluation_slots_alone_are_nothing_to_prepare_from(of):
    """Slot 1 is one of them, and slot 2 is none."""
    schema = StreamSchema.model_validate(TWO | {"evaluation": {"every": 2}})
    one = contract.configured(SCALE | {"records": 1, "of": of}, None, 1e-6)
    assert build(schema, one, start=2).plan()["fits"][0]["charge"] > 0
    with pytest.raises(Refused, match="evaluation slots"):
        build(schema, one, start=1)


def test_edges_of_cells_meet_and_are_half_octaves():
    assert CELLS == 161
    assert np.array_equal(UPPER[ZERO + 1 : -1], LOWER[ZERO + 2 :])
    assert np.allclose(UPPER[ZERO + 1 :] / LOWER[ZERO + 1 :], math.sqrt(2))
    assert (LOWER[ZERO], UPPER[ZERO]) == (0.0, 0.0)
    assert (LOWER[ZERO + 1], UPPER[-1]) == (2.0**-20, 2.0**20)


@settings(max_examples=200, deadline=None)
@given(
    arrays.arrays(np.float32, (4, 3), elements=floats),
    arrays.arrays(np.float32, 3, elements=st.floats(width=32)),
)
def test_no_record_moves_the_counts_further_than_the_noise_is_for(x, other):
    """Replaced by any other, one that is not finite included, or by none."""
    change = prepared().change
    replaced = np.vstack([other[None], x[1:]])
    for neighbour in (counts_of(replaced), counts_of(x[1:])):
        moved = counts_of(x) - neighbour
        assert np.abs(moved).sum() <= change.l1
        assert np.square(moved).sum() <= change.squared_l2


def test_records_that_differ_in_the_cell_of_every_feature_move_them_just_as_far():
    change = prepared().change
    moved = counts_of(np.ones((1, 3))) - counts_of(-np.ones((1, 3)))
    assert (np.abs(moved).sum(), np.square(moved).sum()) == (change.l1, change.squared_l2) == (6, 6)


@pytest.mark.parametrize("delta", contract.DELTAS)
def test_it_keeps_its_promise_and_ends_with_its_release(delta):
    schema = StreamSchema.model_validate(TWO)
    mechanism, (release,) = contract.keeps_its_promise(schema, contract.configured(SCALE, None, delta), releases=1)
    assert release.fit == release.window == (0, 64)
    assert release.charge == pytest.approx(float(mechanism.capacity))
    assert (mechanism.next_time(64), mechanism.needs(64)) == (NEVER, 64)
    assert mechanism.step(64, (), 1, contract.reader(schema)[0]).finishes


def test_scales_are_those_of_the_quantiles_however_large_or_shifted_columns_are(monkeypatch):
    without_noise(monkeypatch)
    drawn = np.random.default_rng(1).normal(size=(4096, 3))
    (release,) = prepared(4096).step(4096, (), 1, reading(drawn * [1.0, 1e4, 1e-3] + [0.0, 2e4, 0.0])).releases
    center, factor = (np.array(release.model["feature_map"][name]) for name in ("center", "factor"))
    assert np.allclose(1 / factor, [1.0, 1e4, 1e-3], rtol=0.25)
    assert np.allclose(center, [0.0, 2e4, 0.0], atol=[0.1, 2e3, 1e-4])


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([0.0] * 100, 0.0),  # constant
        ([700.0 + each for each in range(10)] * 10, 0.0),  # all in one cell
        ([0.0] * 90 + [1.0] * 10, 1.0),  # a flag that is rarely set
        ([0.0] * 50 + [1.0] * 50, 1.0),
        ([0.0] * 99 + [1e6], 0.0),
    ],
)
def test_columns_without_spread_become_zero_and_rare_flags_do_not(column, expected):
    _, factor = scales(counts_of(np.array(column)[:, None]), len(column))
    assert (factor[0] > expected) if expected else (factor[0] == 0.0)


@pytest.mark.parametrize("rule", [1, 2])
def test_the_map_follows_from_what_is_released_alone(rule):
    mechanism = prepared(rule=rule)
    drawn = np.random.default_rng(5).normal(size=(64, 3))
    for _ in range(20):
        (release,) = mechanism.step(64, (), 1, reading(drawn)).releases
        if rule == 1:
            expected = (*scales(release.parameters, 64), 3.0)
        else:
            scaling = full_scales(release.parameters, 64, mechanism.noise().deviation())
            expected = scaling.center, scaling.factor, scaling.limit
        described = release.model["feature_map"]
        released = (described["center"], described["factor"], described["limit"])
        assert released == (expected[0].tolist(), expected[1].tolist(), expected[2])


@pytest.mark.parametrize("rule", [1, 2])
def test_the_map_of_units_is_of_as_many_as_there_are(rule):
    mechanism = replace(prepared(8, rule=rule, unit={"max_records": 2}), capacity=Fraction(10**6))  # without noise
    units = np.repeat(np.arange(4), 2)
    records = Records(
        x=np.random.default_rng(6).normal(size=(8, 3)).astype(np.float32),
        y=np.zeros(8),
        weights=contributions(units),
        units=4,
        firsts=np.arange(8) % 2 == 0,
    )
    (release,) = mechanism.step(8, (), 1, lambda start, end: records).releases
    expected = full_scales(release.parameters, 4, mechanism.noise().deviation()).center
    if rule == 1:
        expected, _ = scales(release.parameters, 4)
    assert release.model["feature_map"]["center"] == expected.tolist()


def test_rule_2_fills_the_norm_with_what_is_left_of_outliers():
    """A tenth of the numbers are far out, where they are clipped: they take no more of the norm than that."""
    drawn = np.random.default_rng(8).normal(size=(2000, 2))
    drawn[::10] *= 1e4
    scaling = full_scales(counts_of(drawn), 2000, 0.0)
    mapped = np.clip((drawn - scaling.center) * scaling.factor, -scaling.limit, scaling.limit)
    assert np.sqrt((mapped**2).sum(axis=1).mean() / 2) == pytest.approx(1.2, rel=0.2)


def test_a_preparation_that_begins_now_has_rule_2_and_those_from_before_keep_rule_1():
    configuration = contract.configured(SCALE, None, 1e-6)
    assert "rule" not in configuration.stored()["mechanism"]
    assert build(StreamSchema.model_validate(TWO), configuration).rule == 1
    begun = configuration.begun()
    assert begun.stored()["mechanism"]["rule"] == build(StreamSchema.model_validate(TWO), begun).rule == 2
    assert contract.configured(SCALE | {"rule": 1}, None, 1e-6).begun().stored()["mechanism"]["rule"] == 1


def test_rule_2_keeps_columns_without_visible_spread_and_fills_the_norm():
    rng = np.random.default_rng(6)
    drawn = rng.normal(size=(5000, 4)) * [1.0, 8.0, 1e4, 0.0] + [0.0, 850.0, 2e4, 0.0]
    drawn[:100, 3] = 1.0
    noisy = counts_of(drawn) + discrete_gaussian(1600, 4 * CELLS).reshape(4, CELLS)  # ±40
    scaling = full_scales(noisy, 5000, 40.0)
    mapped = np.clip((drawn - scaling.center) * scaling.factor, -scaling.limit, scaling.limit)
    assert np.sqrt((mapped**2).sum(axis=1).mean() / 4) == pytest.approx(1.2, rel=0.4)
    gain = scaling.limit / 3.0
    assert (scaling.center[3], scaling.factor[3]) == (0.0, pytest.approx(gain))  # a flag that is rarely set
    assert 1.0 / 300.0 < scaling.factor[1] / gain < 1.0 / 100.0  # all in one cell, 724 to 1,024
    assert 0.7 < scaling.factor[0] / gain < 1.4
    assert np.abs(mapped[:, 0]).mean() > 3 * np.abs(mapped[:, 1]).mean() > 0


def test_rule_2_is_finite_where_there_is_noise_alone():
    for seed in range(20):
        noisy = np.rint(np.random.default_rng(seed).normal(size=(3, CELLS)) * 1e4)
        scaling = full_scales(noisy, 4, 1e4)
        assert np.isfinite([*scaling.center, *scaling.factor, scaling.limit]).all()
        assert scaling.factor.min() > 0
        assert scaling.factor.max() <= 1e9  # as a feature map takes them


def test_scales_hardly_feel_noise_in_the_many_empty_cells():
    drawn = np.random.default_rng(2).normal(size=(5000, 8))
    noisy = counts_of(drawn) + discrete_gaussian(1600, 8 * CELLS).reshape(8, CELLS)
    center, factor = scales(noisy, 5000)  # off by ±40 a cell: chances of a larger error are far below 1e-6
    assert np.abs(center).max() < 1.0
    assert 0.3 < factor.min() <= factor.max() < 3.0


def test_heavy_tails_are_clipped_and_the_norm_is_that_of_the_map(monkeypatch):
    without_noise(monkeypatch)
    drawn = np.random.default_rng(3).standard_cauchy(size=(2048, 3))
    (release,) = prepared(2048).step(2048, (), 1, reading(drawn)).releases
    mapped = ReleasedMap.of(release.model).reading(StreamSchema.model_validate(TWO), reading(drawn * 1e6))(0, 2048).x
    assert np.abs(mapped).max() == 3.0
    assert release.model["norm_bound"] == math.sqrt(3)


def test_the_map_follows_on_the_streams_own_and_reads_what_segments_hold():
    """Records in segments went through the stream's map; the released description is of both."""
    stream = {"feature_map": {"kind": "standardize", "mean": 5.0, "scale": 2.0}}
    schema = StreamSchema.model_validate(TWO | stream)
    x = np.random.default_rng(4).normal(5.0, 2.0, size=(64, 3)).astype(np.float32)
    stored = schema.mapping()(x)
    mechanism = prepared(**stream)
    (release,) = mechanism.step(64, (), 1, reading(stored)).releases
    released = ReleasedMap.of(release.model)
    described = schema_of_features(schema, released)
    assert [each["kind"] for each in steps_of(released.description)] == ["standardize", "clipped_scale"]
    assert np.allclose(released.reading(schema, reading(stored))(0, 64).x, described.mapping()(x), atol=1e-5)
    assert described.norm_bound == schema_of_features(schema, None).norm_bound == math.sqrt(3)


@pytest.mark.more
@pytest.mark.parametrize(("learner", "delta"), [*product(contract.linear_learners().values(), contract.DELTAS)])
def test_a_publication_with_features_of_another_keeps_its_promise_before_and_after_the_map_is_known(learner, delta):
    configuration = contract.configured({"kind": "independent_batches", "batch": 8}, learner, delta)
    configuration = configuration.model_validate(configuration.stored() | {"features": {"from": "scales"}})
    schema = StreamSchema.model_validate(TWO)
    (release,) = prepared().step(64, (), 1, contract.reader(schema)[0]).releases
    released = ReleasedMap.of(release.model)
    try:
        planned = build(schema, configuration)
    except Refused:
        return
    running = build(schema, configuration, released)
    assert planned.plan() == running.plan()
    assert planned.plan()["model"]["norm_bound"] == math.sqrt(3)
    contract.keeps_its_promise(schema, configuration)
    (fitted,) = running.step(8, (), 1, released.reading(schema, contract.reader(schema)[0])).releases
    assert fitted.perturbation == planned.step(8, (), 1, contract.reader(schema)[0]).releases[0].perturbation


@pytest.mark.parametrize(
    ("stream", "mechanism", "why"),
    [
        ({"features": None, "task": {"kind": "categorical", "cardinality": 3}}, SCALE, "no features to prepare"),
        ({"features": 5000}, SCALE, "at most 4096 features"),
        ({}, SCALE | {"features": True}, "takes no features"),
    ],
)
def test_what_cannot_be_prepared_is_refused(stream, mechanism, why):
    named = {"features": {"from": "other"}} if mechanism.pop("features", False) else {}
    configuration = contract.configured(mechanism, None, 1e-6)
    with pytest.raises(Refused, match=why):
        build(StreamSchema.model_validate(TWO | stream), configuration.model_validate(configuration.stored() | named))


def test_a_plan_warns_where_scales_are_mostly_noise():
    assert "warning" in prepared(64).plan()["scales"]
    assert "warning" not in prepared(100_000).plan()["scales"]


def test_a_plan_says_how_rough_scales_are_of_the_slots_that_are_read():
    """Where every second slot is set aside for evaluations, 2,000 are as good as 1,000."""
    halved = prepared(2000, evaluation={"every": 2}).plan()["scales"]
    assert halved == prepared(1000).plan()["scales"]
    assert "warning" in halved
    assert "warning" not in prepared(2000).plan()["scales"]


@pytest.mark.parametrize(("separation", "of_one"), [(1, 4), (1000, 2), (2000, 1)])
def test_a_plan_says_how_rough_scales_are_of_units_that_have_as_many_records_as_can_count(separation, of_one):
    mechanism = prepared(2000, unit={"max_records": 4, "min_separation": separation})
    apart = prepared(2000, unit={"max_records": 4, "min_separation": 2000})
    rough = mechanism.plan()["scales"]
    assert math.isclose(rough["rank_deviation"], of_one * apart.plan()["scales"]["rank_deviation"])
    assert "of the units:" in rough["warning"]


def test_of_units_it_reads_the_slots_that_it_charges_and_no_others():
    read = []

    def reading(start, end):
        read.append((start, end))
        each = np.ones(end - start)
        return Records(x=np.ones((len(each), 3)), y=each, weights=each, units=len(each), firsts=each > 0)

    (release,) = prepared(8, unit={"max_records": 2}).step(8, (), 1, reading).releases
    assert read == [release.fit] == [(0, 8)]


def test_what_names_no_features_is_stored_as_before():
    assert "features" not in contract.configured(SCALE, None, 0).stored()


def test_a_plan_needs_memory_for_the_records_that_are_read_at_a_time_and_no_more():
    many = 10**8
    size = (mechanism := prepared(records=many)).obligations().fit
    cost = fit_cost(size, many, in_blocks=mechanism.reads_blocks(many))
    assert cost.bytes < 2 * BYTES_OF_BLOCKS
    assert cost.seconds == fit_cost(size, many).seconds, "each record is read once"
    of_units = prepared(records=many, unit={"max_records": 2, "min_separation": 1})
    assert not of_units.reads_blocks(many), "whose the slots are must be known of all of them"


def test_counts_do_not_depend_on_how_many_numbers_are_counted_at_once(monkeypatch):
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    x[7, 1] = np.nan
    whole = counts_of(x)
    assert whole.sum() == 49 * 3
    monkeypatch.setattr("service.mechanisms.preparation.cells.COUNTED_AT_ONCE", 7)
    assert np.array_equal(counts_of(x), whole)


def test_nobody_evaluates_a_map():
    assert FAMILY.not_evaluated(FAMILY.settings) == "its release is a map of features"
