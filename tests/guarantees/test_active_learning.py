"""Somebody who sees every coin and every model tries to tell which of two records it was that they are about.

One is near the hyperplane and pulls along it one way, the other is far from it and pulls the other way: coin and update
tell the same, so that what is lost is nearly ε_s + ε_g. `planted` shows that more is seen where there is a bug.
"""

from functools import cache

import numpy as np
import pytest

from service.learning.records import Records, UnitPattern
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.privacy.currency import Currency, capacity
from service.streams.schema import StreamSchema
from tests import chance

NEAR_IT = np.array([[0.02, 0.999]])
SEEN = {  # of two records, and of a record and an empty slot: what was seen in 40 samples, and how that spread
    "bernoulli": ((1.73, 0.09), (0.86, 0.04)),
    "exponential": ((1.04, 0.04), (0.79, 0.026)),
}
CASES = {  # what is far, and what is spent on coin and update
    "bernoulli": (np.array([[0.3, -0.953]]), {"threshold": 0.1, "epsilon_selection": 0.5, "epsilon_update": 2}),
    "exponential": (np.array([[1.0, 0.0]]), {"threshold": 0.3, "epsilon_selection": 1, "epsilon_update": 1}),
}
WRONG_SIDE = [[-1e4, 0.0]]
COUNT = 6000  # half the noise of an update is then seen in all but few of a million runs


def publication(selection):
    return build(
        StreamSchema.model_validate({"features": 2, "task": {"kind": "classification", "classes": 2}}),
        PublicationConfiguration.model_validate(
            {
                "mechanism": {
                    "kind": "active_learning",
                    "batching": "fixed_window",
                    "size": 1,
                    "selection": selection,
                    **CASES[selection][1],
                    "learning_rate": 1.0,
                    "radius": 100.0,
                },
                "learner": {"kind": "noisy_gradient_descent", "intercept": False, "origin": WRONG_SIDE},
                "privacy": {"epsilon": 3},
            }
        ),
    )


@cache
def seen(selection, record, count=COUNT):
    """Return by run how far the model moved along the hyperplane; -inf where the record was not selected."""
    mechanism, x = publication(selection), {"near": NEAR_IT, "far": CASES[selection][0], "none": NEAR_IT[:0]}[record]
    moved = []
    slots = np.arange(len(x))
    for _ in range(count):
        step = mechanism.step(1, (), 1, lambda start, end: Records(x=x, y=np.ones(len(x)), slots=slots))
        moved.append(step.releases[0].parameters[0, 1] if step.releases else -np.inf)
    return np.array(moved)


@pytest.mark.more
@pytest.mark.slow
def test_two_persons_are_told_apart_no_better_than_was_promised():
    """Each record of either is in a window of its own, which costs most, and pulls the same way each time."""
    unit = {"unit": {"max_records": 3}}
    stream = {"features": 2, "task": {"kind": "classification", "classes": 2}} | unit
    settings = {"threshold": 0.1, "epsilon_selection": 0.5, "learning_rate": 1.0, "radius": 100.0}
    body = {
        "mechanism": {"kind": "active_learning", "batching": "fixed_window", "size": 1} | settings,
        "learner": {"kind": "noisy_gradient_descent", "intercept": False, "origin": WRONG_SIDE},
        "privacy": {"epsilon": 12, "delta": 1e-6},
    }
    mechanism = build(StreamSchema.model_validate(stream), PublicationConfiguration.model_validate(body))
    pattern = UnitPattern(pseudonyms=np.zeros((1, 16), dtype=np.uint8), counting=np.ones(1, dtype=np.bool_))

    def moved(x):
        def read(start, end):
            whole = {"weights": np.ones(1), "units": 1, "pattern": pattern}
            return Records(x=x, y=np.ones(1), slots=np.array([start]), **whole)

        chain, made, far = (), 0, 0.0
        for time in (1, 2, 3):
            step = mechanism.step(time, chain, made + 1, read)
            chain, made = step.chain, made + len(step.releases)
            far = step.releases[0].parameters[0, 1] if step.releases else far
        return far

    attackers = [lambda x=x: moved(x) > 0 for x in (NEAR_IT, NEAR_IT * [[1, -1]])]
    promised = capacity(mechanism.privacy.epsilon, mechanism.privacy.delta)[1]
    chance.assert_tells_apart_no_better(*attackers, 1000, mechanism.currency, promised)


def lost(hits, false_hits, lines):
    """Return the least ε that one of so many lines shows."""
    return chance.least_loss(hits, false_hits, Currency.PURE, false_alarm=chance.FALSE_ALARM / lines)


@pytest.mark.slow
@pytest.mark.parametrize("selection", CASES)
def test_coins_and_models_together_tell_no_more_than_is_charged(selection):
    """Check that it was selected and moved by at least so much, or was not: nine lines, which share the rate."""
    mechanism = publication(selection)
    near, far = (seen(selection, record) for record in ("near", "far"))
    lines = [*np.linspace(0.0, 3.0, 7), -1e300]
    losses = [lost(near > line, far > line, 9) for line in lines]
    losses.append(lost(far == -np.inf, near == -np.inf, 9))
    chance.assert_loses_no_more(max(losses), mechanism.capacity)
    mean, spread = SEEN[selection][0]
    chance.assert_above(max(losses), 0.35, mean=mean, spread=spread, runs=40)


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("selection", CASES)
def test_a_record_and_an_empty_slot_are_told_apart_no_better_than_is_charged(selection):
    """By coins and models, for either record, both ways. Runs with a record are those of the other test."""
    mechanism = publication(selection)
    empty = seen(selection, "none", 4000)
    losses = []
    for record in ("near", "far"):
        there = seen(selection, record)[: len(empty)]
        for one, other in ((there, empty), (empty, there)):
            losses += [lost(one > line, other > line, 40) for line in (*np.linspace(0, 3, 8), -1e300)]
            losses.append(lost(one == -np.inf, other == -np.inf, 40))
    chance.assert_loses_no_more(max(losses), mechanism.capacity)
    mean, spread = SEEN[selection][1]
    chance.assert_above(max(losses), 0.2, mean=mean, spread=spread, runs=40)
