"""An auditor outside checks a window of statistics with HTTP alone."""

import numpy as np
import pytest

from tests.conftest import Service, ok
from tests.guarantees.test_over_http import each_batch_is_charged_once


def test_a_window_of_statistics_charges_each_record_once_and_predicts_like_any_model(service: Service):
    """Its noise is recomputed from the weights it tells: (s, f, l, k) for two classes, over a window of 3."""
    stream = service.stream(features=2, delta=1e-5)
    mechanism = {"kind": "window_statistics", "block": 4, "blocks": 3, "candidates": [{}, {"blocks": 1}]}
    name = service.publish(stream, mechanism, delta=1e-6)
    service.post(stream, [[0.6, 0.8], [-1, 0]] * 11, [1, 0] * 11)
    released = service.released(name, time=20)
    assert [(each["time"], each["parent"], each["role"]) for each in released] == [
        (4 * number, None, "model") for number in range(1, 6)
    ]
    assert [each["window"]["start"] for each in released] == [0, 0, 0, 4, 8]
    noise, rho = released[0]["noise"], released[0]["charge"]["rho"]
    s, f, l, k = (noise["weights"][each] ** 2 for each in ("second", "first", "label", "count"))
    apart = 2 * (s + f + l) + max((f + l) ** 2, (f - l) ** 2 + 8 * s * k) / (2 * s)
    column = np.array(noise["factor"]["decays"]) ** np.arange(2000)[:, None] @ np.array(noise["factor"]["scales"])
    assert noise["sensitivity"] == pytest.approx(apart**0.5, rel=1e-4)
    assert noise["sensitivity"] >= apart**0.5
    assert noise["dimension"] == 3 + 2 + 3
    assert (1 + np.sum(column**2)) * apart / noise["scale"] ** 2 / 2 == pytest.approx(rho, rel=1e-3)
    each_batch_is_charged_once(service, stream, name, rho)
    same, newest = released[-1]["model"]["candidates"]
    assert np.ravel(same["parameters"]).tolist() == np.ravel(released[-1]["parameters"]["values"]).tolist()
    assert (newest["blocks"], np.shape(newest["parameters"])) == (1, (1, 3))
    predicted = ok(service.client().post(f"/v1/publications/{name}/predict", json={"x": [[0.6, 0.8]]}))
    assert predicted["version"] == 5
    weights = np.array(released[-1]["parameters"]["values"]).reshape(3)
    score = float(weights @ [*(0.91**0.5 * np.array([0.6, 0.8])), 0.3])  # the default intercept_scale
    assert predicted["scores"][0][1] == pytest.approx(1 / (1 + np.exp(-score)), abs=1e-4)
    assert "estimates" not in service.client().get(f"/v1/publications/{name}").text
