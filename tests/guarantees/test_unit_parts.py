"""Somebody who sees coins, updates, comparisons or measured answers tries to tell which of two persons it was.

As in `test_unit_audits`, but what costs a unit in several parts is audited part by part, since nobody sees all of a
sum of pure losses at once. Each part is compared with its share of what the unit was promised: of active learning a
half is for coins and a half for updates, given the coins; of linear queries, 2/3 of ε and 4/5 of ρ are for comparisons,
the rest is for the answer. All of a unit's records differ, in the pattern that costs most: in windows of their own, or
among those over which an instance opens.

Power: with noise, or coins, a third too small, a part is to be rejected with as many runs as `OFTEN`, which
`test_parts_that_are_a_third_too_cheap` tries; noise that is for a record, not for both of its unit, with `SELDOM`,
which planted bugs try.
"""

from math import sqrt

import numpy as np
import pytest

from service.learning.records import Records, UnitPattern
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.histogram import LinearQuery
from service.privacy.currency import Currency, capacity
from service.privacy.noise import additive, numeric_sparse, selection, sparse_vector
from service.streams.schema import StreamSchema
from tests import chance
from tests.guarantees.test_audits import ACROSS, FAR
from tests.mechanisms.linear_queries.test_linear_queries import Run

RECORDS_OF_UNIT = 2
NEAR, ASIDE = ACROSS[0], np.array([[0.6, -0.8]], dtype=np.float32)
"""A record that a model near FAR has in its slab, and one that it has outside."""
CELLS = 20 * RECORDS_OF_UNIT  # slots over which an instance opens: a histogram that knows nothing gives a category 1/5
HEIGHT = (4 - 2 / 3) / 20  # from which on a query is hard, so low that an instance's first hard query tells most
FIRST, SECOND = (LinearQuery.holding(np.array([category])) for category in (0, 1))
EASY = 6  # queries that are to come out easy before the hard one


def published(task, settings, privacy):
    schema = {"task": task, "unit": {"max_records": RECORDS_OF_UNIT}} | ({"features": 2} if "classes" in task else {})
    return build(
        StreamSchema.model_validate(schema), PublicationConfiguration.model_validate(settings | {"privacy": privacy})
    )


def selecting(privacy):
    settings = {
        "mechanism": {
            "kind": "active_learning",
            "batching": "fixed_window",
            "size": 1,
            "threshold": 0.1,
            "learning_rate": 1.0,
            "radius": 100.0,
        },
        "learner": {"kind": "noisy_gradient_descent", "intercept": False, "origin": FAR},
    }
    return published({"kind": "classification", "classes": 2}, settings, privacy)


def queried(privacy):
    settings = {"kind": "linear_queries", "first": CELLS, "hits": 1, "accuracy": 6 / 5 * HEIGHT}
    return published({"kind": "categorical", "cardinality": 4}, {"mechanism": settings}, privacy)


def moves(mechanism, x):
    """Return how far each record of the unit moved the model along the second axis; None: it was not selected."""
    pattern = UnitPattern(pseudonyms=np.zeros((1, 16), dtype=np.uint8), counting=np.ones(1, dtype=np.bool_))

    def read(start, end):
        return Records(x=x, y=np.ones(1), slots=np.arange(start, end), weights=np.ones(1), units=1, pattern=pattern)

    chain, weights, made, seen = (), mechanism.origin, 0, []
    for time in range(1, RECORDS_OF_UNIT + 1):
        step = mechanism.step(time, chain, made + 1, read)
        chain, made = step.chain, made + len(step.releases)
        seen.append(None)
        for release in step.releases:
            seen[-1] = float((release.parameters - weights)[0, 1])
            weights = release.parameters
    return seen


def coins(mechanism):
    """Whether all records were selected: of a unit near the hyperplane, and of one far from it."""
    return [lambda x=x: None not in moves(mechanism, x) for x in (NEAR, ASIDE)]


def updates(mechanism):
    """Whether all updates moved far, or together farther than not, of units that pull this way or that.

    All coins are the same, as if they had come so: given any, updates must cost no more than this.
    """

    def seen(x):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selection.Bernoulli, "select", lambda *_: True)
            moved = np.array(moves(mechanism, x))
        return (moved > ACROSS[0][0, 1]).all() if mechanism.currency is Currency.PURE else moved.sum() > 0

    return [lambda x=x: seen(x) for x in ACROSS]


def asking(mechanism, category):
    """Return a publication with all records of a unit in a category; all other slots are erased."""
    run = Run(mechanism)
    run.arrive([category] * CELLS)
    run.counts = RECORDS_OF_UNIT * np.eye(mechanism.cardinality, dtype=np.int64)[category]
    return run


def comparisons(mechanism):
    """Whether several queries came out easy, and then another hard, with a unit in the category of either."""

    def seen(category):
        run = asking(mechanism, category)
        return not any(run.is_hard(FIRST) for _ in range(EASY)) and run.is_hard(SECOND)

    return [lambda category=category: seen(category) for category in (0, 1)]


def answers(mechanism):
    """Whether a measured answer is as if nobody was there, or nearer to that."""
    line = 0.0 if mechanism.currency is Currency.PURE else RECORDS_OF_UNIT / CELLS / 2
    return [lambda category=category: asking(mechanism, category).hit(SECOND) <= line for category in (0, 1)]


PARTS = {
    "coins": (coins, selecting, {"epsilon": 6}, lambda epsilon: (Currency.PURE, epsilon / 2)),
    "updates": (updates, selecting, {"epsilon": 8}, lambda epsilon: (Currency.PURE, epsilon / 2)),
    "updates, gaussian": (updates, selecting, {"epsilon": 18, "delta": 1e-6}, lambda rho: (Currency.ZCDP, rho / 2)),
    "comparisons": (comparisons, queried, {"epsilon": 3}, lambda epsilon: (Currency.PURE, 2 / 3 * epsilon)),
    "comparisons, gaussian": (
        comparisons,
        queried,
        {"epsilon": 14, "delta": 1e-6},
        lambda rho: (Currency.PURE, sqrt(2 * 4 / 5 * rho)),
    ),
    "answers": (answers, queried, {"epsilon": 6}, lambda epsilon: (Currency.PURE, epsilon / 3)),
    "answers, gaussian": (answers, queried, {"epsilon": 40, "delta": 1e-6}, lambda rho: (Currency.ZCDP, rho / 5)),
}
"""By name: what somebody sees, of which publication, with which promise, and which part of that promise it is."""
FEW = {"coins": 2000, "answers": 2000, "comparisons": 8000, "comparisons, gaussian": 8000}
SELDOM = dict.fromkeys(PARTS, 5000) | FEW | {"updates, gaussian": 1000, "answers, gaussian": 1000}
LONG = ("updates", "comparisons, gaussian")
OFTEN = SELDOM | {
    "coins": 5000,
    "answers": 5000,
    "updates": 30_000,
    "comparisons": 60_000,
    "comparisons, gaussian": 60_000,
}


def audit(name, runs):
    see, of, privacy, part = PARTS[name]
    mechanism = of(privacy)
    promised = float(capacity(mechanism.privacy.epsilon, mechanism.privacy.delta)[1])
    currency, share = part(promised)
    chance.assert_tells_apart_no_better(*see(mechanism), runs, currency, share * (1 + 1e-9))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in PARTS]
)
def test_nobody_can_tell_two_persons_apart_by_a_part_better_than_promised(name):
    audit(name, SELDOM[name])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name in PARTS if OFTEN[name] > SELDOM[name]])
def test_nor_by_many_more_runs(name):
    audit(name, OFTEN[name])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PARTS)
def test_parts_that_are_a_third_too_cheap_are_noticed(monkeypatch, name):
    """Coins lie less often, and noise is smaller, than the mechanism says."""
    for law in (additive.Gaussian, additive.SphericalLaplace):
        true = law.sample
        monkeypatch.setattr(law, "sample", lambda self, true=true: true(self) * 2 // 3)
    for module in (sparse_vector, numeric_sparse):
        laplace = module.discrete_laplace
        monkeypatch.setattr(module, "discrete_laplace", lambda scale, laplace=laplace: laplace(scale * 2 / 3))
    gaussian = numeric_sparse.discrete_gaussian
    monkeypatch.setattr(numeric_sparse, "discrete_gaussian", lambda variance, size: gaussian(variance * 4 / 9, size))
    truthful = selection.Bernoulli._truthful

    def bolder(self):
        return truthful(selection.Bernoulli(epsilon=1.5 * self.epsilon, threshold=self.threshold))

    monkeypatch.setattr(selection.Bernoulli, "_truthful", bolder)
    with chance.is_noticed():
        audit(name, OFTEN[name])
