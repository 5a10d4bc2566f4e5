"""Active learning on a stream with units: what all records of one unit cost, whatever its pattern and its coins."""

from fractions import Fraction
from itertools import combinations, pairwise, product
from math import isclose

import numpy as np
import pytest

from service.inputs.refused import Refused
from service.learning.records import Records, UnitPattern
from service.mechanisms.active_learning import mechanism as active_learning
from service.mechanisms.active_learning.active_gradient import ActiveGradient
from service.privacy.noise.additive import Gaussian, SphericalLaplace
from tests.mechanisms.active_learning.test_active_gradient import ORIGIN, learner
from tests.mechanisms.test_units import CORNERS, DESCENT, made, of_one_unit

WINDOW = {"kind": "active_learning", "batching": "fixed_window", "size": 2}
NOBODY = 9


def reading(whose, empty=()):
    """Return what reads a stream of so many slots, each of the unit with that number; `NOBODY`'s don't count."""
    units = np.array(whose)

    def read(start, end):
        slots = np.arange(start, end)
        counting = units[start:end] != NOBODY
        here = np.array([slot for slot in slots[counting] if slot not in empty], dtype=np.int64)
        pattern = UnitPattern(
            pseudonyms=np.repeat(units[start:end, None], 16, axis=1).astype(np.uint8), counting=counting
        )
        x, y = np.ones((len(here), 2), dtype=np.float32), np.ones(len(here), dtype=np.int32)
        return Records(x=x, y=y, slots=here, weights=np.ones(len(here)), units=9, pattern=pattern)

    return read


@pytest.mark.parametrize("delta", [0, 1e-6])
@pytest.mark.parametrize("separation", [1, 2, 3])
def test_no_pattern_and_no_coins_cost_more_than_was_promised_and_the_worst_as_much(separation, delta):
    built = made(WINDOW, DESCENT, unit={"max_records": 4, "min_separation": separation}, delta=delta)
    event = built.charging.event
    of_coin = built.currency.worth(event.selection.loss())
    of_update = Fraction(event.noise.charge(event.sensitivity))
    promised = built.capacity * built.factor

    def cost(selected, slots):
        return len(slots) * of_coin + len({slot // 2 for slot in selected}) * of_update

    seen = Fraction(0)
    for p in range(1, 5):
        for slots in combinations(range(12), p):
            if all(after - slot >= separation for slot, after in pairwise(slots)):
                coins = [slots, slots[:1]]  # the more are selected, the more it costs
                seen = max(seen, *(cost(selected, slots) for selected in coins))
    assert seen <= promised
    assert isclose(seen, promised, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("delta", "selection", "shared", "whole"),
    [(0, 0.5, "the epsilon of 0.25", "1"), (1e-6, 0.2, r"the rho of 0\.0060\d+", r"0\.024\d+")],
)
def test_a_selection_that_leaves_nothing_is_refused_with_what_was_asked_for(delta, selection, shared, whole):
    """And with what of it a slot may be charged."""
    with pytest.raises(
        Refused, match=rf"{shared} that a slot may be charged, 1/4 of the {whole} that privacy promises a unit"
    ):
        made(WINDOW | {"epsilon_selection": selection}, DESCENT, unit={"max_records": 4}, delta=delta)


@pytest.mark.more
def test_all_records_of_a_unit_in_a_batch_move_its_step_as_far_as_one(monkeypatch):
    for law in (Gaussian, SphericalLaplace):
        monkeypatch.setattr(law, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    built = made(WINDOW, DESCENT, unit={"max_records": 3})
    event = built.charging.event
    moved = [
        built.learner.update(of_one_unit(each), 1, built.origin, built.origin, event, 1)
        for each in product([*CORNERS, None], repeat=3)
    ]
    farthest = max(float(np.linalg.norm(one - other)) for one, other in product(moved, repeat=2))
    rate = built.learner.rate(event, 1)
    assert 0.4 * rate * event.sensitivity < farthest <= rate * event.sensitivity


@pytest.mark.parametrize("batching", ["fixed_window", "fixed_batch"])
def test_slots_that_do_not_count_have_no_coin(monkeypatch, batching):
    monkeypatch.setattr(active_learning, "AT_ONCE", 2)
    built = made(WINDOW | {"batching": batching, "size": 4}, DESCENT, unit={"max_records": 3})
    updates, true = [], ActiveGradient.update

    def update(self, records, count, *more):
        updates.append((count, records.weights.tolist()))
        return true(self, records, count, *more)

    monkeypatch.setattr(ActiveGradient, "update", update)
    monkeypatch.setattr("service.privacy.noise.selection.Bernoulli.select", lambda *_: True)
    read = reading([1, NOBODY, 1, 2, 1, NOBODY, NOBODY, 3], empty=(4,))
    position, chain, released = 0, (), 0
    while position < 8:
        step = built.step(built.taken_at(built.next_time(position), 8), chain, released + 1, read)
        position, chain, released = step.reached, step.chain, released + len(step.releases)
    halves = [(2, [0.5, 0.5, 1.0]), (2, [1.0])]  # slot 4 is empty, and part of its unit all the same
    thirds = [(2, [1 / 3, 1 / 3, 1.0])]
    expected = halves if batching == "fixed_window" else thirds
    assert [count for count, _ in updates] == [count for count, _ in expected]
    for (_, weights), (_, wanted) in zip(updates, expected, strict=True):
        assert weights == pytest.approx(wanted)


def test_a_batch_has_no_more_units_than_its_noise_is_for():
    one = learner()
    records = Records(x=np.zeros((9, 3)), y=np.zeros(9), weights=np.full(9, 0.5), units=9)
    with pytest.raises(ValueError, match="at most as many"):
        one.update(records, 9, ORIGIN, ORIGIN, None, 1)
