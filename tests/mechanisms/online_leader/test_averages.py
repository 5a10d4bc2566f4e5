"""Which average of iterates is released, and how long steps are: by public numbers and releases alone."""

import numpy as np
import pytest
from scipy import special

from service.learning.records import Records
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.online_leader.agreement import taken_back
from service.privacy.currency import Currency
from service.privacy.noise.additive import Gaussian
from service.privacy.noise.correlated import Correlated
from tests.mechanisms.online_leader.publications import BATCH, factor, publication
from tests.mechanisms.steps import FEATURES, data, reader, run


@pytest.mark.parametrize(("averaging", "between", "most"), [(True, 0.0, 0.0), ("schedule_free", 0.7, 0.3)])
def test_released_models_are_averages_of_projected_steps_along_noisy_sums(averaging, between, most, monkeypatch):
    """Recomputed with SciPy, with no noise: what is left is the optimiser (schedule-free: Defazio et al. 2024)."""
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    x, y = data()
    rows = x * np.minimum(1, 1 / np.linalg.norm(x.astype(float), axis=1, keepdims=True))
    settings = {"clip": 0.3, "learning_rate": 4.0, "radius": 0.5}
    origin = np.full((3, FEATURES), 0.2)
    learner = {"momentum": 0.6, "regularization": 0.05, "origin": origin.tolist()}
    released, _ = run(publication(learner=learner, averaging=averaging, **settings), 12, reader())
    noise = released[0].perturbation.noise.expected_norm() / BATCH
    w, u, average = origin, np.zeros_like(origin), origin
    reached = 0.0
    for t, release in enumerate(released):
        batch = slice(t * BATCH, (t + 1) * BATCH)
        point = w + between * (average - w)
        slopes = special.softmax(rows[batch] @ point.T, axis=1) - np.eye(3)[y[batch]]
        gradients = slopes[:, :, None] * rows[batch, None, :]
        lengths = np.linalg.norm(gradients, axis=(1, 2), keepdims=True)
        mean = (gradients * np.minimum(1, 0.3 / lengths)).sum(axis=0) / BATCH
        u = 0.6 * u + 0.4 * (mean + 0.05 * (point - origin))
        away = w - 4.0 * u - origin
        reached = max(reached, float(np.linalg.norm(away)))
        w = origin + away * min(1.0, 0.5 / np.linalg.norm(away))
        average = average + max(4 / (t + 5), most * min(1, 4 * 0.3 / noise)) * (w - average)
        np.testing.assert_allclose(release.parameters, average, rtol=0, atol=1e-5)  # norms are inflated by 2^-20
    assert publication().learner.averaging == "tracking"
    assert reached > 0.5, "the ball was never reached"


def changing_places(count, wrong=0.0):
    """Return the rows and labels of two classes that change their places after ten batches, and what reads them.

    wrong: the share of labels that are of the other class.
    """
    rng = np.random.default_rng(5)
    y = rng.integers(0, 2, 20 * count)
    sign = np.where(y == 1, 1.0, -1.0) * np.where(np.arange(len(y)) < 10 * count, 1.0, -1.0)
    x = (rng.normal(size=(len(y), FEATURES)) / 4 + sign[:, None] / 2).astype(np.float32)
    rows = x * np.minimum(1, 1 / np.linalg.norm(x.astype(float), axis=1, keepdims=True))
    y = np.where(rng.random(len(y)) < wrong, 1 - y, y)
    return rows, y, lambda start, end: Records(x=x[start:end], y=y[start:end])


def test_where_gradients_are_suddenly_longer_old_iterates_are_forgotten_and_steps_are_longer(monkeypatch):
    """Recomputed with SciPy, with no noise."""
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    count, clip, eta = 400, 0.5, 4.0
    rows, y, read = changing_places(count)
    settings = {"batch": count, "clip": clip, "learning_rate": eta, "classes": 2}
    released, _ = run(publication(**settings, averaging="adaptive"), 20, read)
    noise = released[0].perturbation.noise.expected_norm() / count
    slowly = min(0.3, 0.3 * 4 * clip / noise)
    w = average = np.zeros(FEATURES)
    lately, ratios = 0.0, []
    for t, release in enumerate(released):
        batch = slice(t * count, (t + 1) * count)
        point = w + 0.7 * (average - w)
        gradients = (special.expit(rows[batch] @ point) - y[batch])[:, None] * rows[batch]
        mean = (gradients * np.minimum(1, clip / np.linalg.norm(gradients, axis=1, keepdims=True))).mean(axis=0)
        length = np.linalg.norm(mean)
        ratios.append(max(1.0, length / np.sqrt(lately**2 + 2 * clip**2 / count)) if t else 1.0)
        lately = length if not t else lately + (0.05 if length > lately else 0.3) * (length - lately)
        w = w - eta * min(3.0, max(1.0, ratios[-1] / 2)) * mean
        average = average + max(4 / (t + 5), min(1.0, slowly * ratios[-1])) * (w - average)
        np.testing.assert_allclose(np.ravel(release.parameters), average, rtol=0, atol=1e-4)
    assert max(ratios[1:10]) < 1.5 < 3 < ratios[10]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_steps_are_longer_while_gradients_agree_with_the_step_before_and_shorter_while_they_do_not(
    monkeypatch, momentum
):
    """Recomputed with SciPy, with no noise: steps go to and fro, then the classes change their places.

    With momentum a step has only a part of the noise that the next one takes back.
    """
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    count, clip, eta = 400, 0.5, 24.0
    rows, y, read = changing_places(count, wrong=0.3)
    settings = {"batch": count, "clip": clip, "learning_rate": eta, "classes": 2}
    learner, privacy = {"momentum": momentum}, {"epsilon": 10, "delta": 1e-6}
    released, _ = run(publication(**settings, learner=learner, privacy=privacy), 20, read)
    noise = released[0].perturbation.noise.expected_norm() / count
    inverse = np.linalg.inv(factor("blt", 100)[0])[:, 0]
    taken_back = -inverse[1:] @ inverse[:-1]
    w = average = before = np.zeros(FEATURES)
    logarithm, multiples = 0.0, []
    for t, release in enumerate(released):
        batch = slice(t * count, (t + 1) * count)
        point = w + 0.6 * (average - w)
        gradients = (special.expit(rows[batch] @ point) - y[batch])[:, None] * rows[batch]
        mean = (gradients * np.minimum(1, clip / np.linalg.norm(gradients, axis=1, keepdims=True))).mean(axis=0)
        if t:
            own = (1 - momentum) * taken_back * noise**2
            agreement = (mean @ before + own) / np.linalg.norm(mean) / np.linalg.norm(before)
            logarithm = np.clip(logarithm + 0.4 * np.clip(agreement, -1, 1), -np.log(3), np.log(2))
        multiples.append(np.exp(logarithm))
        before = momentum * before + (1 - momentum) * mean
        w = w - eta * np.sqrt(multiples[-1]) * before
        first, least = 4 / (t + 5), 0.3 * min(1, 2 * clip / noise)
        average = average + max(first, min(1, multiples[-1] * max(first, least))) * (w - average)
        np.testing.assert_allclose(np.ravel(release.parameters), average, rtol=0, atol=1e-3)
    assert momentum or min(multiples[:12]) < 0.4 < 0.7 < max(multiples[12:])


def test_neither_averages_nor_steps_know_more_of_records_than_the_estimate_that_is_released(monkeypatch):
    """The same estimates make the same models of other records, with another memory of noise."""
    estimates = np.random.default_rng(7).normal(size=(6, 3, FEATURES))
    x, y = data()
    for averaging in (False, True, "recent", "schedule_free", "adaptive", "tracking"):
        leader = publication(averaging=averaging, learner={"momentum": 0.3}).learner
        ways = []
        for sign in (1, -1):
            records = Records(x=sign * x[:BATCH], y=y[:BATCH])
            perturbation = leader.perturbation(Currency.ZCDP, 0.1, BATCH)
            state = leader.start(np.zeros((3, FEATURES)))
            for step, estimate in enumerate(estimates):
                memory = tuple(np.full((3, FEATURES), float(sign)) for _ in range(3))
                monkeypatch.setattr(Correlated, "release", lambda *_, to=(estimate, memory): to)
                state = leader.advance(state, records, BATCH, np.zeros((3, FEATURES)), perturbation, step)
            ways.append(state[-4:])
        for one, other in zip(*ways, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["blt", "toeplitz"])
def test_the_noise_of_a_step_takes_back_a_known_part_of_the_step_before(kind):
    inverse = np.linalg.inv(factor(kind, 44)[0])[:, 0]
    assert taken_back(publication(kind).learner.runs.at(0)[0]) == pytest.approx(-inverse[1:] @ inverse[:-1], rel=1e-3)


@pytest.mark.parametrize(("epsilon", "noisy"), [(200, False), (0.5, True)])
def test_the_average_is_of_recent_iterates_the_more_the_noisier_a_step_is(monkeypatch, epsilon, noisy):
    """Without noise in them, iterates are the same whatever is averaged."""
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    x, y = data()

    def again(start, end):
        places = np.arange(start, end) % len(y)
        return Records(x=x[places], y=y[places])

    settings = {"clip": 0.25, "learning_rate": 1.0, "privacy": {"epsilon": epsilon, "delta": 1e-6}}
    ways = {way: run(publication(averaging=way, **settings), 60, again)[0] for way in (False, True, "recent")}
    iterates = [each.parameters for each in ways[False]]
    noise = ways[True][0].perturbation.noise.expected_norm() / BATCH
    least = 0.1 * min(1.0, 2 * 0.25 / noise)
    assert (least < 0.1) == noisy
    for way, k in ((True, 0.0), ("recent", least)):
        average = np.zeros_like(iterates[0])
        for t, (w, release) in enumerate(zip(iterates, ways[way], strict=True)):
            average = average + max(4 / (t + 5), k) * (w - average)
            np.testing.assert_allclose(release.parameters, average, rtol=0, atol=1e-9)


def test_noise_decides_how_large_steps_are_and_clipping_how_large_at_most():
    rates = [publication(privacy={"epsilon": e, "delta": 1e-6}).plan()["fits"][0]["learning_rate"] for e in (0.1, 0.2)]
    assert rates[1] / rates[0] == pytest.approx(2, rel=0.05)
    fit = publication().plan()["fits"][0]
    assert fit["learning_rate"] * fit["noise"]["scale"] / BATCH == pytest.approx(0.5)
    loud = {"privacy": {"epsilon": 1000, "delta": 1e-6}, "clip": 0.3}
    for averaging, classes, most in (("recent", 3, 24), ("schedule_free", 2, 24), ("schedule_free", 8, 48)):
        planned = publication(**loud, averaging=averaging, classes=classes).plan()["fits"][0]
        assert planned["learning_rate"] == pytest.approx(most / 0.3)
    bounded = {"features": FEATURES, "task": {"kind": "regression", "bound": 2}}
    planned = publication(**loud, stream=bounded).plan()["fits"][0]
    assert planned["learning_rate"] == pytest.approx(2 / 8 * 16 / 0.3), "of logits that are an eighth of the bound"
    assert publication(learning_rate=0.5).plan()["fits"][0]["learning_rate"] == 0.5


def test_regressions_are_never_surprised(monkeypatch):
    """Their gradients grow with what is wrong: a longer step overshoots and makes the next one longer."""
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    rng = np.random.default_rng(6)
    x = rng.normal(size=(8000, FEATURES)).astype(np.float32)
    y = np.clip(x[:, 0] * np.where(np.arange(8000) < 4000, 1.0, -1.0), -2, 2)
    ways = []
    for averaging in ("adaptive", "schedule_free"):
        stream = {"features": FEATURES, "task": {"kind": "regression", "bound": 2}}
        leader = publication(stream=stream, averaging=averaging, batch=400)
        ways.append(run(leader, 20, lambda start, end: Records(x=x[start:end], y=y[start:end]))[0])
    for adaptive, schedule_free in zip(*ways, strict=True):
        np.testing.assert_array_equal(adaptive.parameters, schedule_free.parameters)
    _, chain = run(publication(stream=stream, batch=400), 4, lambda start, end: Records(x=x[start:end], y=y[start:end]))
    assert chain[-4].values == [0.0], "the logarithm of how much longer steps are"


def test_a_regression_is_learnt_alike_whatever_its_bound(monkeypatch):
    """A ball that does not grow with the bound holds back the weights that large labels need."""
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    rng = np.random.default_rng(7)
    x = rng.normal(size=(400, FEATURES)).astype(np.float32)
    learnt = []
    for bound in (1e-4, 1.0, 1e6):
        y = bound * np.clip(0.5 + 0.3 * x[:, 0], -1, 1)
        stream = {"features": FEATURES, "task": {"kind": "regression", "bound": bound}}
        settings = {"stream": stream, "batch": 100, "learner": {"intercept": True}}
        began_before, leader = publication(**settings), publication(**settings, reach="logits")
        assert began_before.learner.constraint.radius == 1e4, "as it began, so it goes on"
        models = run(leader, 4, lambda start, end, y=y: Records(x=x[start:end], y=y[start:end]))[0]
        learnt.append(models[-1].parameters / bound)
    np.testing.assert_allclose(learnt, [learnt[1]] * 3, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bound", [0.5, 4.0])
def test_a_ball_without_a_radius_reaches_as_far_in_a_score_whatever_the_norm_bound(bound):
    stream = {"features": FEATURES, "task": {"kind": "classification", "classes": 2}, "norm_bound": bound}
    for reach in (None, "logits"):
        assert publication(stream=stream, reach=reach).learner.constraint.radius == 1e4 / bound


def test_publications_keep_the_averages_that_they_began_with():
    configuration = {
        "mechanism": {"kind": "online_leader", "batch": 8},
        "learner": {"kind": "noisy_gradient_descent"},
        "privacy": {"epsilon": 1, "delta": 1e-6},
    }
    new = PublicationConfiguration.model_validate(configuration).begun().stored()
    assert (new["mechanism"]["averaging"], new["mechanism"]["reach"]) == ("tracking", "logits")
    assert "reach" not in PublicationConfiguration.model_validate(configuration).stored()["mechanism"]
    for averaging in (True, "recent", "schedule_free", "adaptive"):
        older = new | {"mechanism": new["mechanism"] | {"averaging": averaging}}
        assert PublicationConfiguration.model_validate(older).stored() == older
