"""Tasks on a stream with units: what all records of one unit cost, whatever its pattern, in batches and the encoder."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise, product
from math import isclose

import numpy as np
import pytest

from service.learning.records import Records
from service.mechanisms.lifelong.task_statistics import DECAY
from service.mechanisms.lifelong.tasks import Tasks
from service.privacy.accounting.carried_groups import carried
from service.privacy.accounting.groups import Batching, UnitBound, group_factor
from service.privacy.currency import Currency
from service.privacy.noise.additive import Gaussian
from service.privacy.noise.correlated import Blt, Toeplitz
from service.streams.units import contributions
from tests.mechanisms.lifelong.test_encoder_pass import one_pass, some
from tests.mechanisms.test_units import OUTPUT, made

NOISES = {"carried on": Blt.decaying(DECAY), "each its own": Toeplitz(bands=1, decay=1.0)}
SCHEDULES = {
    "equal batches": (Tasks((2,), None), 12),
    "tasks of several batches": (Tasks((3, 5), 2), 14),
    "after an encoder": (Tasks((2, 6), 3, 4), 16),
}
PASS = one_pass(records=4, batch=2)


def overlaps(noise, batches):
    """Return the scalar products of so many batches' columns, over one column's own."""
    if isinstance(noise, Toeplitz):
        return np.eye(batches)
    scales, decays = (np.array([float(each) for each in of]) for of in (noise.scales, noise.decays))
    column = np.concatenate(([1.0], [scales @ decays**lag for lag in range(3000)]))
    products = [float(column[: len(column) - lag] @ column[lag:]) for lag in range(batches)]
    return np.array([[products[abs(one - other)] for one in range(batches)] for other in range(batches)]) / products[0]


def cost(tasks, slots, overlap):
    """Return what these slots of one unit cost, over one slot's charge: steps of the encoder, and batches together."""
    steps = {step for slot in slots for step, (start, end) in enumerate(PASS.batches(0)) if start <= slot < end}
    taught = steps if tasks.before else set()
    batches = sorted({tasks.place(slot).number for slot in slots if slot >= tasks.before})
    return len(taught) + overlap[np.ix_(batches, batches)].sum()


@pytest.mark.more
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_pattern_costs_more_than_is_stated_and_the_worst_as_much(schedule, noise):
    (tasks, horizon), factor = SCHEDULES[schedule], NOISES[noise]
    overlap = overlaps(factor, horizon)
    for separation in (1, 2, 3):
        bound = UnitBound(max_records=4, min_separation=separation)
        for p in range(1, 5):
            most = carried(factor, Batching(bound=replace(bound, max_records=p), batch=tasks.largest))[p]
            patterns = combinations(range(horizon), p)
            apart = [each for each in patterns if all(b - a >= separation for a, b in pairwise(each))]
            seen = max(cost(tasks, each, overlap) for each in apart)
            assert seen <= float(most) * (1 + 1e-6)
            if separation == 1 or noise == "each its own" or (schedule == "equal batches" and separation == 2):
                assert isclose(seen, most, rel_tol=1e-5)


def test_factors_are_those_of_the_longest_batch():
    tasks = {"kind": "lifelong", "task_size": [100, 300], "batch": 150}
    unit = {"max_records": 16, "min_separation": 1600}
    law = group_factor(carried(NOISES["carried on"], Batching(bound=UnitBound(**unit), batch=150)))
    assert law <= made(tasks, OUTPUT, unit=unit).factor < law * (1 + Fraction(1, 1000))
    assert made(tasks | {"batch": 300}, OUTPUT, unit=unit).factor > law
    assert 16 <= made(tasks | {"memory": 2}, OUTPUT, unit=unit).factor < 16.01
    assert made(tasks, OUTPUT, unit=unit, delta=0).factor == 16


def of_one_unit(x, y, places, slots):
    shares = contributions(np.zeros(slots, dtype=np.int64))[places]
    return Records(x=x[places], y=y[places], slots=np.array(places), weights=shares, units=1)


@pytest.mark.parametrize("present", [(0, 1, 2), (1,), ()])
def test_all_records_of_a_unit_move_a_step_of_the_encoder_as_far_as_one(present):
    pytest.importorskip("jax", reason="the extra `deep` is not installed")
    rng = np.random.default_rng(3)
    learnt = one_pass(records=3, clip=0.5)
    weights, most = rng.normal(size=learnt.dimension), learnt.perturbation(Currency.ZCDP, 1.0).sensitivity
    sums = []
    for size, flipped in product((1e-3, 1.0, 1e4), (False, True)):
        x, y = some(3, rng)
        records = of_one_unit(size * np.tile(x[:1], (3, 1)), np.full(3, y[0] * (not flipped)), list(present), 3)
        sums.append(learnt.summed(weights, records.x, records.y, records.slots, 3, records.weights))
    farthest = max(float(np.linalg.norm(one - other)) for one, other in product(sums, repeat=2))
    assert farthest <= most
    assert (farthest > 0.7 * learnt.clip) == (len(present) == 3)


@pytest.mark.parametrize("variant", [{}, {"memory": 2}])
def test_what_is_learnt_is_of_as_many_records_as_there_are_units(monkeypatch, variant):
    """Without noise, four records of two units teach what two records do."""
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    settings = {"kind": "lifelong", "ridge": 0.1} | variant
    x, y = np.array([[0.6, 0.0], [0.0, -0.8]], dtype=np.float32), np.array([1, 0], dtype=np.int32)
    places = [0, 0, 1, 1]
    of_units = Records(x=x[places], y=y[places], weights=contributions(np.array(places)), units=2)
    models = []
    for size, unit, records in ((4, {"max_records": 2}, of_units), (2, None, Records(x=x, y=y))):
        (release,) = (
            made(settings | {"task_size": size}, OUTPUT, unit=unit)
            .step(size, (), 1, lambda start, end, records=records: records)
            .releases
        )
        models.append(release.parameters)
    np.testing.assert_allclose(models[0], models[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("variant", [{}, {"memory": 2}, {"training": "agem"}, {"heads": "per_task", "memory": 2}])
def test_batches_without_any_unit_are_steps_all_the_same(variant):
    built = made({"kind": "lifelong", "task_size": 4} | variant, OUTPUT, unit={"max_records": 2})
    nobody = Records(x=np.zeros((0, 2), dtype=np.float32), y=np.zeros(0), weights=np.zeros(0), units=0)
    somebody = of_one_unit(np.ones((2, 2), dtype=np.float32), np.ones(2, dtype=np.int32), [0, 1], 2)
    chain, released = (), []
    for time in (4, 8, 12, 16):
        read = lambda start, end: somebody if end == 12 else nobody  # noqa: E731
        step = built.step(time, chain, time // 4, read)
        chain = step.chain
        released += step.releases
    assert [each.model["units"] for each in released] == [0, 0, 1, 0]
    assert all(np.isfinite(each.parameters).all() and each.charge > 0 for each in released)


def test_a_record_is_a_part_of_its_unit_by_the_encoders_step(monkeypatch):
    """The unit has one slot in the first step and two in the second; the whole pass would make thirds of them."""
    pytest.importorskip("jax", reason="the extra `deep` is not installed")
    dense = {"kind": "dense", "records": 4, "batch": 2, "layers": [2]}
    built = made({"kind": "lifelong", "task_size": 4, "encoder": dense}, OUTPUT, unit={"max_records": 3})
    seen = []
    learn = type(built.encoder).summed
    monkeypatch.setattr(type(built.encoder), "summed", lambda *given: seen.append(given[6].tolist()) or learn(*given))

    def read(start, end):
        slots = np.array([each for each in (1, 2, 3) if start <= each < end])
        shares = contributions(np.zeros(len(slots), dtype=np.int64))
        x = np.ones((len(slots), 2), dtype=np.float32)
        return Records(x=x, y=np.ones(len(slots), dtype=np.int32), slots=slots, weights=shares, units=1)

    (release,) = built.step(4, (), 1, read).releases
    assert release.model["units"] == 1
    assert [share for shares in seen for share in shares] == pytest.approx([1.0, 0.5, 0.5])
