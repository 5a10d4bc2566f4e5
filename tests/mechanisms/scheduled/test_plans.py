"""Plans of fits: the noise that they state is that of the releases, or they say why nobody knows it yet."""

import math

import numpy as np
import pytest

from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.streams.schema import StreamSchema
from service.streams.units import contributions

BATCH, FEATURES = 8, 2
LARGE = 15_000  # with so many units gradients take more steps than with two
CLASSES = {"features": FEATURES, "task": {"kind": "classification", "classes": 2}}
REGRESSION = {"features": FEATURES, "task": {"kind": "regression", "bound": 1.0}}
DESCENT, OUTPUT = {"kind": "noisy_gradient_descent"}, {"kind": "output_perturbation"}
UNIT = {"unit": {"max_records": 4}}


def publication(learner, stream=CLASSES, batch=BATCH):
    """One that begins now."""
    batches = {"kind": "independent_batches", "batch": batch}
    body = {"mechanism": batches, "learner": learner, "privacy": {"epsilon": 1, "delta": 1e-6}}
    return build(StreamSchema.model_validate(stream), PublicationConfiguration.model_validate(body).begun())


def planned_and_released(mechanism, slots=range(BATCH), **more):
    """Return how a plan states the first fit, and how its release is perturbed, of records in those slots."""
    x, y = np.zeros((len(slots), FEATURES), dtype=np.float32), np.zeros(len(slots))
    records = Records(x=x, y=y, slots=np.array(slots), **more)
    (release,) = mechanism.step(mechanism.next_time(0), (), 1, lambda start, end: records).releases
    (fit,) = mechanism.plan()["fits"]
    return fit, release.perturbation


def of_two_units():
    owners = np.repeat([0, 1], 4)
    return {"weights": contributions(owners), "units": 2, "owners": owners}


def test_the_noise_is_for_the_slots_that_are_fitted_where_others_are_set_aside():
    mechanism = publication(OUTPUT | {"regularization": 0.1}, CLASSES | {"evaluation": {"every": 2}})
    fit, perturbation = planned_and_released(mechanism, range(0, BATCH, 2))
    assert (fit["records"], fit["sensitivity"]) == (4, perturbation.sensitivity)
    assert fit["noise"]["scale"] == perturbation.noise.scale


@pytest.mark.parametrize("origin", [[[0.0, 0.0]], [[3.0, -4.0]]])
def test_the_noise_of_a_regression_is_for_the_origin_that_it_starts_from(origin):
    mechanism = publication(OUTPUT | {"origin": origin, "intercept": False, "score_noise": 0.2}, REGRESSION)
    fit, perturbation = planned_and_released(mechanism)
    assert (fit["sensitivity"], fit["noise"]["scale"]) == (perturbation.sensitivity, perturbation.noise.scale)
    assert fit["strong_convexity"] == perturbation.regularization


def test_the_noise_of_gradients_is_known_of_however_many_units_they_are():
    fit, perturbation = planned_and_released(publication(DESCENT, CLASSES | UNIT), **of_two_units())
    assert (fit["sensitivity"], fit["noise"]["scale"]) == (perturbation.sensitivity, perturbation.noise.scale)
    assert "at_least" not in fit


def test_a_plan_of_a_large_fit_does_not_tell_how_many_steps_its_units_let_it_take():
    mechanism = publication(DESCENT, CLASSES | UNIT, batch=LARGE)
    fit, perturbation = planned_and_released(mechanism, **of_two_units())
    assert fit["noise"]["scale"] is fit["noise"]["steps"] is fit["noise"]["expected_norm"] is fit["sensitivity"] is None
    least = fit["at_least"]
    assert "more steps" in least["why"]
    assert (least["sensitivity"], least["scale"]) == (perturbation.sensitivity, perturbation.noise.scale)
    of_all = {"weights": np.ones(LARGE), "units": LARGE, "owners": np.arange(LARGE)}
    _, perturbation = planned_and_released(mechanism, range(LARGE), **of_all)
    assert least["scale"] < perturbation.noise.scale
    assert least["steps"] < perturbation.steps
    fit, perturbation = planned_and_released(publication(DESCENT, batch=LARGE), range(LARGE))
    assert (fit["noise"]["steps"], fit["noise"]["scale"]) == (perturbation.steps, perturbation.noise.scale)


def test_a_pull_that_depends_on_the_number_of_units_is_not_stated():
    alone, _ = planned_and_released(publication(OUTPUT))
    fit, perturbation = planned_and_released(publication(OUTPUT, CLASSES | UNIT), **of_two_units())
    assert alone["strong_convexity"] != perturbation.regularization
    assert "strong_convexity" not in fit


def test_a_histogram_is_planned_to_be_as_far_off_as_its_release_may_be():
    mechanism = publication(
        {"kind": "small_database", "accuracy": 0.5}, {"task": {"kind": "categorical", "cardinality": 3}}
    )
    fit, perturbation = planned_and_released(mechanism)
    off = perturbation.noise.scale * math.log(mechanism.learner.candidates / 0.05)
    assert fit["error_bound"] == pytest.approx(0.5 / 2 + off)
