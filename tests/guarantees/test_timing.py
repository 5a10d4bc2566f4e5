"""A reader with a key and a clock does not learn from times whether a record was there.

A fair coin decides which batches have a target, so without a leak each guess is right with probability 1/2: too many
are 49 of 60, which are made by default, and 359 of 600, which `--guesses 600` makes.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests import chance
from tests.conftest import make_world, ok
from tests.faults.processes import Api, end
from tests.guarantees.timing import MOST_UNSEEN, TRAINING, Scene, guesses, observe

PACE_SECONDS = 0.1  # where a release comes seconds later anyhow
MOST_ROUNDS = 10  # of a reader on a machine that has much else to do
PROMPT = {"publish_delay": 0}


class Attack:
    """A reader who gets better: each guess rests on all bits before it."""

    def __init__(self, scene: Scene, seed: str, *, pace_seconds: float, most_unseen: int) -> None:
        self.scene = scene
        self._choose = random.Random(seed)
        self._pace_seconds, self._most_unseen = pace_seconds, most_unseen
        self._bits, self._observed = np.empty(0, dtype=bool), np.empty((0, 0))
        self.right = self.count = 0

    def go_on(self, batches: int) -> None:
        bits = [self._choose.random() < 0.5 for _ in range(batches)]
        seen = observe(self.scene, bits, pace_seconds=self._pace_seconds, most_unseen=self._most_unseen)
        self._observed = np.concatenate([self._observed, seen]) if self.count else seen
        self._bits = np.concatenate([self._bits, bits])
        right = guesses(self._observed, self._bits) == self._bits[TRAINING:]
        self.right, self.count = int(right.sum()), len(right)

    def tells(self) -> bool:
        """Return whether more guesses are right than fair coins get right."""
        try:
            chance.assert_no_more(self.right, self.count, 0.5)
        except chance.Unlikely:
            return True
        return False

    def __str__(self) -> str:
        return f"{self.right} of {self.count} guesses from times alone are right"


@contextmanager
def running(settings, **options) -> Iterator[Scene]:
    scene = Scene(settings, **options)
    try:
        yield scene
    finally:
        scene.close()


@pytest.fixture
def settings(servers, tmp_path):
    return make_world(servers, tmp_path).settings


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_times_of_releases_at_public_ticks_tell_nothing_of_a_record(settings, request, seed, record_property):
    with running(settings, publish_delay=None) as scene:  # as if it had not been set
        attack = Attack(scene, seed, pace_seconds=PACE_SECONDS, most_unseen=MOST_UNSEEN)
        attack.go_on(TRAINING + request.config.getoption("--guesses"))
        record_property("faults", f"default publish_delay: {attack}")
        chance.assert_no_more(attack.right, attack.count, 0.5)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_times_of_prompt_releases_tell_whether_a_record_is_there(settings, request, seed, record_property):
    """So the attack of the test above works where nothing hinders it."""
    with running(settings, **PROMPT) as scene:
        attack = Attack(scene, seed, pace_seconds=0.0, most_unseen=1)
        for _ in range(MOST_ROUNDS):
            attack.go_on(TRAINING + request.config.getoption("--guesses") // 2)
            if attack.tells():
                break
        record_property("faults", f"publish_delay 0: {attack}")
        assert attack.tells(), str(attack)


def test_a_reader_is_not_told_exact_times_by_metrics(settings):
    api = Api(settings)
    with api.client() as client:
        key = ok(client.post("/v1/keys", json={"name": "reader", "scopes": ["read"]}), 201)["key"]
        status = client.get("/metrics", headers={"Authorization": f"Bearer {key}"}).status_code
    end(api.process)
    assert status in (401, 403, 404)
