"""Lifelong learning with an encoder: learnt once from the first records, released, and from then on a public map."""

import json
from dataclasses import replace

import numpy as np
import pytest

from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.lifelong import encoder_pass
from service.mechanisms.lifelong.encoder_pass import EncoderPass
from service.mechanisms.linear import predict
from service.mechanisms.mechanism import Model, StateLost
from service.privacy.noise.additive import Gaussian
from service.streams.schema import StreamSchema
from tests import chance
from tests.mechanisms.private_statistics import paid_for
from tests.mechanisms.steps import FEATURES, GAUSSIAN, PURE, Placed, nothing, reader, run, without

DENSE = {"kind": "dense", "records": 12, "batch": 5, "layers": [6, 4]}
VARIANTS = {"joint": {}, "agem": {"training": "agem", "epochs": 2}, "heads": {"heads": "per_task", "memory": 2}}
ENDS = [12, 16, 20, 26, 32, 38]


def publication(privacy=GAUSSIAN, encoder=DENSE, features=FEATURES, classes=3, feature_map=None, **settings):
    return build(
        StreamSchema.model_validate(
            {
                "features": features,
                "task": {"kind": "classification", "classes": classes},
                "norm_bound": 2.0,
                "feature_map": feature_map,
            }
        ),
        PublicationConfiguration.model_validate(
            {
                "mechanism": {"kind": "lifelong", "task_size": [8, 12], "batch": 6, "encoder": encoder, **settings},
                "learner": {"kind": "output_perturbation"},
                "privacy": privacy,
            }
        ),
    )


@pytest.fixture
def installed():
    pytest.importorskip("jax", reason="the extra `deep` is not installed")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_record_teaches_the_encoder_or_is_counted_and_is_charged_everything_once(variant):
    seen = []

    def read(start, end):
        seen.append((start, end))
        return reader()(start, end)

    mechanism = publication(**VARIANTS[variant])
    released, chain = run(mechanism, len(ENDS), read)
    assert seen == [each.fit for each in released] == list(zip([0, *ENDS], ENDS, strict=False))
    assert [each.role for each in released] == ["base", *["model"] * 5]
    for number, release in enumerate(released):
        described = release.perturbation.to_json()
        assert described["added_to"] == ("statistics" if number else "disjoint_gradient_sums")
        paid_for(mechanism, release, 6)
    assert released[0].parameters.shape == (1, 6 * 6 + 7 * 4 + 4 * 3)
    assert [each.version for each in chain if isinstance(each, Model)] == [1]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("variant", VARIANTS)
def test_who_reads_both_releases_predicts_what_was_learnt(variant):
    """The release's own description, with the encoder's, is enough: numpy alone computes the prediction."""
    mechanism = publication(feature_map={"kind": "center"}, **VARIANTS[variant])
    released, _ = run(mechanism, 4, lambda start, end: mapped(mechanism, reader()(start, end)))
    description, encoder = json.loads(json.dumps(mechanism.model_description())), released[0].parameters
    assert description["encoder"] == {
        "kind": "dense",
        "version": 1,
        "layers": [6, 4],
        "norm_bound": 2.0,
        "release": 1,
    }
    assert (description["features"], description["norm_bound"]) == (FEATURES, 1.0)
    described = json.loads(json.dumps(released[0].model))
    assert (described["kind"], described["encoder"]["layers"], described["shape"]) == ("encoder", [6, 4], [1, 76])
    x = reader(3)(0, 50).x
    features = mechanism.encoder.encoder(encoder, mechanism.feature_map(x))
    tasks = 2 if variant == "heads" else None
    labels, scores = predict(description, released[-1].parameters, x, encoder)
    expected = mechanism.learner.predict(released[-1].parameters, features, tasks)
    np.testing.assert_array_equal(labels, expected[0])
    np.testing.assert_allclose(scores, expected[1], atol=1e-9)
    with pytest.raises(ValueError, match="predict with its release"):
        predict(description, released[-1].parameters, x)


def mapped(mechanism, records):
    return Records(x=mechanism.feature_map(records.x), y=records.y)


@pytest.mark.usefixtures("installed")
def test_nothing_is_counted_by_another_encoder(monkeypatch):
    """Without noise, the model is that of the statistics of the released encoder's features."""
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    mechanism = publication(ridge=0.05)
    released, _ = run(mechanism, 4, reader())
    records = reader()(12, 26)
    features = mechanism.encoder.encoder(released[0].parameters, records.x)
    total = mechanism.learner.statistics(Records(x=features, y=records.y), 14)
    exact = mechanism.learner.solve(total, 14, 0.05, np.zeros(mechanism.learner.shape))
    np.testing.assert_allclose(released[-1].parameters, exact, atol=1e-9)


@pytest.mark.usefixtures("installed")
def test_without_its_encoder_it_does_not_go_on():
    mechanism = publication()
    _, chain = run(mechanism, 2, reader())
    with pytest.raises(StateLost, match="encoder"):
        mechanism.step(20, [each for each in chain if not isinstance(each, Model)], 3, reader())
    assert mechanism.terms(12) is mechanism.terms(16) is None
    assert mechanism.terms(20) == mechanism.terms(26)
    assert mechanism.terms(20) is not None


@pytest.mark.usefixtures("installed")
def test_what_is_left_of_a_stream_whose_records_were_all_erased_is_noise():
    def erased(start, end):
        return Records(x=nothing(start, end).x, y=np.empty(0, dtype=np.int64), slots=np.empty(0, dtype=np.int64))

    released, _ = run(publication(), 3, erased)
    assert all(np.isfinite(each.parameters).all() for each in released)


@pytest.mark.more
@pytest.mark.usefixtures("installed")
def test_it_learns_what_no_linear_model_can():
    """Whether two numbers out of twelve have the same sign. The encoder that it begins with does not see it."""
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], size=(24_000, 12)) + 0.1 * rng.normal(size=(24_000, 12))
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    x = (x / np.linalg.norm(x, axis=1, keepdims=True) * 2.0).astype(np.float32)
    accuracies = {}
    for records, rate in ((1, 1e-6), (16_000, 20.0)):
        mechanism = publication(
            {"epsilon": 8, "delta": 1e-6},
            {"kind": "dense", "layers": [16], "records": records, "batch": 100, "learning_rate": rate},
            features=12,
            classes=2,
            task_size=4000,
            batch=None,
        )
        released, _ = run(mechanism, 2, lambda start, end: Records(x=x[start:end], y=y[start:end]))
        labels, _ = predict(mechanism.model_description(), released[1].parameters, x[20_000:], released[0].parameters)
        accuracies[records] = np.mean(labels == y[20_000:])
    chance.assert_below(accuracies[1], 0.6, mean=0.506, spread=0.0045, runs=120)
    chance.assert_above(accuracies[16_000], 0.85, mean=0.989, spread=0.008, runs=120)


@pytest.mark.usefixtures("installed")
def test_it_is_learnt_as_its_settings_say():
    chosen = DENSE | {"clip": 0.25, "learning_rate": 3.0}
    learnt = publication(encoder=chosen).encoder
    assert (learnt.records, learnt.batch, learnt.clip, learnt.learning_rate) == (12, 5, 0.25, 3.0)
    assert (learnt.loss.name, learnt.classes) == ("softmax", 3)
    assert publication(encoder=chosen | {"batch": 500}).encoder.batch == 12
    assert publication().encoder.learning_rate is None


@pytest.mark.usefixtures("installed")
def test_its_release_is_of_the_records_before_the_first_task_and_of_their_end():
    first = run(publication(), 1, reader())[0][0]
    assert (first.time, first.fit, first.window, first.parent) == (12, (0, 12), (0, 12), None)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("own", "features"), [({"encoder": DENSE}, 4), ({"features": 9}, 9)])
def test_features_of_its_own_are_as_long_as_one_at_most_whatever_the_stream_allows(own, features):
    """So that is what their statistics' sensitivity is computed from."""
    stream = {"features": 5, "task": {"kind": "classification", "classes": 3}, "norm_bound": 2.0}
    mechanism = {"kind": "lifelong", "task_size": 8, "training": "agem", "epochs": 7, **own}
    settings = {"mechanism": mechanism, "learner": {"kind": "output_perturbation"}, "privacy": GAUSSIAN}
    publication = build(StreamSchema.model_validate(stream), PublicationConfiguration.model_validate(settings))
    learner = publication.learner
    assert (learner.norm_bound, learner.features, learner.epochs) == (1.0, features, (7,))


@pytest.mark.usefixtures("installed")
def test_the_plan_tells_of_the_pass_and_of_the_batches():
    plan = publication().plan()
    passed, first, second = plan["fits"]
    assert (passed["what"], passed["records"], passed["when"]) == (
        "encoder",
        4,
        "before the first task, once: 3 steps along 12 records",
    )
    assert passed["charge"] == first["charge"] == second["charge"]
    assert passed["noise"]["dimension"] == plan["model"]["encoder"]["dimension"] == 76
    assert plan["first_releases"][:3] == [12, 16, 20]
    assert plan["lifetime"]["share"] == "1"


def refused(privacy=GAUSSIAN, **settings):
    with pytest.raises(Refused) as refusal:
        publication(privacy, **settings)
    return refusal.value


@pytest.mark.usefixtures("installed")
def test_what_can_not_be_is_refused_with_what_would_do():
    assert refused(PURE).path == "mechanism.encoder"
    assert "privacy.delta" in refused(PURE).message
    image = {"kind": "convolutional", "width": 3, "height": 3, "channels": [2], "kernel": 2, "records": 5}
    assert "the number of features, 5" in refused(encoder=image).message
    assert "smaller than the kernel" in refused(encoder=image | {"kernel": 4}, features=9).message
    assert refused(encoder=DENSE | {"layers": [4096], "batch": 4}, memory=3).path == "mechanism.memory"
    with pytest.raises(ValueError, match="leave features out"):
        PublicationConfiguration.model_validate(
            {
                "mechanism": {"kind": "lifelong", "task_size": 4, "encoder": DENSE, "features": 3},
                "learner": {"kind": "output_perturbation"},
                "privacy": GAUSSIAN,
            }
        )


def test_where_gradients_can_not_be_taken_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(encoder_pass, "find_spec", lambda _: None)
    assert refused().path == "mechanism.encoder"
    assert "perennial[deep]" in refused().message


@pytest.mark.usefixtures("installed")
def test_no_record_moves_what_the_encoder_is_taught_of_others(monkeypatch):
    seen = []

    def release(self, records, *_given):
        seen.append(records.x)
        return np.zeros((1, self.dimension))

    monkeypatch.setattr(EncoderPass, "release", release)
    for read in (reader(), without(7)):
        run(replace(publication(), own_map=Placed()), 1, read)
    all_there, others = seen
    np.testing.assert_array_equal(others, np.delete(all_there, 7, axis=0))
