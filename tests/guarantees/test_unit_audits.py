"""Somebody who knows everything but one person's records tries to tell which of two persons it was.

As in `test_audits`, but all counting records of one unit differ, as much as any can, at the pattern that costs most: in
neighbouring batches. All other slots are of nobody.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.scheduled.mechanism import Scheduled
from service.privacy.currency import capacity
from service.privacy.noise import counts
from service.privacy.noise.correlated import Correlated
from service.streams.schema import StreamSchema
from service.streams.units import contributions
from tests import chance
from tests.guarantees.test_audits import FAR, PRIVACY, Signs, tell_apart
from tests.mechanisms import cases

DESCENT = {"kind": "noisy_gradient_descent", "origin": FAR, "momentum": 0.0}
LEADER = {"kind": "online_leader", "batch": 2, "averaging": False}


class Case(NamedTuple):
    """A publication, the slots of the one unit, until when it is watched, and how often, with either's records."""

    mechanism: dict
    slots: tuple[int, ...]
    until: int
    runs: int
    learner: dict | None = DESCENT
    privacy: str = "gaussian"
    separation: int = 1


BATCHES, ONE_STEP = {"kind": "independent_batches", "batch": 2}, DESCENT | {"steps": 1}
OUTPUT = {"kind": "output_perturbation", "regularization": 1.0, "origin": FAR}
TILTED = OUTPUT | {"kind": "objective_perturbation"}
CASES = {
    "online_leader": Case(LEADER, (0, 2, 4), 10, 330),
    "independent_batches": Case(BATCHES, (0, 2, 4), 6, 330, ONE_STEP),
    "independent_batches, all in one": Case(BATCHES | {"batch": 4}, (0, 1, 2, 3), 4, 330, ONE_STEP),
    "output perturbation": Case(BATCHES, (0, 2, 4), 6, 400, OUTPUT),
    **{
        name: Case(mechanism, (0, 2, 4), 6, 400, {"kind": "output_perturbation"})
        for name, mechanism in cases.of_families("AUDITED_UNITS").items()
    },
}
LONG = {
    "online_leader, toeplitz": Case(LEADER | {"noise": "toeplitz", "decay": 0.9}, (0, 2, 4), 10, 1300),
    "online_leader, tree": Case(LEADER | {"noise": "tree"}, (0, 2, 4, 6), 8, 1300),
    "online_leader, far apart": Case(LEADER, (0, 6, 12), 16, 1300, separation=6),
    "online_leader, together": Case(LEADER, (0, 1, 2, 3), 8, 1300),
    "online_leader, pure": Case(LEADER, (0, 2), 4, 1800, privacy="pure"),
    "sliding_window": Case({"kind": "sliding_window", "block": 2, "blocks": 2}, (0, 2, 4), 8, 1300, ONE_STEP),
    "output perturbation, all in one": Case(BATCHES | {"batch": 4}, (0, 1, 2, 3), 4, 1300, OUTPUT),
    "output perturbation, psgd": Case(BATCHES | {"batch": 4}, (0, 1, 2, 3), 4, 1300, OUTPUT | {"solver": "psgd"}),
    "objective perturbation": Case(BATCHES | {"batch": 4}, (0, 1, 4, 5), 8, 1800, TILTED, privacy="pure"),
    "output perturbation, pure": Case(BATCHES, (0, 2), 4, 1800, OUTPUT, privacy="pure"),
    "continual": Case({"kind": "continual", "base": 4, "update_every": 2}, (0, 4, 8), 16, 1300, ONE_STEP),
}


def published(case):
    unit = {"max_records": len(case.slots), "min_separation": case.separation}
    schema = {"features": 2, "task": {"kind": "classification", "classes": 2}, "unit": unit}
    learner = {} if case.learner is None else {"learner": {"intercept": False} | case.learner}
    configuration = {"mechanism": case.mechanism, "privacy": PRIVACY[case.privacy]} | learner
    return build(StreamSchema.model_validate(schema), PublicationConfiguration.model_validate(configuration))


def reading(slots, x, label=1):
    """Return what reads a stream of which one unit has all records, each x with that label."""

    def read(start, end):
        here = np.array([slot for slot in slots if start <= slot < end], dtype=np.int64)
        return Records(
            x=np.repeat(x, len(here), axis=0),
            y=np.full(len(here), label),
            slots=here,
            weights=contributions(np.zeros(len(here), dtype=np.int64)),
            units=min(1, len(here)),
            firsts=np.arange(len(here)) == 0,
            owners=np.zeros(len(here), dtype=np.int64),
        )

    return read


def moves(built, slots, x, until):
    """One run: how far each release that follows from the unit's records moved along the second axis."""
    read = reading(slots, x)
    time, chain, released, seen = 0, (), {None: built.origin}, []
    while (time := built.next_time(time)) <= until:
        step = built.step(time, chain, len(released), read)
        chain = step.chain
        for release in step.releases:
            released[release.version] = release.parameters
            known = release.fit[0] if isinstance(built, Scheduled) else 0
            if any(known <= slot < release.fit[1] for slot in slots):
                seen.append(float((release.parameters - released[release.parent])[0, -1]))
    return seen


def audit(case):
    built = published(case)
    assert_tells_no_more(
        built, tell_apart(lambda x: moves(built, case.slots, x, case.until), built.currency), case.runs
    )


def assert_tells_no_more(built, attackers, runs):
    promised = capacity(built.privacy.epsilon, built.privacy.delta)[1]
    chance.assert_tells_apart_no_better(*attackers, runs, built.currency, promised)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_nobody_can_tell_two_persons_apart_better_than_promised(name):
    audit(CASES[name])


@pytest.mark.long
@pytest.mark.parametrize("name", CASES | LONG)
def test_nor_by_many_more_runs(name):
    case = (CASES | LONG)[name]
    audit(case if name in LONG else case._replace(runs=4 * case.runs))


SUMMED = cases.of_families("AUDITED_UNITS") | cases.of_families("SUMMED_UNITS")


def farthest_apart(learner):
    """Return the two records (x, label) whose statistics are farthest apart, and the difference."""
    angles = np.linspace(0, np.pi, 37)
    records = [(np.array([[np.cos(t), np.sin(t)]], dtype=np.float32), label) for t in angles for label in (0, 1)]
    sums = np.array([learner.statistics(Records(x=x, y=np.array([label])), 1) for x, label in records])
    both = np.unravel_index(np.square(sums[:, None] - sums).sum(axis=2).argmax(), (len(sums), len(sums)))
    return [records[each] for each in both], sums[both[0]] - sums[both[1]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runs"),
    [("lifelong", 300), *(pytest.param(name, 1500, marks=pytest.mark.long) for name in SUMMED)],
)
def test_nobody_can_tell_two_persons_apart_by_private_sums(monkeypatch, name, runs):
    """All that is released follows from them, so that an attacker may as well see them.

    1500 runs show noise that is a third too small.
    """
    case, seen, true = Case(SUMMED[name], (0, 2, 4), 12, runs, {"kind": "output_perturbation"}), [], Correlated.release
    built = published(case)
    both, apart = farthest_apart(built.learner)

    def seeing(self, values, *where):
        estimate, memory = true(self, values, *where)
        seen.append(float(estimate @ apart))
        return estimate, memory

    def run(record):
        seen.clear()
        read, time, chain = reading(case.slots, *record), 0, ()
        while (time := built.next_time(time)) <= case.until:
            chain = built.step(time, chain, 1, read).chain
        return list(seen)

    monkeypatch.setattr(Correlated, "release", seeing)
    assert_tells_no_more(built, tell_apart(run, built.currency, both), case.runs)


COUNTS = {
    "preparation": ({"kind": "preparation", "records": 8}, (0, 3, 5)),
    "evaluation": ({"kind": "evaluation", "of": ["a"], "block": 2}, (0, 2, 4)),
}


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("kind", COUNTS)
def test_nobody_can_tell_two_persons_apart_by_counts(kind):
    """Two persons' records differ in the cell of each feature, and a model is right about one of them alone."""
    mechanism, slots = COUNTS[kind]
    built = published(Case(mechanism, slots, 8, 600, None))
    if kind == "evaluation":
        built = replace(built, models=Signs())

    def released(x):
        read, times = reading(slots, np.full((1, 2), x)), built.plan()["first_releases"][: len(slots)]
        return np.array([built.step(time, (), 1, read).releases[0].parameters.ravel() for time in times])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "discrete_gaussian", lambda variance, size: np.zeros(size, dtype=np.int64))
        exact = released(1.0), released(-1.0)
    apart = exact[0] - exact[1]
    assert (apart != 0).any(axis=1).all()
    line = ((exact[0] + exact[1]) * apart).sum() / 2
    assert_tells_no_more(built, [lambda x=x: (released(x) * apart).sum() > line for x in (1.0, -1.0)], 600)
