"""Fits by sums over blocks: the same bytes whoever adds what, and the certificate of any other fit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from service.learning.optimization import solvers, sums
from service.learning.optimization.losses import LOSSES
from service.learning.optimization.objective import MARGIN, norm, summed
from service.learning.optimization.solvers import SLACK, accuracy
from service.learning.optimization.sums import Partial, Question, SummedObjective, answered, cut
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import PreparedRows, Records
from tests.learning.optimization.test_solvers import gradient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CASES = [("logistic", 2), ("softmax", 3), ("huber_hinge", 3), ("squared", 0)]


@dataclass
class Held:
    """Blocks of records in memory; some slots are empty. `order` says how their answers are added up."""

    records: Records
    slots: int
    order: Callable[[list[Partial]], Partial] = field(default=lambda answers: sum(answers, start=Partial()))
    units: None = None

    def read(self, start: int, stop: int) -> Records:
        slots = self.records.in_slots(0, self.slots)
        return self.records[(slots >= start) & (slots < stop)]

    def add_up(self, question: Question, blocks: Sequence[tuple[int, int]]) -> Partial:
        return self.order([answered(question, self.read, [each]) for each in blocks])


def learner(name: str, classes: int, alpha: float = 0.1) -> OutputPerturbation:
    return OutputPerturbation(
        loss=LOSSES[name], regularization=alpha, intercept=True, norm_bound=1.0, features=3, classes=classes
    )


def records(slots: int, classes: int, seed: int) -> Records:
    """Records of some of the slots, among them some that are not finite."""
    rng = np.random.default_rng(seed)
    present = np.sort(rng.choice(slots, slots - slots // 8, replace=False))
    x = (rng.normal(size=(len(present), 3)) * 10.0 ** rng.integers(-3, 3)).astype(np.float32)
    x[rng.integers(len(x), size=2)] = np.nan
    y = rng.integers(0, classes, len(x)) if classes else rng.normal(size=len(x))
    return Records(x=x, y=y, slots=present)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "LEAST_BLOCK", 16)
    monkeypatch.setattr(sums, "BLOCK_VALUES", 1)


def in_halves(answers: list[Partial]) -> Partial:
    """Add up a random half, the other half, and the two."""
    if len(answers) < 2:
        return sum(answers, start=Partial())
    random.shuffle(answers)
    middle = random.randrange(1, len(answers))
    return in_halves(answers[:middle]) + in_halves(answers[middle:])


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_a_fit_has_the_same_bytes_in_whatever_order_its_blocks_are_added(small_blocks, name, classes):
    one, read = learner(name, classes), records(120, classes, 5)
    center = np.full(one.shape, 0.25)
    held = [Held(read, 120, order) for order in (sum_of, in_halves, in_halves)]
    assert len({one.fit(each, 120, center).tobytes() for each in held}) == 1
    exponent = SummedObjective(held[0], one.prepared, one.loss, one.setting().lipschitz, 120, 0.1, center).exponent
    question = Question(enter=one.prepared, loss=one.loss, exponent=exponent, weights=center)
    assert len({each.add_up(question, cut(120, one.shape[1])) for each in held}) == 1


def test_a_fit_is_the_same_where_all_slots_are_empty_that_it_would_begin_with():
    """Which slots are empty must not end it: of 600 slots it looks at every second one first."""
    rng = np.random.default_rng(3)
    one = learner("logistic", 2)
    read = Records(x=rng.normal(size=(300, 3)), y=rng.integers(0, 2, 300), slots=np.arange(1, 600, 2))
    center = np.zeros(one.shape)
    apart = one.fit(Held(read, 600), 600, center) - one.fit(read, 600, center)
    assert np.linalg.norm(apart) <= SLACK * one.sensitivity(600)


def test_a_gradient_in_doubles_is_none_in_single_precision_that_is_remembered():
    """A search looks at a point roughly first, and certifies it by the other."""
    one, read = learner("softmax", 3), records(120, 3, 5)
    center, weights = np.zeros(one.shape), np.full(one.shape, 0.3)
    seen, fresh = (
        SummedObjective(Held(read, 120), one.prepared, one.loss, one.setting().lipschitz, 120, 0.1, center)
        for _ in range(2)
    )
    _, rough = seen.evaluate(weights, roughly=True)
    _, exact = seen.evaluate(weights)
    assert np.array_equal(exact, fresh.evaluate(weights)[1])
    assert not np.array_equal(exact, rough)


def test_a_fit_is_certified_for_as_many_slots_as_its_noise_reckons_with(monkeypatch):
    one, read, promises = learner("softmax", 3), records(120, 3, 5), []
    monkeypatch.setattr(solvers, "_certified", lambda _problem, _bound, promise: promises.append(promise))
    center = np.full(one.shape, 0.25)
    for each in (read, Held(read, 120)):
        one.fit(each, 120, center)
    public = {"norm_bound": 1.0, "regularization": 0.1, "shape": one.shape}
    assert promises == 2 * [accuracy(one.loss, **public, records=120, center_norm=norm(center))]


def sum_of(answers: list[Partial]) -> Partial:
    return sum(reversed(answers), start=Partial())


@pytest.mark.more
@pytest.mark.parametrize(("name", "classes"), CASES)
@pytest.mark.parametrize("alpha", [0.01, 1.0])
@pytest.mark.parametrize(("n", "slots"), [(100, 16), (30_000, 8192)])
def test_the_gradient_at_a_fit_is_as_short_as_promised(monkeypatch, n, slots, name, classes, alpha):
    """The sum of all records' gradients is computed anew, each from its own row and without blocks, in long doubles.

    With 30,000 records single precision is not good enough, so there are two sizes.
    """
    monkeypatch.setattr(sums, "LEAST_BLOCK", slots)
    monkeypatch.setattr(sums, "BLOCK_VALUES", 1)
    one, read = learner(name, classes, alpha), records(n, classes, 7)
    center = np.random.default_rng(1).normal(size=one.shape)
    promise = accuracy(
        one.loss,
        norm_bound=1.0,
        regularization=alpha,
        shape=one.shape,
        records=n,
        center_norm=float(np.linalg.norm(center)) * MARGIN,
    )
    fitted = one.fit(Held(read, n), n, center)
    rows, y = one.prepared(read)
    problem = {"loss": one.loss, "x": rows.rows(), "y": y, "records": n, "regularization": alpha, "center": center}
    exact = gradient(problem, fitted)
    assert float(np.linalg.norm(exact)) <= promise.tolerance
    apart = np.linalg.norm(fitted - one.fit(read, n, center))
    assert apart <= 2 * promise.tolerance / alpha


@pytest.mark.parametrize("seed", range(8))
def test_neighbours_are_never_further_apart(small_blocks, seed):
    rng = np.random.default_rng(seed)
    name, classes = CASES[seed % 4]
    one, read = learner(name, classes, float(10 ** rng.uniform(-3, 1))), records(60, classes, seed)
    changed = rng.integers(len(read.y))
    if seed % 3:
        x, y = read.x.copy(), read.y.copy()
        x[changed], y[changed] = -x[changed], rng.integers(classes or 2)
        other = Records(x=x, y=y, slots=read.slots)
    else:
        other = read[np.arange(len(read.y)) != changed]
    center = rng.normal(size=one.shape)
    fits = [one.fit(Held(each, 60), 60, center) for each in (read, other)]
    assert np.linalg.norm(fits[0] - fits[1]) <= one.sensitivity(60, center)


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_blocks_lose_less_than_is_reserved_for_them(small_blocks, name, classes):
    """Each block's sum against the integer that it becomes, and all integers against their double: below 2u·L·n."""
    one, read = learner(name, classes), records(1000, classes, 3)
    lipschitz, weights = one.setting().lipschitz, np.full(one.shape, 0.5)
    held = Held(read, 1000)
    problem = SummedObjective(held, one.prepared, one.loss, lipschitz, 1000, 0.1, np.zeros(one.shape))
    blocks = cut(1000, one.shape[1])
    question = Question(enter=one.prepared, loss=one.loss, exponent=problem.exponent, weights=weights)
    total = held.add_up(question, blocks)
    exact, losses, present = [Fraction(0)] * one.dimension, 0.0, 0
    for start, stop in blocks:
        rows, y = one.prepared(held.read(start, stop))
        loss, of_block = summed(one.loss, rows, y, weights)
        losses, present = losses + loss, present + len(y)
        exact = [before + Fraction(float(more)) for before, more in zip(exact, of_block.ravel(), strict=True)]
    unit = Fraction(2) ** question.exponent
    doubles = [Fraction(float(each)) * unit for each in total.sums]
    lost = sum((one - other) ** 2 for one, other in zip(doubles, exact, strict=True))
    assert lost <= (2 * Fraction(2) ** -53 * Fraction(lipschitz) * 1000) ** 2
    assert total.records == present
    assert float(total.value * unit) == pytest.approx(losses, rel=1e-12)


def test_a_range_without_records_stays_at_its_centre():
    one, center = learner("logistic", 2), np.full((1, 4), 0.5)
    nothing = Records(x=np.zeros((0, 3), np.float32), y=np.zeros(0, np.int32), slots=np.zeros(0, np.int64))
    assert np.array_equal(one.fit(Held(nothing, 100), 100, center), center)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("far", "first"), [(1e37, 0.0), (1e37, 100.0)])
def test_no_record_ends_a_fit_that_starts_where_single_precision_overflows(far, first):
    """As a regression may, whose model became longer from fit to fit: 1e37·100 is more than single precision holds."""
    one = replace(learner("squared", 0, 1e6), norm_bound=100.0)
    x, center = np.zeros((60, 3), np.float32), np.zeros(one.shape)
    x[0, 0], center[0, 0] = first, far
    read = Records(x=x, y=np.zeros(60), slots=np.arange(60))
    apart = np.linalg.norm(one.fit(Held(read, 60), 60, center) - one.fit(read, 60, center))
    assert apart <= SLACK * one.sensitivity(60, center)


def test_more_records_than_slots_and_records_of_units_are_refused():
    one, read = learner("logistic", 2), records(100, 2, 1)
    center = np.zeros(one.shape)
    with pytest.raises(ValueError, match="slots"):
        one.fit(Held(read, 100), 10, center)
    of_units = Records(
        x=read.x, y=read.y, slots=read.slots, weights=np.ones(len(read.y)), units=100, owners=np.arange(len(read.y))
    )
    with pytest.raises(ValueError, match="units"):
        one.fit(Held(of_units, 100), 100, center)


@pytest.mark.parametrize(("slots", "features"), [(1, 1), (5_000_000, 33), (1000, 10**6), (2**20, 2)])
def test_blocks_cover_a_range_and_hold_few_values(slots, features):
    blocks = cut(slots, features)
    assert (blocks[0][0], blocks[-1][1]) == (0, slots)
    assert all(one[1] == another[0] for one, another in pairwise(blocks))
    assert max(stop - start for start, stop in blocks) <= max(sums.LEAST_BLOCK, sums.BLOCK_VALUES // features)


def test_of_a_record_with_a_share_only_that_part_of_its_loss_is_added():
    rng = np.random.default_rng(5)
    x, y, weights = rng.normal(size=(300, 3)), rng.integers(0, 2, 300), rng.normal(size=(1, 3))
    shares, rows = rng.uniform(0.1, 1.0, 300), PreparedRows.as_they_are(x)
    losses = LOSSES["logistic"].derivatives(x @ weights.T, y)[0]
    assert summed(LOSSES["logistic"], rows, y, weights, shares=shares)[0] == pytest.approx((shares * losses).sum())


def test_no_blocks_are_no_records():
    assert (Partial() + Partial()).records == 0
