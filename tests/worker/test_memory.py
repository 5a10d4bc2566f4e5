"""The memory of a publication between two steps: a worker goes on from just that, or the publication halts."""
# ruff: noqa: F811 - a fixture is another file's

import os
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, func, select, update

from service.mechanisms import sufficient_statistics
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.lifelong import encoder_pass
from service.mechanisms.lifelong.encoder_pass import EncoderPass
from service.mechanisms.mechanism import StatePart
from service.mechanisms.online_leader import online_gradient
from service.privacy.noise.correlated import Blt
from service.privacy.sensitivity import StatisticsWeights
from service.segments.locating import read_records
from service.store import parts, publications, releases, tables
from service.streams.schema import StreamSchema
from tests.mechanisms import cases
from tests.worker.published import Bench, Crash, crash_at
from tests.worker.test_publishing import SCHEMA, bench  # noqa: F401


def online(noise: dict[str, Any]) -> dict[str, Any]:
    return {
        "mechanism": {"kind": "online_leader", "batch": 1, **noise},
        "learner": {"kind": "noisy_gradient_descent"},
        "privacy": {"epsilon": 1, "delta": 1e-6},
    }


SUMS = {
    "mechanism": {"kind": "lifelong", "task_size": [1, 2], "batch": 1},
    "learner": {"kind": "output_perturbation"},
    "privacy": {"epsilon": 1, "delta": 1e-6},
}
OF_FAMILIES = cases.of_families("REMEMBERING")
REMEMBERING = [
    online({"noise": "blt"}),
    online({"noise": "toeplitz", "decay": 0.5}),
    online({"noise": "tree"}),
    online({"noise": "window_tree", "window": 3, "expiry": "leaf", "acknowledge_declassification": True}),
    *({**SUMS, "mechanism": mechanism} for mechanism in OF_FAMILIES.values()),
    SUMS,
    SUMS | {"mechanism": {"kind": "lifelong", "task_size": [1, 2], "batch": 1, "training": "agem", "memory": 1}},
    pytest.param(
        SUMS
        | {
            "mechanism": {
                "kind": "lifelong",
                "task_size": [1, 2],
                "batch": 1,
                "encoder": {"kind": "dense", "records": 1, "layers": [3]},
            }
        },
        marks=pytest.mark.skipif(not encoder_pass.available(), reason="the extra `deep` is not installed"),
    ),
]


@pytest.mark.more
@pytest.mark.parametrize(
    "bench",
    REMEMBERING,
    ids=["blt", "toeplitz", "tree", "leaf", *OF_FAMILIES, "lifelong", "agem", "encoder"],
    indirect=True,
)
def test_killed_between_any_two_steps_it_continues_exactly(bench: Bench, monkeypatch):
    """As an uninterrupted run given the same randomness: here what a step draws depends on nothing but its number."""
    mechanism = build(
        StreamSchema.model_validate(SCHEMA), PublicationConfiguration.model_validate(bench.now().configuration)
    )
    read = partial(read_records, bench.database, bench.files, bench.stream(), 0)
    mechanism.step(1, (), 1, read)  # what it imports and compiles at first may draw too
    learner = type(mechanism.learner)

    def advance(self, state, records, n, origin, perturbation, step, real=learner.advance):
        monkeypatch.setattr(os, "urandom", np.random.default_rng(getattr(step, "number", step)).bytes)
        return real(self, state, records, n, origin, perturbation, step)

    monkeypatch.setattr(learner, "advance", advance)

    def release(self, *arguments, real=EncoderPass.release):
        monkeypatch.setattr(os, "urandom", np.random.default_rng(0).bytes)
        return real(self, *arguments)

    monkeypatch.setattr(EncoderPass, "release", release)
    chain, expected = (), []
    for time in range(1, 6):
        step = mechanism.step(time, chain, time, read)
        chain = step.chain
        expected.append(step.releases[0].parameters)

    crashes = 0
    while (before := bench.now()).position < 5:
        for module, name, calls, after in (
            (publications, "move", 1, before.position % 2 == 0),  # the step is lost
            (parts, "keep", 2, False),  # one step is committed, the next one is lost
        ):
            with monkeypatch.context() as patched:
                crash_at(patched, module, name, calls=calls, after=after)
                try:
                    bench.publisher().step(threading.Event())
                except Crash:
                    crashes += 1
            assert bench.now().position in (before.position, before.position + calls - 1)
    assert crashes >= 5 + 5
    with bench.database.transaction() as connection:
        parameters = [releases.parameters(connection, bench.identity, version) for version in range(1, 6)]
        numbers = connection.execute(select(tables.parts.c.number)).scalars().all()
    assert [np.abs(one - other).max() for one, other in zip(expected, parameters, strict=True)] == [0] * 5
    assert sorted(numbers) == [each.number for each in chain if isinstance(each, StatePart)]
    assert bench.counts() == (5, 5)


@pytest.mark.parametrize("what", ["a part from elsewhere", "another clip", "another factor"])
@pytest.mark.parametrize("bench", REMEMBERING[:1], indirect=True)
def test_with_other_noise_than_was_charged_for_no_step_goes_on(bench: Bench, monkeypatch, what):
    """As after parts that were put back, or an upgrade to a version with other defaults."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=4))
    bench.publish_all()
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=10))
        if what == "a part from elsewhere":
            newest = select(func.max(tables.parts.c.number)).scalar_subquery()
            nothing = bytes(8 * 2)
            connection.execute(update(tables.parts).where(tables.parts.c.number == newest).values(content=nothing))
    if what == "another clip":
        monkeypatch.setattr(online_gradient, "clipped_at", lambda _: 0.1)
    if what == "another factor":
        monkeypatch.setattr(Blt, "decaying", lambda _: Blt(decays=(0.5,), scales=(0.5,), steps=16))
    assert bench.publisher().step(threading.Event())
    assert (bench.now().state, bench.now().position) == ("halted", 4)
    assert "other noise" in bench.now().reason


@pytest.mark.parametrize("bench", [SUMS], indirect=True)
def test_statistics_with_other_weights_are_not_added_up(bench: Bench, monkeypatch):
    """By a version that weighs the parts of statistics otherwise: what was kept of earlier blocks would mean something
    else."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=4))
    bench.publish_all()
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=10))
    others = StatisticsWeights(second=1.0, first=1.0, label=1.0, count=0.5)
    monkeypatch.setattr(sufficient_statistics, "weights", lambda *_, intercept: others)
    assert bench.publisher().step(threading.Event())
    assert (bench.now().state, bench.now().position) == ("halted", 4)
    assert "other noise" in bench.now().reason


@pytest.mark.parametrize("bench", REMEMBERING[:1], indirect=True)
def test_a_publication_whose_memory_is_lost_halts_and_one_that_ends_forgets(bench: Bench):
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=4))
    bench.publish_all()
    with bench.database.transaction() as connection:
        numbers = [*parts.load(connection, bench.identity).parts]
        assert len(numbers) == 7
        connection.execute(delete(tables.parts).where(tables.parts.c.number == numbers[2]))
        connection.execute(update(tables.streams).values(records=10))
    assert bench.publisher().step(threading.Event())
    publication = bench.now()
    assert (publication.state, publication.position) == ("halted", 4)
    assert "can't be made again" in publication.reason
    with bench.database.transaction() as connection:
        assert connection.execute(select(func.count()).select_from(tables.parts)).scalar_one() == 0
