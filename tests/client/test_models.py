"""Models predict here as they do in the service: with numpy, as scikit-learn estimators, and as ONNX models."""

import numpy as np
import onnxruntime
import pandas as pd
import pytest

from perennial import InvalidData, Model, Unsupported, connect, encoders, linear
from service.learning import encoders as service_encoders
from service.mechanisms.lifelong import encoder_pass
from tests.client import releases
from tests.client.releases import CASES, HASHED, KINDS, LONG, MAPS, TEXTS, predicted, publish_all, records
from tests.conftest import Service, ok

PARAMS = [*CASES, *(pytest.param(case, marks=pytest.mark.long) for case in LONG)]
NAMES = [f"{kind}, {mapped}" for kind, mapped in CASES + LONG]


@pytest.fixture(scope="module")
def models(service: Service, request: pytest.FixtureRequest):
    cases = LONG if request.config.getoption("--long") else CASES
    if not encoder_pass.available():
        cases = [case for case in cases if case[0] != "encoder"]
    with connect(service.url, service.admin_key) as client:
        return publish_all(service, client, cases)


@pytest.fixture(params=PARAMS, ids=NAMES)
def case(request, models):
    if request.param not in models:
        pytest.skip("needs the extra `deep`")
    return models[request.param], records(request.param[1], 2), request.param


@pytest.mark.more
def test_predictions_are_the_services(service: Service, case):
    model, x, _ = case
    labels, scores = predicted(service, model, x)
    np.testing.assert_allclose(model.scores(x), scores, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.predict(x), labels, rtol=0, atol=1e-9)
    assert np.ptp(scores[:, 0]) > 0.0, "a model that says the same of all records shows nothing"
    if model.has_probabilities:
        np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1.0)
    else:
        with pytest.raises(Unsupported, match="probabilities"):
            model.predict_proba(x)


def test_of_no_records_nothing_is_predicted(case):
    model, x, _ = case
    none = pd.DataFrame(x, columns=model.columns)[:0]
    assert (model.predict(none).shape, len(model.scores(none))) == ((0,), 0)


def test_a_file_holds_the_whole_model(case, tmp_path):
    model, x, _ = case
    path = tmp_path / "model.safetensors"
    model.save(path)
    loaded = Model.load(path)
    assert loaded.metadata == model.metadata
    np.testing.assert_array_equal(loaded.scores(x), model.scores(x))


def test_an_estimator_predicts_the_same(case):
    from sklearn.base import clone, is_classifier, is_regressor

    model, x, (kind, _) = case
    estimator = clone(model.to_sklearn()).fit(x)
    np.testing.assert_array_equal(estimator.predict(x), model.predict(x))
    assert is_regressor(estimator) == (kind == "squared")
    assert is_classifier(estimator) == (kind != "squared")
    assert hasattr(estimator, "predict_proba") == model.has_probabilities
    if is_classifier(estimator):
        np.testing.assert_array_equal(estimator.classes_, np.arange(model.classes))
        decisions = estimator.decision_function(x)
        chosen = decisions.argmax(axis=1) if decisions.ndim == 2 else (decisions > 0).astype(int)
        np.testing.assert_array_equal(chosen, model.predict(x))


def test_an_onnx_model_predicts_the_same(case):
    model, x, (_, mapped) = case
    if mapped in HASHED:
        with pytest.raises(Unsupported, match="ONNX has no hash functions"):
            model.to_onnx()
        return
    exported = model.to_onnx()
    session = onnxruntime.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    labels, scores = session.run(["labels", "scores"], {"x": x.astype(np.float32)})
    np.testing.assert_allclose(scores, model.scores(x), rtol=0, atol=1e-6)
    np.testing.assert_allclose(labels, model.predict(x), rtol=0, atol=1e-6)
    assert {each.key: each.value for each in exported.metadata_props}["publication"] == model.publication


def test_the_json_of_a_release_is_the_same_model(service: Service, models):
    model = models["softmax", "none"]
    url = f"/v1/publications/{model.publication}/releases/{model.version}"
    from_json = Model.from_json(ok(service.client().get(url)))
    assert from_json.metadata == model.metadata
    np.testing.assert_array_equal(from_json.parameters, model.parameters)
    assert (from_json.features, from_json.classes, from_json.time, from_json.role) == (16, 3, 40, "model")


def test_a_file_of_the_service_is_the_same_model(service: Service, models, tmp_path):
    model = models["logistic", "random_fourier"]
    url = f"/v1/publications/{model.publication}/releases/latest"
    served = service.client().get(url, headers={"Accept": "application/vnd.safetensors"}).content
    assert Model.from_safetensors(served).metadata == model.metadata


def test_the_library_reads_files_too(models, tmp_path):
    from safetensors.numpy import load_file

    model = models["hinges", "random_fourier"]
    model.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(load_file(tmp_path / "model.safetensors")["weights"], model.parameters)


def test_frames_and_single_columns_are_read(models):
    model = models["logistic", "none"]
    x = records("none", 2)
    np.testing.assert_array_equal(model.predict(pd.DataFrame(x)), model.predict(x))
    words = models["logistic", "words"]
    frame = pd.DataFrame(records("words", 2), columns=words.columns)
    np.testing.assert_array_equal(words.predict(frame), words.predict(records("words", 2)))


@pytest.mark.parametrize(
    ("mapped", "x", "message"),
    [
        ("none", [[1.0, 2.0]], "takes 16 features, but there are 2"),
        ("none", [["a secret"] * 16], "reads numbers"),
        ("words", [[1.0, 2.0]], "reads texts"),
        ("standardize", [[0.0] * 16, [np.inf] * 16], "row 1"),
        ("random_fourier", [[0.0] * 15], "takes 16"),
    ],
)
def test_what_the_model_cannot_read_is_refused(models, mapped, x, message):
    with pytest.raises(InvalidData, match=message) as refused:
        models["logistic", mapped].predict(x)
    assert "secret" not in str(refused.value)


def test_a_record_that_overflows_is_refused_as_by_the_service(service: Service, models):
    model = models["logistic", "standardize"]
    shrinking = dict(model.metadata) | {
        "model": dict(model.description)
        | {"feature_map": {"kind": "standardize", "version": 1, "mean": 0.0, "scale": 1e-6}}
    }
    with pytest.raises(InvalidData, match="Row 1 is not finite"):
        Model(parameters=model.parameters, metadata=shrinking).predict([[0.0] * 16, [3e38] * 16])


def test_other_versions_are_refused(models):
    model = models["logistic", "none"]
    for change in (
        {"kind": "quadratic"},
        {"loss": "exponential"},
        {"feature_map": {"kind": "wavelet", "version": 1}},
        {"feature_map": {"kind": "center", "version": 2}},
        {"encoder": {"kind": "dense", "version": 2, "release": 1, "layers": [2], "norm_bound": 1.0}},
    ):
        newer = Model(
            parameters=model.parameters,
            metadata=dict(model.metadata) | {"model": dict(model.description) | change},
            encoder=np.zeros(3),
        )
        with pytest.raises(Unsupported, match="update it"):
            newer.predict([[0.0] * 16])


@pytest.mark.parametrize(
    "described",
    [
        {"kind": "dense", "layers": [5]},
        {"kind": "dense", "layers": [6, 4, 3]},
        {"kind": "convolutional", "width": 7, "height": 5, "channels": [3], "kernel": 2},
        {"kind": "convolutional", "width": 5, "height": 7, "channels": [2, 3], "kernel": 1},
    ],
)
def test_encoders_are_the_services(described):
    described = described | {"version": 1, "norm_bound": 1.5}
    theirs = service_encoders.build(described, 35, rows=2)
    random = np.random.default_rng(0)
    weights, x = random.normal(size=(1, theirs.dimension(2))), random.normal(size=(9, 35)).astype(np.float32)
    x[0] = 0.0
    ours = encoders.build(described, 35, weights)(linear.clipped(x.astype(np.float64), 1.5))
    assert len(encoders.build(described, 35, weights)(np.empty((0, 35)))) == 0
    np.testing.assert_allclose(ours, theirs(weights, x), atol=1e-7)  # theirs is rounded to float32


def test_an_encoder_that_is_missing_is_named(models):
    model = models.get(("encoder", "none"))
    if model is None:
        pytest.skip("needs the extra `deep`")
    with pytest.raises(Unsupported, match="it is release 1"):
        Model(parameters=model.parameters, metadata=model.metadata).predict([[0.0] * 16])


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file[:5],
        lambda file: file[:-8],
        lambda file: b"\xff" * 8 + file[8:],
        lambda file: file.replace(b'"F64"', b'"F32"'),
        lambda file: file.replace(b'"publication"', b'"publicatiom"'),
        lambda file: file[:8] + b"[" + file[9:],
    ],
)
def test_a_damaged_file_is_refused(models, damage):
    with pytest.raises(Unsupported, match="file"):
        Model.from_safetensors(damage(models["logistic", "none"].to_safetensors()))


def test_a_histogram_predicts_nothing(service: Service, client):
    stream = service.stream(features=None, task={"kind": "categorical", "cardinality": 3}, **releases.PRIVACY)
    mechanism = {"kind": "independent_batches", "batch": 10}
    learner = {"kind": "small_database", "accuracy": 0.9}
    publication = service.publish(stream, mechanism, epsilon=10, learner=learner)
    client.stream(stream).append(None, label=[0, 1, 1, 2, 2, 2, 0, 1, 2, 2])
    model = client.publication(publication).latest(wait=200)
    assert model.parameters.shape == (1, 3)
    for call in (lambda: model.predict([[0.0]]), model.to_sklearn, model.to_onnx):
        with pytest.raises(Unsupported, match="a histogram"):
            call()


@pytest.mark.parametrize(
    ("kind", "article"), [("preparation", "a preparation of features"), ("evaluation", "an evaluation of models")]
)
def test_what_is_known_and_predicts_nothing_says_so(kind, article):
    metadata = {"publication": "p", "version": 1, "time": 3, "model": {"kind": kind, "features": 1}}
    model = Model(parameters=np.zeros((1, 3)), metadata=metadata)
    for call in (lambda: model.predict([[0.0]]), model.to_sklearn, model.to_onnx):
        with pytest.raises(Unsupported, match=f"but {article}, so it predicts nothing"):
            call()


def test_every_combination_is_here():
    from service.learning.optimization.losses import LOSSES
    from service.streams.feature_maps.kinds import STEPS

    steps = {step["kind"] for each in MAPS.values() if each for step in each.get("maps", [each])}
    assert steps == set(STEPS)
    assert {mapped for mapped in MAPS if mapped in TEXTS} == set(HASHED) - {"categories"}
    losses = {"logistic", *(kind.learner.get("loss") for kind in KINDS.values()), "squared"} - {None}
    assert losses == set(LOSSES)
