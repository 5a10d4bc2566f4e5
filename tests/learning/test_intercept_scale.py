"""Rows (x·cos θ, R·sin θ): never longer than R, the old ones where nothing is said, and the same to every reader."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.learning.records import PreparedRows, Records, prepare, row_scales
from service.learning.registry import LEARNERS
from service.mechanisms.building import build
from service.mechanisms.configuration import AskedPublication, PublicationConfiguration
from service.privacy.accounting.budget import Budget
from service.privacy.sensitivity import sufficient_statistics
from service.streams.schema import StreamSchema

STREAM = StreamSchema.model_validate({"features": 3, "task": {"kind": "classification", "classes": 2}, "norm_bound": 2})
ASKED = {
    "mechanism": {"kind": "independent_batches", "batch": 100},
    "learner": {"kind": "noisy_gradient_descent"},
    "privacy": {"epsilon": 1, "delta": 1e-6},
}
BUDGET = Budget(epsilon=1, delta=1)


@settings(deadline=None, derandomize=True)
@given(
    st.floats(0.001, 0.999),
    st.floats(1e-6, 1e6),
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3),
)
def test_no_row_is_longer_than_the_norm_bound(scale, bound, x):
    (row,) = prepare(np.array([x]), norm_bound=bound, intercept=True, intercept_scale=scale)
    assert sum(Fraction(each) ** 2 for each in row) <= Fraction(bound) ** 2
    assert row[-1] == bound * scale


def test_a_long_row_is_as_long_as_the_norm_bound():
    rows, _ = PreparedRows.of(np.full((1, 3), 1e3), norm_bound=2.0, intercept=True, intercept_scale=0.3)
    assert np.linalg.norm(rows.rows()) == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("scale", [0.001, 0.3, 0.5, 0.999])
def test_the_cosine_is_rounded_down_by_as_much_as_covers_the_roundings_of_a_row(scale):
    cosine, sine = row_scales(scale)
    left = Fraction(cosine) ** 2 / (1 - Fraction(sine) ** 2)  # of cos² θ
    assert sine == scale
    assert (1 - Fraction(1, 2**39)) ** 2 < left < (1 - Fraction(1, 2**41)) ** 2


def test_without_a_scale_rows_are_what_they_were():
    half = np.sqrt(0.5) * (1.0 - 2.0**-50)
    assert row_scales(None) == (half, half)


def test_a_new_publication_gets_the_default_and_stored_json_without_it_keeps_the_old():
    configuration = AskedPublication.model_validate(ASKED).configuration(BUDGET)
    assert configuration.stored()["learner"]["intercept_scale"] == 0.3
    assert build(STREAM, configuration).model_description()["intercept_scale"] == 0.3
    old = PublicationConfiguration.model_validate(ASKED)
    assert "intercept_scale" not in old.stored()["learner"]
    assert "intercept_scale" not in build(STREAM, old).model_description()


@pytest.mark.parametrize("more", [{"intercept": False}, {"origin": [[0, 0, 0, 1]]}])
def test_an_origin_means_what_it_meant_and_no_intercept_has_no_scale(more):
    configuration = AskedPublication.model_validate(ASKED | {"learner": ASKED["learner"] | more}).configuration(BUDGET)
    assert "intercept_scale" not in configuration.stored()["learner"]


def test_a_scale_of_no_intercept_is_refused():
    learner = ASKED["learner"] | {"intercept": False, "intercept_scale": 0.5}
    with pytest.raises(ValueError, match="keep it"):
        AskedPublication.model_validate(ASKED | {"learner": learner})


MECHANISMS = [
    ({"kind": "window_statistics", "block": 400, "blocks": 1}, "output_perturbation"),
    ({"kind": "lifelong", "task_size": 400}, "output_perturbation"),
    ({"kind": "lifelong", "task_size": 400, "training": "agem", "memory": 1, "epochs": 5}, "output_perturbation"),
]


@pytest.mark.parametrize(("mechanism", "learner"), MECHANISMS)
def test_models_of_sums_have_the_same_scores_whatever_the_scale(mechanism, learner):
    """Their weights are turned into those of other rows."""
    rng = np.random.default_rng(1)
    model = rng.normal(size=(1, 4))
    scores = []
    for scale in (None, 0.3):
        request = ASKED | {
            "mechanism": mechanism,
            "learner": {"kind": learner} | ({"intercept_scale": scale} if scale else {}),
        }
        built = build(STREAM, PublicationConfiguration.model_validate(request)).learner
        x = np.array([[0.5, -0.25, 1.0]])
        scores.append(built.rows(x)[0].rows() @ (model * built.turned).T)
        second = np.diag([1.0, 2.0, 3.0, 4.0]) * 100
        solved = built.minimiser(second, np.array([[10.0, 20.0, -30.0, 40.0]]), 400, 0.01, model * built.turned)
        scores.append(built.rows(x)[0].rows() @ solved.T)
    np.testing.assert_allclose(scores[0], scores[2], rtol=1e-9)
    np.testing.assert_allclose(scores[1], scores[3], rtol=1e-9)


@pytest.mark.parametrize("scale", [None, 0.01, 0.3, 0.9])
@pytest.mark.parametrize(("mechanism", "learner"), MECHANISMS)
def test_no_record_moves_sums_farther_than_is_said_whatever_the_scale(mechanism, learner, scale):
    """A record in a corner, against the opposite one with the other label."""
    request = ASKED | {"mechanism": mechanism, "learner": {"kind": learner, "intercept_scale": scale}}
    built = build(STREAM, PublicationConfiguration.model_validate(request)).learner
    moved = [
        built.statistics(Records(x=np.array([[side * 9.0, 0.0, 0.0]]), y=np.array([label])), 400)
        for side, label in ((1, 0), (1, 1), (-1, 0), (-1, 1))
    ]
    farthest = max(np.linalg.norm(one - other) for one in moved for other in moved)
    weighted = built.weights
    stated = sufficient_statistics(
        second=weighted.second, first=weighted.first, label=weighted.label, count=weighted.count, codes=2
    )
    assert 0.5 * stated < farthest <= stated


def test_every_learner_of_linear_models_has_it():
    with_scale = {family.kind for family in LEARNERS if "intercept_scale" in family.settings.model_fields}
    assert with_scale == {family.kind for family in LEARNERS if "intercept" in family.settings.model_fields} != set()
