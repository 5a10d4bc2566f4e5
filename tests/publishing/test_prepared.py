"""A step as it is written down: by absolute numbers, packed and unpacked, and what a publication then remembers."""

from dataclasses import fields, make_dataclass, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.mechanism import Charge, Model, Release, StatePart, Step
from service.privacy.accounting.events import NoisyWeights
from service.privacy.noise.additive import Gaussian
from service.publishing.prepared import PendingStep, halting, packed, prepare, remembered_after, unpacked
from service.store.step_records import NewCharge, SavedChange, SavedState
from service.streams.schema import StreamSchema

START = 100
PARAMETERS = np.array([[1.5, -2.0], [0.1, 3.0]])
VALUES = {number: np.full((2, number), float(number)) for number in (3, 4, 7)}


def made(**more: Any) -> PendingStep:
    """Return a step that a publication which began at record 100 prepares at its time 8."""
    schema = {"features": 1, "task": {"kind": "classification", "classes": 2}, "norm_bound": 1.0, "feature_map": None}
    configuration = {
        "mechanism": {"kind": "independent_batches", "batch": 4},
        "learner": {"kind": "output_perturbation"},
        "privacy": {"epsilon": 1, "delta": 1e-6},
    }
    mechanism = build(StreamSchema.model_validate(schema), PublicationConfiguration.model_validate(configuration))
    release = Release(
        version=5,
        role="link",
        time=8,
        window=(1, 8),
        fit=(4, 7),
        parent=2,
        parameters=PARAMETERS,
        perturbation=NoisyWeights(noise=Gaussian(scale=2.0, dimension=4), sensitivity=1.0),
        charge=0.25,
    )
    step = Step(
        releases=(release, replace(release, version=6, at_arrival=True, model={"kind": "histogram"})),
        chain=(Model(version=5, parameters=PARAMETERS), *(StatePart(number=n, values=v) for n, v in VALUES.items())),
        charges=(Charge(start=2, stop=3, amount=0.5),),
    )
    return prepare(START, mechanism, replace(step, **more), 8)


def test_all_numbers_of_a_step_count_from_the_start_of_the_stream():
    step = made(asks=(1, 2), empty=(2,))
    own, paid = step.releases
    assert (own.time, own.window, own.fit, own.parent) == (108, (101, 108), (104, 107), 2)
    assert (own.model["kind"], paid.model) == ("linear", {"kind": "histogram"})
    assert step.charges == (
        NewCharge(start=104, stop=107, version=5, amount=0.25),
        NewCharge(start=102, stop=103, version=None, amount=0.5),
    )
    assert (step.asks, step.empty, step.at_arrival) == ((101, 102), (102,), (False, True))
    assert (step.position, step.due, step.chain, step.left.numbers) == (8, 112, (5,), (3, 4, 7))


@pytest.mark.parametrize(("more", "expected"), [({"reached": 6}, (6, 108)), ({"reached": 6, "awaits": True}, (6, 106))])
def test_the_next_step_is_due_where_the_last_one_came_to(more, expected):
    step = made(**more)
    assert (step.position, step.due, step.awaits) == (*expected, more.get("awaits", False))


ENDS = [{"finishes": True}, {"halts": "for a test"}, {"awaits": True, "asks": (1, 3), "empty": (3,)}]


@pytest.mark.parametrize("more", ENDS, ids=["finishes", "halts", "awaits"])
def test_a_step_is_unpacked_as_it_was_packed(more):
    step = made(**more)
    assert (step.finishes, step.halts) == (more.get("finishes", False), more.get("halts"))
    again = unpacked(packed(step, {4: VALUES[4]}))
    plain = {each.name for each in fields(PendingStep)} - {"releases", "left"}
    assert [name for name in plain if getattr(again, name) != getattr(step, name)] == []
    for one, other in zip(again.releases, step.releases, strict=True):
        assert one.parameters.tobytes() == other.parameters.tobytes()
        assert replace(one, parameters=PARAMETERS) == replace(other, parameters=PARAMETERS)
    assert (again.left.numbers, again.left.digest) == (step.left.numbers, step.left.digest)
    assert {number: values.tolist() for number, values in again.left.new.items()} == {
        number: VALUES[number].tolist() for number in (3, 7)
    }, "the others are stored already"


def left(*numbers: int, digest: str | None, **new: float) -> PendingStep:
    parts = {int(name[1:]): np.full(1, value) for name, value in new.items()}
    return PendingStep(most=Fraction(1), left=SavedChange(numbers=numbers, new=parts, digest=digest))


def test_each_step_goes_on_from_what_the_one_before_it_left():
    memory = SavedState(parts={1: np.zeros(1), 2: np.full(1, 2.0)}, digest="a")
    steps = [
        left(2, 3, digest="b", _3=3.0),
        left(digest=None),  # it remembers nothing of its own
        left(3, digest="c"),
        left(3, 4, digest="d", _3=5.0, _4=4.0),
    ]
    expected = [({2: 2.0, 3: 3.0}, "b"), ({2: 2.0, 3: 3.0}, "b"), ({3: 3.0}, "c"), ({3: 5.0, 4: 4.0}, "d")]
    for number, (parts, digest) in enumerate(expected, 1):
        after = remembered_after(memory, steps[:number])
        assert ({each: values.item() for each, values in after.parts.items()}, after.digest) == (parts, digest)


def test_the_end_of_a_publication_moves_nothing_else_of_it():
    end = halting(SimpleNamespace(position=4, due=9, chain=[2, 3]), "for a test")
    assert end == PendingStep(most=Fraction(0), position=4, due=9, chain=(2, 3), halts="for a test")


def test_the_latest_version_is_that_of_the_newest_model():
    """Not that of a release of another role after it."""
    names = ["position", "due", "version", "latest", "chain"]
    before = make_dataclass("State", names)(position=0, due=1, version=4, latest=3, chain=[])
    step = made()
    own, paid = step.releases
    after = step.moved(before)
    assert (after.version, after.latest) == (6, 3)
    after = replace(step, releases=(replace(own, role="model"), paid)).moved(before)
    assert (after.version, after.latest) == (6, 5)
