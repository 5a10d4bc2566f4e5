"""The mechanism: when a block ends, which slots and which versions it counts, what it costs, and what a plan says."""

from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.learning.records import Records
from service.mechanisms.configuration import Privacy
from service.mechanisms.evaluation.mechanism import Evaluation
from service.mechanisms.evaluation.tables import ClassCounts, ErrorSums, described_counts
from service.mechanisms.released_models import Made, Predictions, Progress, has_passed, version_used
from service.privacy.accounting import events
from service.privacy.currency import Currency, capacity
from service.streams.slots import EvaluationSlots
from tests import chance
from tests.figures.worlds import PRIVACY, privacies

CLASSES = ClassCounts(classes=2, publications=2)


@dataclass
class Released:
    """Models of publications that are released at given times; each predicts its version's parity."""

    releases: dict[str, Progress] = field(default_factory=dict)
    requests: list = field(default_factory=list)

    def progress(self, name, first_slot):
        return self.releases[name]

    def predict(self, name, version, x):
        self.requests.append((name, version, x[:, 0].tolist()))
        return Predictions(labels=np.full(len(x), version % 2), confidences=np.full(len(x), 0.9))


def evaluation(privacy="pure", *, start=0, period=3, block=4, counts=CLASSES, models=None, of=("a", "b")):
    epsilon, delta = PRIVACY[privacy]
    currency, cap = capacity(epsilon, delta)
    return Evaluation(
        currency=currency,
        capacity=cap,
        privacy=Privacy(epsilon=epsilon, delta=delta),
        start=start,
        slots=EvaluationSlots(period=period),
        block=block,
        of=of[: counts.publications],
        counts=counts,
        models=models,
    )


def numbered(start, erased=()):
    """A reader of records whose only feature is their absolute slot; every label is 1."""

    def read(begin, end):
        slots = np.array([slot for slot in range(begin, end) if slot not in erased], dtype=np.int64)
        x = (slots + start)[:, None].astype(float)
        return Records(x=x, y=np.ones(len(slots), dtype=int), slots=slots)

    return read


# Which version


def test_a_block_uses_the_greatest_time_and_then_the_greatest_version_that_is_not_after_its_first_slot():
    releases = [Made(version=1, time=10), Made(version=4, time=20), Made(version=5, time=20), Made(version=6, time=31)]
    assert version_used(releases, 9) is None
    assert version_used(releases, 10) == 1
    assert version_used(releases, 19) == 1
    assert version_used(releases, 20) == 5
    assert version_used(releases, 30) == 5
    assert version_used(releases, 31) == 6
    assert version_used(reversed(releases), 25) == 5, "the order in which they are read has no say"


def test_a_greater_version_of_an_earlier_time_is_not_the_newest():
    """A schedule may number a base that it makes late after the model that it goes with."""
    assert version_used([Made(version=7, time=10), Made(version=3, time=20)], 50) == 3


def test_what_predicts_nothing_is_not_used():
    releases = [Made(version=1, time=10), Made(version=2, time=20, predicts=False)]
    assert version_used(releases, 50) == 1
    assert version_used(releases[1:], 50) is None


def test_a_block_waits_until_a_publication_has_passed_its_first_slot_or_has_ended():
    assert not has_passed(Progress(releases=(), passed=19), 20)
    assert has_passed(Progress(releases=(), passed=20), 20)
    assert has_passed(Progress(releases=(), passed=3, ended=True), 20)
    models = Released({"a": Progress(releases=(), passed=50), "b": Progress(releases=(), passed=13)})
    waiting = evaluation(models=models)  # blocks of slots 2 … 11 and 14 … 23
    assert waiting.is_ready(12)
    assert not waiting.is_ready(24)


def test_versions_do_not_depend_on_what_was_released_since():
    """So a block that is counted late, or again by another worker, is that of the same models."""
    early = (Made(version=1, time=0), Made(version=2, time=14))
    late = (*early, Made(version=3, time=15), Made(version=4, time=24))
    versions = []
    for releases in (early, late):
        progress = Progress(releases=releases, passed=40)
        versions.append(evaluation(models=Released({"a": progress, "b": progress})).versions(24))
    assert versions == [(2, 2), (2, 2)]


# Which slots


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 5), st.integers(0, 60))
def test_blocks_end_with_their_last_evaluation_slot_and_follow_each_other(start, period, block, after):
    mechanism = evaluation(start=start, period=period, block=block)
    slots = [slot for slot in range(start, start + 60 + 2 * period * block) if slot % period == period - 1]
    blocks = [slots[i : i + block] for i in range(0, len(slots) - block + 1, block)]
    ends = [each[-1] + 1 - start for each in blocks]
    later = [end for end in ends if end > after]
    number = ends.index(later[0])
    time = mechanism.next_time(after)
    assert time == later[0]
    assert mechanism.first_slot(time) == blocks[number][0]
    begin = ends[number - 1] if number else 0
    assert mechanism.needs(after) == begin
    assert mechanism.reads(time) == time - begin
    assert mechanism.slots.in_range(start + begin, start + time).tolist() == blocks[number]


@pytest.mark.parametrize("start", [0, 7])
def test_a_step_shows_models_the_evaluation_slots_of_its_block_and_no_other(start):
    progress = Progress(releases=(Made(version=3, time=0),), passed=10**6)
    models = Released({"a": progress, "b": progress})
    mechanism, time = evaluation(start=start, models=models), 0
    for _ in range(3):
        time, before = mechanism.next_time(time), time
        mechanism.step(time, (), 1, numbered(start, erased={before + 1}))
        expected = [
            0 if slot == start + before + 1 else slot  # an erased one is zeros, in its place
            for slot in range(start + before, start + time)
            if slot % 3 == 2
        ]
        assert models.requests[-2:] == [("a", 3, expected), ("b", 3, expected)]


def test_a_publication_without_a_model_yet_is_counted_as_nothing():
    """A noise this small is 0 with all but a probability of 1e-9."""
    models = Released(
        {
            "a": Progress(releases=(), passed=100),
            "b": Progress(releases=(Made(version=1, time=0),), passed=100),
        }
    )
    mechanism = evaluation(models=models)
    object.__setattr__(mechanism, "capacity", Fraction(300))
    (release,) = mechanism.step(12, (), 5, numbered(0)).releases
    assert release.model["versions"] == [None, 1]
    counts = release.parameters[0]
    assert CLASSES.table(counts, 0).tolist() == [[0, 0], [0, 0]]
    assert CLASSES.table(counts, 1).tolist() == [[0, 0], [0, 4]]
    assert CLASSES.calibration(counts, 1).sum() == 4


def test_it_can_be_planned_without_models_and_not_run():
    mechanism = evaluation()
    assert mechanism.plan()["kind"] == "pure"
    with pytest.raises(ValueError, match="can be planned"):
        mechanism.step(12, (), 1, numbered(0))


# What it costs


@privacies
@pytest.mark.parametrize(
    "counts",
    [
        CLASSES,
        ClassCounts(classes=5, publications=1, bins=False),
        ErrorSums(bound=2.0, publications=2, moments=True),
        replace(CLASSES, shortened=True),
    ],
    ids=["two publications", "one", "errors", "shortened"],
)
def test_a_release_costs_its_charge_for_all_publications_together_and_that_is_the_capacity(privacy, counts):
    progress = Progress(releases=(Made(version=3, time=0),), passed=10**6)
    mechanism = evaluation(privacy, counts=counts, models=Released({"a": progress, "b": progress}))
    (release,) = mechanism.step(12, (), 9, numbered(0)).releases
    event = release.perturbation
    content = event.to_json()
    assert events.from_json(content) == event
    cost = event.cost(mechanism.currency, records=mechanism.block)
    change = described_counts(release.model).change
    assert content["change"] == {"counts": change.counts, "largest": change.largest}
    assert cost <= Fraction(release.charge) <= mechanism.capacity
    assert float(cost) == pytest.approx(float(mechanism.capacity), rel=1e-12)
    assert event.dimension(release.parameters.shape) == release.parameters.size == counts.size
    assert (release.version, release.fit, release.window, mechanism.draws()) == (9, (0, 12), (0, 12), 0)


@privacies
def test_released_counts_are_those_of_the_block_and_noise_of_the_stated_law_and_a_third_less_is_noticed(privacy):
    progress = Progress(releases=(Made(version=1, time=0),), passed=10**6)
    mechanism = evaluation(privacy, models=Released({"a": progress, "b": progress}))
    exact = CLASSES.count(np.ones(4), [Predictions(labels=np.ones(4), confidences=np.full(4, 0.9))] * 2)
    noisy = np.concatenate([mechanism.step(12, (), 1, numbered(0)).releases[0].parameters[0] for _ in range(150)])
    noise = (noisy.reshape(150, -1) - exact).astype(int).ravel()
    scale, reach = mechanism.noise().scale, 1000
    z = np.arange(-reach, reach + 1)
    weights = np.exp(-np.abs(z) / scale if mechanism.currency is Currency.PURE else -(z**2) / (2 * scale**2))
    chance.assert_frequencies(np.bincount(noise + reach, minlength=len(z)), weights / weights.sum())
    small = np.rint(noise * chance.TOO_SMALL).astype(int)
    with chance.is_noticed():
        chance.assert_frequencies(np.bincount(small + reach, minlength=len(z)), weights / weights.sum())


# Plans


@pytest.mark.parametrize(
    ("privacy", "classes", "bins", "deviation"),
    [
        ("pure", 2, False, 0.008),
        ("pure", 7, False, 0.015),
        ("pure", 2, True, 0.016),
        ("pure", 7, True, 0.030),
        ("gaussian", 2, False, 0.018),
        ("gaussian", 2, True, 0.026),
    ],
)
def test_the_plan_tells_how_far_off_an_accuracy_will_be_before_any_data(privacy, classes, bins, deviation):
    counts = ClassCounts(classes=classes, publications=1, bins=bins)
    plan = evaluation(privacy, block=500, counts=counts).plan()
    assert round(plan["accuracy"]["noise"], 3) == deviation
    assert 1.9 < plan["accuracy"]["block"] / plan["accuracy"]["noise"] < 2.2
    assert plan["accuracy"]["population"] > plan["accuracy"]["block"]


@privacies
def test_a_plan_tells_the_charge_the_sensitivity_and_the_noise(privacy):
    mechanism = evaluation(privacy)
    plan = mechanism.plan()
    (fit,) = plan["fits"]
    assert plan["first_releases"][:3] == [12, 24, 36]
    assert fit["charge"] == float(mechanism.capacity)
    assert fit["sensitivity"] == (8 if privacy == "pure" else pytest.approx(8**0.5))
    assert fit["noise"]["scale"] == mechanism.noise().scale
    assert plan["guarantee"]["sampling"] == {"draws": 0, "delta": 0.0}
    assert plan["lifetime"]["epsilon"] == pytest.approx(1.0)


def test_a_plan_of_a_regression_tells_how_far_off_the_mean_error_will_be():
    plan = evaluation(block=500, counts=ErrorSums(bound=3.0, publications=1)).plan()
    assert plan["error"]["noise"] == pytest.approx(2 * 2**0.5 / 500, rel=1e-3), "as a share of 2Y"


@pytest.mark.parametrize(
    "wrong", [{"block": 0}, {"of": ("a",)}, {"of": ("a", "a")}], ids=["no slots", "too few names", "a name twice"]
)
def test_an_evaluation_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="at least 1 slot"):
        evaluation(**wrong)


def test_the_largest_cap_is_the_decimal_that_was_asked_for():
    assert evaluation().capacity == Decimal(1)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1.0])
def test_how_many_slots_there_are_is_the_same_whatever_a_record_holds(value):
    """It is released as it is, without noise: it counts slots that were not erased, also of records of nothing."""
    progress = Progress(releases=(Made(version=1, time=0),), passed=50)
    counted = evaluation(models=Released({"a": progress, "b": progress}))

    def read(start, end):
        records = numbered(0, erased=(5,))(start, end)
        return replace(records, x=np.where(records.x == 8.0, value, records.x))

    (release,) = counted.step(12, (), 1, read).releases
    assert release.model["slots"] == 3
