"""Streams that say the same in other units, or in other slots: whatever is learnt of them says the same, too."""

import numpy as np
import pytest

from service.inputs.refused import Refused
from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.privacy.noise.additive import Gaussian, SphericalLaplace
from service.streams.schema import StreamSchema
from tests.mechanisms.steps import FEATURES, data, run, seeded

LONGER = 4.0
DESCENT, OUTPUT = {"kind": "noisy_gradient_descent"}, {"kind": "output_perturbation"}
TASKS = {"kind": "lifelong", "task_size": 8}
ACTIVE = {"kind": "active_learning", "batching": "fixed_window", "size": 5}
CASES = {
    "leader": ({"kind": "online_leader", "batch": 8}, DESCENT, 3),
    "leader, regression": ({"kind": "online_leader", "batch": 8}, DESCENT, 0),
    "descent": ({"kind": "independent_batches", "batch": 8, "warm_start": True}, DESCENT, 3),
    "output": ({"kind": "independent_batches", "batch": 8, "warm_start": True}, OUTPUT, 3),
    "window": ({"kind": "window_statistics", "block": 8, "blocks": 3}, OUTPUT, 3),
    "tasks": (TASKS, OUTPUT, 3),
    "tasks, agem": (TASKS | {"training": "agem", "epochs": [3, 5]}, OUTPUT, 3),
    "tasks, heads": (TASKS | {"heads": "per_task", "memory": 2}, OUTPUT, 3),
}


@pytest.fixture(autouse=True)
def _silent(monkeypatch):
    """No noise at all."""
    for law in (Gaussian, SphericalLaplace):
        monkeypatch.setattr(law, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))


def publication(mechanism, learner, classes, **stream):
    """One that begins now, on a stream of so many classes (0: of a regression)."""
    task = {"kind": "classification", "classes": classes} if classes else {"kind": "regression", "bound": 3.0}
    body = {"mechanism": mechanism, "learner": learner, "privacy": {"epsilon": 1, "delta": 1e-6}}
    return build(
        StreamSchema.model_validate({"features": FEATURES, "task": task, **stream}),
        PublicationConfiguration.model_validate(body).begun(),
    )


def models(mechanism, read, steps=5):
    return [each.parameters for each in run(mechanism, steps, read)[0]]


def times(longer, classes=3):
    """Return what reads records that are so many times as long."""
    x, y = data(classes=classes or 3)

    def read(start, end):
        return Records(x=np.float32(longer) * x[start:end], y=y[start:end], slots=np.arange(start, end))

    return read


@pytest.mark.parametrize("case", CASES)
def test_longer_records_within_a_longer_norm_have_weights_that_are_shorter_by_as_much(case):
    ways = [
        models(publication(*CASES[case], norm_bound=longer), times(longer, CASES[case][2])) for longer in (1.0, LONGER)
    ]
    for one, other in zip(*ways, strict=True):
        assert np.linalg.norm(one) > 0
        np.testing.assert_allclose(LONGER * other, one, rtol=1e-5, atol=1e-6 * np.linalg.norm(one))


def test_who_is_selected_is_the_same_of_longer_records(monkeypatch):
    ways = []
    for longer in (1.0, LONGER):
        seeded(monkeypatch)
        ways.append(models(publication(ACTIVE, DESCENT, 2, norm_bound=longer), times(longer, 2)))
    assert len(ways[0]) > 2, "nothing is released of a window without a selected record"
    for one, other in zip(*ways, strict=True):
        assert np.linalg.norm(one) > 0
        np.testing.assert_allclose(LONGER * other, one, rtol=1e-5, atol=1e-6 * np.linalg.norm(one))


def halved(mechanism):
    """Return the same of batches that are half as long."""
    return {name: 4 if value == 8 else value for name, value in mechanism.items()}


def in_every_second_slot(start, end):
    """Slots with odd numbers are set aside, and nobody reads them here."""
    slots = np.arange(start, end)
    slots = slots[slots % 2 == 0]
    x, y = data()
    return Records(x=x[slots // 2], y=y[slots // 2], slots=slots)


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][2]])
def test_where_every_second_slot_is_set_aside_models_are_those_of_the_others_alone(case):
    mechanism, learner, classes = CASES[case]
    of_others = models(publication(mechanism, learner, classes, evaluation={"every": 2}), in_every_second_slot)
    alone = models(publication(halved(mechanism), learner, classes), times(1.0))
    for one, other in zip(of_others, alone, strict=True):
        assert np.linalg.norm(one) > 0
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6 * np.linalg.norm(one))


def test_tasks_of_which_one_may_have_no_slot_of_its_own_are_refused():
    with pytest.raises(Refused, match="evaluation slots alone"):
        publication(TASKS | {"task_size": [1, 8]}, OUTPUT, 3, evaluation={"every": 2})
    assert publication(TASKS | {"task_size": [2, 8]}, OUTPUT, 3, evaluation={"every": 2}).fewest_slots() == 1
