"""Predictions recomputed from a release, and the model without noise."""

import numpy as np
import pytest
from scipy.optimize import minimize

from demo import model, weather


def release(values, **changes):
    described = {
        "kind": "linear",
        "loss": "logistic",
        "feature_map": None,
        "norm_bound": 2.0,
        "intercept": True,
    }
    return {"model": described | changes, "parameters": {"values": [values]}}


def test_long_rows_are_scaled_to_the_bound_and_short_ones_left_alone():
    x = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=np.float32)
    assert model.inputs(x, norm_bound=1.0, intercept=False) == pytest.approx(
        np.array([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]), abs=1e-7
    )


def test_with_an_intercept_no_row_is_longer_than_the_bound():
    x = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32) * 10
    assert np.linalg.norm(model.inputs(x, norm_bound=2.0, intercept=True), axis=1) == pytest.approx(np.full(50, 2.0))


def test_a_release_predicts_by_the_sign_of_its_score():
    predict = model.from_release(release([1.0, 0.0, -0.5]))
    # Scaled to length 2, then (x, 2)/√2: the score is (x_0 - 1)/√2.
    assert predict(np.array([[1.5, 0.0], [0.5, 0.0], [0.0, 9.0]], dtype=np.float32)).tolist() == [True, False, False]


@pytest.mark.parametrize("changes", [{"kind": "tree"}, {"loss": "softmax"}, {"feature_map": {"kind": "hashing"}}])
def test_another_kind_of_model_is_refused(changes):
    with pytest.raises(ValueError, match="not a model"):
        model.from_release(release([1.0, 0.0, 0.0], **changes))


def test_a_release_predicts_what_the_service_predicts():
    from service.mechanisms.linear import predict

    days = weather.load()
    weights = [[1.0, -2.0, 0.5, 0.1, 0.7, -0.3]]
    described = release(weights[0], norm_bound=1.0, classes=2, features=5, intercept_scale=0.3)
    labels, _ = predict(described["model"], np.array(weights), days.x[:500])
    assert np.array_equal(model.from_release(described)(days.x[:500]), labels == 1)


def test_without_noise_agrees_with_a_general_minimiser():
    days = weather.load()
    x, y = days.window(0, 1000)
    rows = model.inputs(x, norm_bound=1.0, intercept=True)

    def loss(weights):
        scores = rows @ weights
        return (np.logaddexp(0.0, scores) - y * scores).mean() + 0.5e-4 * weights @ weights

    minimum = minimize(loss, np.zeros(6), method="BFGS", options={"gtol": 1e-6})
    assert np.array_equal(model.without_noise(x, y, norm_bound=1.0)(x[:200]), (rows @ minimum.x > 0)[:200])


def test_without_noise_survives_records_that_a_line_separates():
    x = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    y = (x[:, 0] > 0).astype(np.int8)
    assert np.array_equal(model.without_noise(x, y, norm_bound=1.0)(x), y == 1)
