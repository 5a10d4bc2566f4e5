"""Fits of a secret sample of their slots: what is drawn, what the noise is for, and where a sample is refused."""

from dataclasses import dataclass
from fractions import Fraction
from math import expm1, log1p

import numpy as np
import pytest

from service.inputs.refused import Refused
from service.learning.optimization import sums
from service.learning.optimization.descent import GradientDescent, PermutationSGD
from service.learning.optimization.losses import LOSSES
from service.learning.optimization.solvers import Exact
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.learning.samples import read_sample
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.measured import measured
from service.mechanisms.notes import noise_ratio
from service.mechanisms.timing import BYTES_OF_BLOCKS, bytes_at_once, fit_cost, fit_size
from service.privacy.accounting.events import NoisySampledWeights, NoisyWeights
from service.privacy.currency import Currency
from service.privacy.sampling import epsilon_of_sample
from service.streams.schema import StreamSchema
from tests import chance
from tests.docs.pages import page

SLOTS, DRAWN = 12, 4
SCHEMA = {"features": 2, "task": {"kind": "classification", "classes": 2}}
BATCHES = {"kind": "independent_batches", "batch": SLOTS}
SOLVERS = [Exact(), PermutationSGD(passes=2, batch=2), GradientDescent(steps=3)]


def learner(sample=DRAWN, solver=SOLVERS[0]):
    return OutputPerturbation(
        loss=LOSSES["logistic"],
        regularization=0.5,
        intercept=False,
        norm_bound=1.0,
        features=2,
        classes=2,
        solver=solver,
        sample=sample,
    )


def numbered(present):
    """Records that say by their first feature which slot they are in."""
    slots = np.array(present, dtype=np.int64)
    return Records(x=np.column_stack((slots, slots)).astype(np.float32), y=slots % 2, slots=slots)


@dataclass
class InBlocks:
    """Blocks of a range in which some slots are empty."""

    records: Records
    slots: int = SLOTS
    units: None = None

    def read(self, start, stop):
        return self.records[(self.records.slots >= start) & (self.records.slots < stop)]


@pytest.fixture
def short_blocks(monkeypatch):
    monkeypatch.setattr(sums, "LEAST_BLOCK", 5)
    monkeypatch.setattr(sums, "BLOCK_VALUES", 1)


@pytest.mark.more
@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("opened", [lambda records: records, InBlocks], ids=["at once", "in blocks"])
def test_each_slot_is_drawn_as_often_as_any_other_whether_it_is_empty_or_not(opened):
    """Eight of twelve slots are empty, so that a sample holds as many records as the hypergeometric law says."""
    present, runs = [1, 4, 5, 11], 3000
    seen, counts = np.zeros(SLOTS), np.zeros(DRAWN + 1)
    for _ in range(runs):
        sample = read_sample(opened(numbered(present)), SLOTS, DRAWN, 2)
        seen[sample.x[:, 0].astype(int)] += 1
        counts[len(sample.y)] += 1
        assert (sample.y == sample.x[:, 0] % 2).all()
    assert seen.sum() == seen[present].sum()
    for slot in present:
        chance.assert_count(int(seen[slot]), runs, DRAWN / SLOTS, false_alarm=chance.FALSE_ALARM / len(present))
    chance.assert_frequencies(counts, np.array([70, 4 * 56, 6 * 28, 4 * 8, 1]) / 495)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("slots", [SLOTS, 100])
def test_a_range_that_is_no_longer_than_the_sample_is_read_whole(slots):
    whole = numbered(range(SLOTS))
    for records in (whole, InBlocks(whole)):
        assert read_sample(records, SLOTS, slots, 2).x.tolist() == whole.x.tolist()


def test_records_of_units_are_not_sampled():
    shares = {"weights": np.ones(2), "units": 2, "owners": np.arange(2), "firsts": np.ones(2, dtype=bool)}
    with pytest.raises(ValueError, match="units"):
        read_sample(Records(x=np.zeros((2, 2)), y=np.zeros(2), **shares), 2, 1, 2)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)
def test_the_noise_of_a_sample_is_for_its_own_size_and_costs_all_slots_the_charge(solver):
    one = learner(solver=solver)
    spent = one.perturbation(Currency.PURE, 0.7, SLOTS)
    assert isinstance(spent, NoisySampledWeights)
    assert (spent.sample, spent.sensitivity) == (DRAWN, one.sensitivity(DRAWN))
    assert 0.999 * 0.7 < spent.cost(Currency.PURE, SLOTS) <= 0.7
    alone = learner(sample=None, solver=solver).perturbation(Currency.PURE, epsilon_of_sample(0.7, DRAWN, SLOTS), DRAWN)
    assert isinstance(alone, NoisyWeights)
    assert alone.noise == spent.noise
    assert Fraction(0.7) < alone.cost(Currency.PURE, DRAWN)


@pytest.mark.parametrize("slots", [DRAWN - 1, DRAWN])
def test_a_fit_of_few_slots_is_one_without_a_sample(slots):
    with_one, without = (learner(sample).perturbation(Currency.PURE, 0.7, slots) for sample in (DRAWN, None))
    assert with_one == without


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)
def test_a_release_is_of_a_fresh_sample_each_time(solver, monkeypatch):
    one, drawn = learner(solver=solver), []
    spent, fit = one.perturbation(Currency.PURE, 0.7, SLOTS), OutputPerturbation.fit

    def spy(self, records, n, *of_the_fit):
        drawn.append((n, tuple(records.x[:, 0].astype(int))))
        return fit(self, records, n, *of_the_fit)

    monkeypatch.setattr(OutputPerturbation, "fit", spy)
    for _ in range(40):  # all alike with a probability below 2^-300
        assert one.release(numbered(range(SLOTS)), SLOTS, np.zeros((1, 2)), spent).shape == (1, 2)
    assert {(n, len(slots)) for n, slots in drawn} == {(DRAWN, DRAWN)}
    assert len(set(drawn)) > 1


def test_noise_for_another_sample_is_not_added():
    records, center = numbered(range(SLOTS)), np.zeros((1, 2))
    for sample, of in ((3, 5), (None, 5), (5, 3)):
        with pytest.raises(ValueError, match="another size"):
            learner(sample).release(records, SLOTS, center, learner(of).perturbation(Currency.PURE, 1.0, SLOTS))


def configured(schema=SCHEMA, mechanism=BATCHES, privacy=None, **settings):
    configuration = PublicationConfiguration.model_validate(
        {
            "mechanism": mechanism,
            "learner": {"kind": "output_perturbation"} | settings,
            "privacy": privacy or {"epsilon": 1},
        }
    )
    return StreamSchema.model_validate(SCHEMA | schema), configuration


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"privacy": {"epsilon": 1, "delta": 1e-6}}, "privacy.delta to 0"),
        ({"schema": {"unit": {"max_records": 3}}}, "protects units"),
        ({"mechanism": {"kind": "window_statistics", "block": 4, "blocks": 2}}, "leave it out"),
        ({"mechanism": {"kind": "lifelong", "task_size": 4}}, "leave it out"),
    ],
    ids=["with a delta", "of units", "statistics", "tasks"],
)
def test_where_nobody_proved_what_a_sample_costs_it_is_refused(settings, why):
    with pytest.raises(Refused, match=why) as refused:
        build(*configured(**settings, sample=DRAWN))
    assert refused.value.path == "learner.sample"


def test_a_configuration_without_a_sample_is_stored_as_it_always_was():
    _, configuration = configured()
    assert "sample" not in configuration.stored()["learner"]
    assert "sample" not in build(*configured()).obligations().to_json()["fit"]


def test_a_plan_states_the_noise_of_the_sample_and_compares_it_with_what_the_sample_can_do():
    schema, configuration = configured(sample=DRAWN)
    plan = build(schema, configuration).plan()
    (fit,) = plan["fits"]
    assert (plan["model"]["sample"], fit["noise"]["sample"], fit["records"], fit["charge"]) == (
        DRAWN,
        DRAWN,
        SLOTS,
        1.0,
    )
    lengthened = 4 / 12 * log1p(3 * expm1(1.0))  # the scale of all slots' noise through that of the sample's
    alone = build(*configured()).plan()["fits"][0]
    assert alone["noise"]["expected_norm"] / fit["noise"]["expected_norm"] == pytest.approx(lengthened)
    assert noise_ratio(alone) / noise_ratio(fit) == pytest.approx(lengthened)
    assert not any(line["this"] for line in measured(schema, configuration)["lines"]), "nobody measured a sample"


def test_a_fit_of_a_sample_takes_as_long_as_its_sample_and_one_reading():
    size = {
        name: fit_size(build(*configured(mechanism=BATCHES | {"batch": 10**6}, **each)).plan())
        for name, each in {"whole": {}, "sampled": {"sample": 10**5}}.items()
    }
    whole, sampled = (fit_cost(each, 10**6) for each in (size["whole"], size["sampled"]))
    assert sampled.seconds < whole.seconds / 5
    assert sampled.bytes == whole.bytes + bytes_at_once(10**5, 3)
    assert fit_cost(size["sampled"], 10**5) == fit_cost(size["whole"], 10**5)
    in_blocks = fit_cost(size["sampled"], 10**6, in_blocks=True)
    assert in_blocks.bytes == BYTES_OF_BLOCKS + bytes_at_once(10**5, 3)
    assert in_blocks.seconds == sampled.seconds


@pytest.mark.parametrize(("times", "lengths"), [(10, "1.04 | 1.39 | 3.45"), (100, "1.44 | 4.09 | 19.4")])
def test_the_page_says_how_much_longer_noise_is(times, lengths):
    assert f"| n = {times}·h | {lengths} |" in page("learners/output_perturbation.md")
    for epsilon, expected in zip((0.01, 0.1, 1.0), map(float, lengths.split(" | ")), strict=True):
        of_sample, of_all = (
            learner(sample).perturbation(Currency.PURE, epsilon, 4 * times).noise.scale for sample in (4, None)
        )
        assert of_sample / of_all == pytest.approx(expected, rel=5e-3)
