"""Schedule × learner: what is released, from what, at which price, and the plan that says so beforehand."""

import itertools
import json
from fractions import Fraction

import numpy as np
import pytest
from scipy import special

from service.learning.records import Records, prepare
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.linear import predict
from service.privacy.accounting.charges_by_record import ChargesByRecord
from service.privacy.currency import Currency, zcdp_epsilon
from service.privacy.noise.additive import Gaussian, SphericalLaplace
from service.streams.schema import StreamSchema
from tests import chance

CONTINUAL = {"kind": "continual", "base": 32, "update_every": 8}
SLIDING = {"kind": "sliding_window", "block": 8, "blocks": 7}
PURE = {"epsilon": 2}
ZCDP = {"epsilon": 0.7, "delta": 1e-5}
EQUAL_NOISE = [(m, p) for m in (CONTINUAL, SLIDING) for p in (PURE, ZCDP)]
OTHERS = [
    {"kind": "multi_resolution", "base": 16},
    CONTINUAL | {"shares": "paper"},
    CONTINUAL | {"shares": "improving"},
    SLIDING | {"shares": "paper"},
    SLIDING | {"warm_up": "continual"},
    {"kind": "independent_batches", "batch": 30},
    {"kind": "independent_batches", "batch": 30, "warm_start": True},
]
CASES = [*EQUAL_NOISE, *((m, p) for m in OTHERS for p in (PURE, ZCDP))]


def publication(mechanism=CONTINUAL, privacy=PURE, classes=3, task=None, **learner):
    return build(
        StreamSchema.model_validate({"features": 3, "task": task or {"kind": "classification", "classes": classes}}),
        PublicationConfiguration.model_validate(
            {"mechanism": mechanism, "learner": {"kind": "output_perturbation"} | learner, "privacy": privacy}
        ),
    )


def reader(classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2000, 3)).astype(np.float32), rng.integers(0, classes, 2000)
    return lambda start, end: Records(x=x[start:end], y=y[start:end])


def nothing(start, end):
    """A reader of a stream whose every record was erased."""
    assert start < end
    return Records(x=np.empty((0, 3)), y=np.empty(0))


def run(scheduled, until, read):
    time, chain, version = 0, (), 1
    while (time := scheduled.next_time(time)) <= until:
        step = scheduled.step(time, chain, version, read)
        chain, version = step.chain, version + len(step.releases)
        yield from step.releases


@pytest.mark.more
@pytest.mark.parametrize(("mechanism", "privacy"), CASES)
def test_versions_count_on_and_parents_are_earlier_releases(mechanism, privacy):
    releases = list(run(publication(mechanism, privacy), 300, reader()))
    assert [release.version for release in releases] == list(range(1, len(releases) + 1))
    for release in releases:
        assert release.parent is None or release.parent < release.version
        assert release.fit[1] <= release.time == release.window[1]
        assert release.window[0] <= release.fit[0]


@pytest.mark.parametrize(("mechanism", "privacy"), CASES)
def test_with_every_record_erased_a_release_is_its_parent_and_noise(mechanism, privacy):
    """The parent as released, noise and all: with no records the fit is exactly its centre."""
    released = {}
    for release in run(publication(mechanism, privacy), 200, nothing):
        center = released[release.parent] if release.parent else np.zeros((3, 4))
        distance = np.linalg.norm(release.parameters - center)
        assert 0 < distance < 100 * release.perturbation.noise.expected_norm()
        released[release.version] = release.parameters


@pytest.mark.more
@pytest.mark.parametrize(("mechanism", "privacy"), CASES)
def test_noise_covers_the_sensitivity_at_the_charge(mechanism, privacy):
    scheduled = publication(mechanism, privacy)
    law = SphericalLaplace if scheduled.currency is Currency.PURE else Gaussian
    for release in run(scheduled, 300, nothing):
        assert isinstance(release.perturbation.noise, law)
        assert release.perturbation.noise.dimension == 12
        records = release.fit[1] - release.fit[0]
        assert release.perturbation.cost(scheduled.currency, records) <= release.charge
        assert release.perturbation.sensitivity >= 2 * 2**0.5 / (0.1 * records)


@pytest.mark.parametrize(("mechanism", "privacy"), EQUAL_NOISE)
def test_noise_has_the_same_scale_at_every_level(mechanism, privacy):
    """Equal noise is what makes the shares fall with the records a fit reads (up to rounding)."""
    scales = {}
    for release in run(publication(mechanism, privacy), 500, nothing):
        kind = release.role == "model" and release.fit[0] == 0 if mechanism is CONTINUAL else None
        scales.setdefault(kind, []).append(release.perturbation.noise.scale)
    for values in scales.values():
        assert max(values) == pytest.approx(min(values), rel=1e-12)


@pytest.mark.parametrize(("mechanism", "privacy"), CASES)
def test_a_long_run_charges_no_record_more_than_the_capacity(mechanism, privacy):
    """Until just after a doubling, since its base costs the first records all but a hundredth of what is left."""
    scheduled = publication(mechanism, privacy)
    profile = ChargesByRecord.of((*release.fit, release.charge) for release in run(scheduled, 2060, nothing))
    nearly = Fraction(99 if mechanism.get("shares") != "improving" else 90, 100)  # the bases still to come cost more
    assert scheduled.capacity * nearly * lifetime(scheduled) < profile.maximum()
    assert profile.maximum() <= scheduled.capacity * lifetime(scheduled) <= scheduled.capacity


def lifetime(scheduled):
    """Return what the plan says of the worst record, as a part of the budget."""
    return Fraction(scheduled.plan()["lifetime"]["share"])


@pytest.mark.parametrize("privacy", [PURE, ZCDP])
def test_a_warm_start_is_the_release_before_and_a_cold_one_the_origin(privacy):
    batches = {"kind": "independent_batches", "batch": 50}
    cold = list(run(publication(batches, privacy), 300, nothing))
    warm = list(run(publication(batches | {"warm_start": True}, privacy), 300, nothing))
    assert [release.parent for release in cold] == [None] * 6
    assert [release.parent for release in warm] == [None, 1, 2, 3, 4, 5]
    assert [release.fit for release in warm] == [(50 * q, 50 * q + 50) for q in range(6)]
    for release in (*cold, *warm):
        assert release.fit == release.window
        assert scheduled_charge(privacy) * (1 - 1e-12) <= release.charge <= scheduled_charge(privacy)


def scheduled_charge(privacy):
    return float(publication(privacy=privacy).capacity)


def test_the_blocks_of_a_multi_resolution_end_together_the_largest_newest():
    """At 2^k·odd·B there are k + 1 releases, each of its own window, all models, none near another."""
    releases = list(run(publication({"kind": "multi_resolution", "base": 10}), 120, nothing))
    at_80 = [release for release in releases if release.time == 80]
    assert [release.window for release in at_80] == [(70, 80), (60, 80), (40, 80), (0, 80)]
    assert {(release.role, release.parent) for release in releases} == {("model", None)}
    assert len(releases) == sum(1 + (q & -q).bit_length() - 1 for q in range(1, 13))


def test_a_warm_up_fills_the_time_before_the_first_window():
    cold, warm = publication(SLIDING), publication(SLIDING | {"warm_up": "continual"})
    assert cold.plan()["first_releases"][0] == 56
    assert warm.plan()["first_releases"] == [8, 16, 24, 32, 40, 48, 56, 64]
    plan = warm.plan()
    assert plan["fits"][-1]["what"] == "warm-up"
    assert any("warm-up" in part["what"] for part in plan["lifetime"]["parts"])
    releases = list(run(warm, 120, nothing))
    assert [release.window for release in releases if release.time < 56] == [(0, 8 * m) for m in range(1, 7)]
    first, *_ = [release for release in releases if release.time == 56]
    assert (first.parent, first.role, first.fit) == (None, "base", (24, 56))


def test_with_improving_shares_a_base_has_less_noise_than_the_one_before():
    for privacy in (PURE, ZCDP):
        releases = run(publication(CONTINUAL | {"shares": "improving"}, privacy), 2100, nothing)
        scales = [release.perturbation.noise.scale for release in releases if release.fit == (0, release.time)]
        assert len(scales) == 7
        assert all(later < 0.8 * earlier for earlier, later in itertools.pairwise(scales))


def test_the_origin_is_where_first_fits_start():
    origin = [[1e6, 0, 0, 0], [0, -1e6, 0, 0], [0, 0, 0, 5]]
    first = next(run(publication(origin=origin), 100, nothing))
    assert first.parent is None
    assert np.abs(first.parameters - origin).max() < 1000 * first.perturbation.noise.scale * 12


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("classes", [2, 3])
def test_predictions_can_be_recomputed_from_the_description(classes, intercept):
    scheduled = publication(classes=classes, intercept=intercept, privacy={"epsilon": 1000})
    release = list(run(scheduled, 200, reader(classes)))[-1]
    described = json.loads(json.dumps(scheduled.model_description()))
    x = np.random.default_rng(5).normal(size=(50, 3)) * 3
    labels, probabilities = predict(described, release.parameters, x)

    rows = x * np.minimum(1, 1 / np.linalg.norm(x, axis=1, keepdims=True))
    if intercept:
        rows = np.hstack((rows, np.ones((50, 1)))) / np.sqrt(2)
    scores = rows @ release.parameters.T
    expected = special.softmax(np.hstack((0 * scores, scores)) if classes == 2 else scores, axis=1)
    assert probabilities == pytest.approx(expected, abs=1e-4)
    assert probabilities.shape == (50, classes)
    assert np.array_equal(labels, probabilities.argmax(axis=1))


def test_at_a_budget_without_limits_the_model_is_the_minimiser():
    """A sanity check of utility: with next to no noise, the labels come back."""
    direction = np.array([2.0, -1.0, 0.5])
    x = np.random.default_rng(2).normal(size=(2000, 3))
    y = (x @ direction > 0).astype(int)
    scheduled = publication(
        {"kind": "continual", "base": 1000, "update_every": 500}, {"epsilon": 1000}, classes=2, regularization=0.01
    )
    release = list(run(scheduled, 2000, lambda start, end: Records(x=x[start:end], y=y[start:end])))[-1]
    labels, _ = predict(scheduled.model_description(), release.parameters, x)
    chance.assert_above(np.mean(labels == y), 0.97, mean=0.9925, spread=0.0002, runs=200)


@pytest.mark.parametrize(("mechanism", "privacy"), CASES)
def test_a_fit_reads_what_it_charges_and_nothing_else(mechanism, privacy):
    ranges = []

    def noted(start, end):
        ranges.append((start, end))
        return nothing(start, end)

    assert [release.fit for release in run(publication(mechanism, privacy), 300, noted)] == ranges


def test_left_out_steps_are_noticed():
    with pytest.raises(ValueError, match="steps were left out"):
        publication().step(40, (), 1, nothing)


def test_a_time_without_fits_changes_nothing():
    scheduled = publication()
    chain = scheduled.step(32, (), 1, nothing).chain
    step = scheduled.step(33, chain, 2, nothing)
    assert step.releases == ()
    assert step.chain == chain


@pytest.mark.parametrize(("mechanism", "privacy"), CASES)
def test_the_plan_is_json_and_its_lifetime_is_the_whole_budget_or_says_why_not(mechanism, privacy):
    plan = json.loads(json.dumps(publication(mechanism, privacy).plan()))
    share = Fraction(plan["lifetime"]["share"])
    assert sum(Fraction(part["share"]) for part in plan["lifetime"]["parts"]) == share
    assert plan["lifetime"]["epsilon"] <= privacy["epsilon"]
    if mechanism.get("shares") == "paper":
        assert Fraction(1, 2) < share < 1
        assert "valid" in plan["lifetime"]["note"]
        assert plan["lifetime"]["epsilon"] < 0.999 * privacy["epsilon"]
    else:
        assert share == 1
        assert "note" not in plan["lifetime"]
        assert plan["lifetime"]["epsilon"] == pytest.approx(privacy["epsilon"], rel=1e-9)


@pytest.mark.parametrize(("mechanism", "privacy"), CASES)
def test_the_plan_tells_the_noise_that_will_be_added(mechanism, privacy):
    scheduled = publication(mechanism, privacy)
    planned = {(fit["records"], fit["charge"], fit["noise"]["scale"]) for fit in scheduled.plan()["fits"]}
    made = {
        (release.fit[1] - release.fit[0], release.charge, release.perturbation.noise.scale)
        for release in run(scheduled, 200, nothing)
    }
    assert planned <= made


def test_the_plan_tells_when():
    assert publication().plan()["first_releases"] == [32, 40, 48, 56, 64, 72, 80, 88]
    assert publication(SLIDING).plan()["first_releases"][:3] == [56, 64, 72]


def test_a_gaussian_plan_promises_its_epsilon_at_its_delta():
    scheduled = publication(privacy=ZCDP)
    assert zcdp_epsilon(float(scheduled.capacity), 1e-5) <= 0.7
    assert scheduled.plan()["guarantee"]["currency"] == "rho"


def test_prepared_rows_are_those_of_training():
    """`predict` and `fit` share one record map."""
    scheduled = publication()
    x = np.array([[3.0, 4.0, 0.0]])
    rows = prepare(x, norm_bound=1.0, intercept=True)
    parameters = np.arange(12.0).reshape(3, 4)
    _, probabilities = predict(scheduled.model_description(), parameters, x)
    assert probabilities == pytest.approx(special.softmax(rows @ parameters.T, axis=1))


REGRESSION = {"kind": "regression", "bound": 2.0}
SOLVERS = [
    {"solver": "psgd", "passes": 3, "batch": 5},
    {"solver": "gradient_descent", "steps": 20},
    {"loss": "huber_hinge"},
]


def numbers(start, end):
    """A reader of a regression stream: y = ⟨(1, -2, 0.5), x⟩ and some noise."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3000, 3)) / 3
    y = x @ np.array([1.0, -2.0, 0.5]) + 0.05 * rng.normal(size=3000)
    return Records(x=x[start:end].astype(np.float32), y=y[start:end].astype(np.float32))


@pytest.mark.more
@pytest.mark.parametrize(("mechanism", "privacy"), EQUAL_NOISE)
@pytest.mark.parametrize("learner", SOLVERS, ids=lambda each: each.get("solver") or each["loss"])
def test_whatever_the_solver_and_the_loss_noise_covers_the_sensitivity_at_the_share(mechanism, privacy, learner):
    scheduled = publication(mechanism, privacy, **learner)
    releases = list(run(scheduled, 300, reader()))
    for release in releases:
        assert release.perturbation.cost(scheduled.currency, release.fit[1] - release.fit[0]) <= release.charge
    profile = ChargesByRecord.of((*release.fit, release.charge) for release in releases)
    assert scheduled.capacity / 2 < profile.maximum() <= scheduled.capacity
    planned = {(fit["records"], fit["charge"], fit["noise"]["scale"]) for fit in scheduled.plan()["fits"]}
    assert planned <= {(each.fit[1] - each.fit[0], each.charge, each.perturbation.noise.scale) for each in releases}


def test_the_plan_says_what_the_solver_does():
    model = publication(solver="psgd", passes=3).plan()["model"]
    assert (model["solver"], model["passes"], model["batch"]) == ("psgd", 3, 32)
    assert "slots" in model["sensitivity"]
    model = publication(solver="gradient_descent").plan()["model"]
    assert (model["solver"], model["steps"]) == ("gradient_descent", 100)
    assert publication().plan()["model"]["solver"] == "exact"
    model = publication(loss="huber_hinge", huber_width=0.25).plan()["model"]
    assert (model["loss"], model["huber_width"]) == ("huber_hinge", 0.25)
    assert model["lipschitz"] == pytest.approx(3**0.5)


@pytest.mark.more
@pytest.mark.parametrize("solver", ["exact", "psgd", "gradient_descent"])
@pytest.mark.parametrize(("mechanism", "privacy"), EQUAL_NOISE)
def test_a_regression_is_published_with_a_sensitivity_of_each_parents_norm(mechanism, privacy, solver):
    scheduled = publication(mechanism, privacy, task=REGRESSION, solver=solver, regularization=1.0)
    released = {None: np.zeros((1, 4))}
    releases = list(run(scheduled, 200, numbers))
    for release in releases:
        center, n = released[release.parent], release.fit[1] - release.fit[0]
        lipschitz = (np.linalg.norm(center) + 2) * 2  # R(R‖c‖ + Y)(1 + R/√α)
        slots = -(-n // -(-n // 32)) * -(-n // 32) if solver == "psgd" else n
        assert release.perturbation.sensitivity == pytest.approx(2 * lipschitz / slots, rel=1e-4)
        assert release.perturbation.cost(scheduled.currency, n) <= release.charge
        released[release.version] = release.parameters
    profile = ChargesByRecord.of((*release.fit, release.charge) for release in releases)
    assert scheduled.capacity / 2 < profile.maximum() <= scheduled.capacity


def test_a_plan_of_a_regression_states_first_fits_only_and_says_so():
    scheduled = publication(privacy=ZCDP, task=REGRESSION)
    plan = json.loads(json.dumps(scheduled.plan()))
    base, update = plan["fits"]
    first = next(run(scheduled, 32, numbers))
    assert (base["sensitivity"], base["noise"]["scale"]) == (
        first.perturbation.sensitivity,
        first.perturbation.noise.scale,
    )
    assert "at_least" not in base
    assert update["sensitivity"] is update["noise"]["scale"] is update["noise"]["expected_norm"] is None
    assert update["noise"].keys() == base["noise"].keys()
    assert update["charge"] > 0
    later = [release for release in run(scheduled, 300, numbers) if release.parent]
    assert all(
        release.perturbation.sensitivity > update["at_least"]["sensitivity"] * 8 / (r[1] - r[0])
        for release in later
        if (r := release.fit)
    )
    assert "released model" in update["at_least"]["why"]
    assert (plan["model"]["loss"], plan["model"]["bound"]) == ("squared", 2.0)


def test_predictions_of_a_regression_are_clipped_labels_and_values_as_they_are():
    scheduled = publication(
        {"kind": "continual", "base": 2000, "update_every": 500},
        {"epsilon": 1000, "delta": 1e-6},
        task=REGRESSION,
        regularization=0.05,
    )
    first = next(run(scheduled, 2000, numbers))
    description = json.loads(json.dumps(scheduled.model_description()))
    assert (description["loss"], description["bound"], description["classes"]) == ("squared", 2.0, None)
    x = np.random.default_rng(4).normal(size=(200, 3)) / 4
    labels, scores = predict(description, first.parameters, x)
    inside = np.linalg.norm(x, axis=1) < 1
    alike = np.corrcoef(scores[inside, 0], x[inside] @ [1, -2, 0.5])[0, 1]
    chance.assert_above(alike, 0.98, mean=0.9993, spread=0.0002, runs=200)
    assert np.array_equal(labels, np.clip(scores[:, 0], -2, 2))
    labels, scores = predict(description, first.parameters * 100, x)
    assert np.abs(labels).max() == 2.0 < np.abs(scores).max()


@pytest.mark.parametrize("classes", [2, 4])
def test_predictions_of_a_hubers_hinge_are_the_largest_margins(classes):
    scheduled = publication(loss="huber_hinge", classes=classes, privacy={"epsilon": 1000}, intercept=False)
    release = list(run(scheduled, 200, reader(classes)))[-1]
    x = np.random.default_rng(5).normal(size=(50, 3)) / 10
    labels, scores = predict(json.loads(json.dumps(scheduled.model_description())), release.parameters, x)
    margins = x @ release.parameters.T
    assert scores == pytest.approx(np.hstack((-margins, margins)) if classes == 2 else margins)
    assert np.array_equal(labels, scores.argmax(axis=1))
