"""Maps and models compute here what they compute in the service, whatever a release may say: no server is asked."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

from perennial import Model, feature_maps
from service.learning import encoders
from service.mechanisms.linear import predict
from service.streams.schema import StreamSchema
from tests.client.releases import HASHED, MAPS, SIDE, TEXTS, records

OBLONG = {"kind": "hog", "width": 8, "height": 6, "orientations": 4, "cell": 2, "block": 2}
NARROW = {"kind": "compose", "maps": [MAPS["linear"], MAPS["random_fourier"]]}
SEVEN = {"kind": "hashing", "features": 7, "tokens": "words"}  # no power of two
FOLLOWED = {"kind": "compose", "maps": [SEVEN, MAPS["normalize"], MAPS["random_fourier"]]}
WIDTHS = {
    **dict.fromkeys(MAPS, SIDE**2),
    **dict.fromkeys(TEXTS, 2),
    "oblong": 48,
    "narrow": SIDE**2,
    "followed": 2,
    "third": 4,
}
THIRD = {"kind": "standardize", "mean": 1e7 / 3, "scale": 0.5}  # no float32 is so near to the mean
ALL = MAPS | {"oblong": OBLONG, "narrow": NARROW, "followed": FOLLOWED, "third": THIRD}
STRANGE = ["ΣΊΣΥΦΟΣ Straße", "\ud800 x", "a", "Net…net—NET、net", "٣ ³ ½"]
LOSSES = [("logistic", 2), ("softmax", 2), ("softmax", 3), ("huber_hinge", 2), ("huber_hinge", 3), ("squared", None)]


def mapping(name):
    """Return the service's own map."""
    task = {"kind": "classification", "classes": 2}
    described = {"features": WIDTHS[name], "task": task, "feature_map": ALL[name]}
    return StreamSchema.model_validate(described).mapping()


def given(name):
    """Return records of all kinds."""
    if WIDTHS[name] == 2:
        return np.array([*records("words", 3), *zip(STRANGE, reversed(STRANGE), strict=True)], dtype=object)
    if name == "categories":
        return np.vstack((records(name, 3), np.zeros((1, SIDE**2)), np.full((1, SIDE**2), -0.0)))
    x = np.random.default_rng(3).normal(size=(30, WIDTHS[name]))
    x[1] = 0.0
    x[2] *= 1e38
    x[3:9] = x[3:9].round()  # gradients of images that are on the edge of two bins
    return x + (1e7 / 3 if name == "third" else 0.0)


@pytest.mark.parametrize("name", ALL)
def test_a_map_is_the_services_however_many_records_it_takes_at_once(monkeypatch, name):
    theirs, x = mapping(name), given(name)
    ours = feature_maps.build(theirs.description, WIDTHS[name])
    assert (ours.features, ours.reads_text) == (theirs.features, theirs.reads_text)
    expected = theirs(x if theirs.reads_text else x.astype(np.float32))
    np.testing.assert_allclose(ours(x), expected, rtol=3e-7, atol=1e-9)
    monkeypatch.setattr(feature_maps, "VALUES_AT_ONCE", 7 * max(WIDTHS[name], ours.features))
    np.testing.assert_allclose(ours(x), expected, rtol=3e-7, atol=1e-9)


def released(loss, classes, features, **more) -> Model:
    """Return a model of weights so large that many scores are far from nought."""
    described = {"kind": "linear", "loss": loss, "classes": classes, "features": features, "norm_bound": 1.5}
    described |= {"intercept": True, "feature_map": None, "bound": 0.4, "huber_width": 0.5} | more
    rows = 1 if loss == "squared" or (classes == 2 and loss != "softmax") else classes
    rows = 2 * (rows + 1) if "heads" in more else rows
    columns = described.pop("mapped", features) + described["intercept"]
    weights = np.random.default_rng(5).normal(size=(rows, columns)) * [[1.0], *[[400.0]] * (rows - 1)]
    metadata = {"publication": "p", "version": 1, "time": 3, "model": described}
    return Model(parameters=weights, metadata=metadata)


def assert_alike(model: Model, x, *, tolerance: float = 1e-9) -> None:
    """Compare with the service's predictions, and with those of an ONNX model."""
    labels, scores = predict(model.description, model.parameters, x.astype(np.float32), model.encoder)
    np.testing.assert_allclose(model.scores(x), scores, rtol=1e-12, atol=tolerance)
    np.testing.assert_allclose(model.predict(x), labels, rtol=1e-12, atol=tolerance)
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    onnx_labels, onnx_scores = session.run(["labels", "scores"], {"x": x.astype(np.float32)})
    np.testing.assert_allclose(onnx_scores, scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(onnx_labels, labels, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{}, {"intercept": False}, {"intercept_scale": 0.3}, {"heads": "per_task"}],
    ids=["intercept", "none", "scale", "heads"],
)
@pytest.mark.parametrize(("loss", "classes"), LOSSES)
def test_predictions_are_the_services_whatever_the_loss(loss, classes, settings):
    x = np.random.default_rng(6).normal(size=(40, 4)) * np.geomspace(1e-3, 1e3, 40)[:, None]
    x[0] = 0.0
    assert_alike(released(loss, classes, 4, **settings), x)


@pytest.mark.parametrize("name", [name for name in ALL if WIDTHS[name] != 2 and name not in HASHED])
def test_predictions_are_the_services_whatever_the_map(name):
    theirs, x = mapping(name), given(name)
    model = released("huber_hinge", 3, WIDTHS[name], feature_map=theirs.description, mapped=theirs.features)
    finite = np.isfinite(theirs(x.astype(np.float32))).all(axis=1)
    assert_alike(model, x[finite])


@pytest.mark.parametrize(
    "described",
    [
        {"kind": "dense", "layers": [5, 3]},
        {"kind": "convolutional", "width": 7, "height": 5, "channels": [3, 2], "kernel": 2},
    ],
    ids=["dense", "convolutional"],
)
def test_predictions_are_the_services_whatever_the_encoder(described):
    described = described | {"version": 1, "norm_bound": 1.2, "release": 1}
    theirs = encoders.build(described, 35, rows=1)
    model = released("softmax", 3, 35, encoder=described, mapped=theirs.features)
    weights = np.random.default_rng(7).normal(size=(1, theirs.dimension(1)))
    x = np.random.default_rng(8).normal(size=(30, 35)) * np.geomspace(1e-3, 1e3, 30)[:, None]
    assert_alike(replace(model, encoder=weights), x, tolerance=1e-5)


def test_what_is_not_finite_once_it_is_mapped_has_no_score_in_onnx():
    description = {"kind": "standardize", "version": 1, "mean": 0.0, "scale": 1e-6}
    model = released("logistic", 2, 4, feature_map=description)
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.array([[0.5] * 4, [3e38] * 4], dtype=np.float32)
    (scores,) = session.run(["scores"], {"x": x})
    np.testing.assert_allclose(scores[0], model.scores(x[:1])[0])
    assert np.isnan(scores[1]).all()
