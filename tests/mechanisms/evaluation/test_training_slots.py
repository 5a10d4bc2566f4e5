"""Publications beside evaluations: no fit reads an evaluation slot, and n is the number of the others."""

from itertools import product

import numpy as np
import pytest
from pydantic import ValidationError

from service.mechanisms.building import build
from service.mechanisms.configuration import Refused
from service.mechanisms.lifelong import encoder_pass
from service.mechanisms.registry import MECHANISMS
from service.streams.schema import StreamSchema
from tests.mechanisms import contract

CLASSES = {"features": 3, "task": {"kind": "classification", "classes": 2}}
SET_ASIDE = CLASSES | {"evaluation": {"every": 3}}
FITTING = {
    name: each for name, each in contract.mechanisms().items() if each["kind"] not in ("linear_queries", "evaluation")
}
DELTAS = [0, 1e-6]


def configuration(mechanism, delta):
    learner = next(iter(contract.learners_of(MECHANISMS[mechanism["kind"]])), None)
    return contract.configured(mechanism, learner, delta)


@pytest.mark.more
@pytest.mark.parametrize(("name", "delta"), list(product(FITTING, DELTAS)))
def test_every_mechanism_pays_for_fits_of_the_training_slots_alone(name, delta):
    if "encoder" in name and not (delta and encoder_pass.available()):
        pytest.skip("it needs a delta and the extra `deep`")
    schema = StreamSchema.model_validate(SET_ASIDE)
    contract.keeps_its_promise(
        schema, configuration(FITTING[name], delta), releases=1 if name.startswith("preparation") else 3
    )


def mechanism_of(kind, start=0, schema=SET_ASIDE, delta=0, **settings):
    return build(StreamSchema.model_validate(schema), configuration({"kind": kind, **settings}, delta), start=start)


@pytest.mark.parametrize("start", [0, 1, 2])
def test_sensitivity_and_noise_are_those_of_a_fit_of_so_many_slots(start):
    mechanism = mechanism_of("independent_batches", start, batch=10)
    read, _ = contract.reader(StreamSchema.model_validate(SET_ASIDE), training=mechanism.training)
    release = mechanism.step(20, (), 1, read).releases[0]
    slots = 10 - sum((start + slot) % 3 == 2 for slot in range(10, 20))
    assert slots in (6, 7)
    assert release.fit == (10, 20)
    alone = mechanism_of("independent_batches", schema=CLASSES, batch=slots)
    assert release.perturbation == alone.learner.perturbation(alone.currency, release.charge, slots, alone.origin)


def test_an_evaluation_of_more_counts_than_a_release_may_have_is_refused():
    many = CLASSES | {"task": {"kind": "classification", "classes": 2**11}}
    with pytest.raises(Refused, match="name fewer at once") as refused:
        mechanism_of("evaluation", schema=many, of=["a"], block=30)
    assert refused.value.path == "mechanism.of"


def test_a_plan_names_the_least_n():
    (fit,) = mechanism_of("independent_batches", batch=10).plan()["fits"]
    (fewer,) = mechanism_of("independent_batches", batch=6, schema=CLASSES).plan()["fits"]
    assert fit["records"] == 6
    assert (fit["sensitivity"], fit["noise"]) == (fewer["sensitivity"], fewer["noise"])


@pytest.mark.parametrize("kind", ["window_statistics", "online_leader"])
def test_noise_that_goes_on_is_the_same_for_batches_whose_n_differs(kind):
    mechanism = mechanism_of(kind, delta=1e-6, **({"block": 4, "blocks": 3} if kind[0] == "w" else {"batch": 4}))
    assert {mechanism.training.count(time - 4, time) for time in (4, 8, 12)} == {2, 3}
    terms = [mechanism.terms(time) for time in (8, 12, 16)]
    assert terms[0] == terms[1] == terms[2] is not None


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("independent_batches", {"batch": 1}),
        ("online_leader", {"batch": 1}),
        ("lifelong", {"task_size": 3, "batch": 2}),
    ],
)
def test_a_fit_that_could_have_evaluation_slots_alone_is_refused(kind, settings):
    assert mechanism_of(kind, schema=CLASSES, delta=1e-6, **settings)
    with pytest.raises(Refused, match="evaluation slots alone"):
        mechanism_of(kind, delta=1e-6, **settings)


def test_active_learning_selects_no_evaluation_slot():
    mechanism = mechanism_of("active_learning", batching="fixed_window", size=30)
    read, _ = contract.reader(StreamSchema.model_validate(SET_ASIDE), training=mechanism.training)
    everything = np.ones(30, dtype=bool)
    selections = [
        mechanism.learner.select(read(0, 30), 0, 30, mechanism.origin, 1, open_slots=mask)[0]
        for mask in (everything, mechanism.training.among(0, 30))
    ]
    assert any(slot % 3 == 2 for slot in selections[0]), "where nothing is known every slot is likely to be selected"
    assert not any(slot % 3 == 2 for slot in selections[1])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"task": {"kind": "unlabelled"}}, "classification and regression"),
        ({"task": {"kind": "categorical", "cardinality": 3}, "features": None}, "classification and regression"),
        ({"evaluation": {"every": 1}}, "greater than or equal to 2"),
    ],
)
def test_a_stream_that_cannot_be_evaluated_sets_no_slots_aside(change, why):
    with pytest.raises(ValidationError, match=why):
        StreamSchema.model_validate(SET_ASIDE | change)


def test_a_stream_that_sets_no_slots_aside_is_stored_as_ever():
    assert "evaluation" not in StreamSchema.model_validate(CLASSES).to_store()
    stored = StreamSchema.model_validate(SET_ASIDE).to_store()
    assert stored["evaluation"] == {"every": 3}
    assert StreamSchema.model_validate(stored).to_store() == stored


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("schema", [CLASSES, SET_ASIDE, CLASSES | {"task": {"kind": "regression", "bound": 2.0}}])
def test_an_evaluation_pays_for_what_it_counts(schema, delta):
    schema = StreamSchema.model_validate(schema)
    evaluation = contract.configured({"kind": "evaluation", "of": ["a", "b"], "block": 4}, None, delta)
    contract.keeps_its_promise(schema, evaluation)
