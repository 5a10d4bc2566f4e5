"""A window of private statistics: each record counted once, forgotten exactly, and the noise of sums over a window."""

import numpy as np
import pytest

from service.learning.records import Records
from service.mechanisms.limits import MAX_REMEMBERED
from service.mechanisms.linear import predict
from service.privacy.currency import Currency
from service.privacy.noise.additive import Gaussian
from tests import chance
from tests.mechanisms.private_statistics import (
    ENTRIES,
    IN_EITHER_CURRENCY,
    NOT_THE_LEARNERS,
    assert_spherical_laplace_each,
    assert_white_and_of_the_right_size,
    charged_everything_once,
    is_refused,
    never_made_up,
    publish,
    running_sums_column,
    sums_with_labels,
    tells_its_noise,
)
from tests.mechanisms.steps import (
    FEATURES,
    GAUSSIAN,
    PURE,
    goes_on_exactly,
    reader,
    run,
)

BLOCK = 8
BLOCKS = 3


def publication(privacy=GAUSSIAN, classes=3, learner=None, features=FEATURES, **settings):
    mechanism = {"kind": "window_statistics", "block": BLOCK, "blocks": BLOCKS, **settings}
    return publish(mechanism, privacy, classes, learner, features)


@IN_EITHER_CURRENCY
def test_a_record_is_read_with_its_block_only_and_charged_everything_once(privacy):
    mechanism = publication(privacy)
    blocks = [(start, start + BLOCK) for start in range(0, 9 * BLOCK, BLOCK)]
    released = charged_everything_once(mechanism, blocks, BLOCK)
    assert [release.window for release in released] == [(max(0, end - 3 * BLOCK), end) for _, end in blocks]
    assert {(release.parent, release.perturbation.to_json()["dimension"]) for release in released} == {(None, ENTRIES)}
    assert [mechanism.next_time(7), mechanism.next_time(8), mechanism.needs(23)] == [8, 16, 16]


def test_without_noise_it_is_the_window_s_own_model_and_the_past_is_gone(monkeypatch):
    """Two streams that agree in the last W blocks only have the same model, and it is that of these records alone."""
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    one, other = reader(), reader(seed=1)
    mechanism = publication(ridge=0.05)

    def changed(start, end):
        return one(start, end) if start >= 4 * BLOCK else other(start, end)

    (*_, before, release), (*_, early, late) = (run(mechanism, 7, read)[0] for read in (one, changed))
    assert not np.allclose(before.parameters, early.parameters, atol=1e-3)
    np.testing.assert_allclose(release.parameters, late.parameters, rtol=0, atol=1e-9)
    learner = mechanism.learner
    records = one(4 * BLOCK, 7 * BLOCK)
    exact = learner.solve(learner.statistics(records, 3 * BLOCK), 3 * BLOCK, 0.05, np.zeros(learner.shape))
    np.testing.assert_allclose(release.parameters, exact, rtol=0, atol=1e-9)


def test_a_window_that_is_not_full_has_the_slots_of_the_blocks_that_there_are(monkeypatch):
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    mechanism, read = publication(ridge=0.05), reader()
    learner, origin = mechanism.learner, np.zeros(mechanism.learner.shape)
    for blocks, release in enumerate(run(mechanism, BLOCKS, read)[0], start=1):
        sums = learner.statistics(read(0, blocks * BLOCK), blocks * BLOCK)
        exact = learner.solve(sums, blocks * BLOCK, 0.05, origin)
        np.testing.assert_allclose(release.parameters, exact, rtol=0, atol=1e-9)


def test_the_pull_is_by_the_noise_of_the_blocks_that_there_are():
    """The deviation of a window's noise by hand: of the running sums of C⁻¹z, less those before the window."""
    mechanism, steps = publication(), 12
    column = running_sums_column(1 - 1 / BLOCKS)[:steps]
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    running = np.cumsum(np.linalg.inv(np.where(lags >= 0, column[np.abs(lags)], 0.0)), axis=0)
    windows = running - np.vstack((np.zeros((BLOCKS, steps)), running[:-BLOCKS]))
    pulls = [mechanism.learner.pull(mechanism.first_noise(), BLOCK, step) for step in range(steps)]
    np.testing.assert_allclose(np.divide(pulls, pulls[0]), np.linalg.norm(windows, axis=1), rtol=1e-6)
    assert pulls[BLOCKS] > 1.1 * pulls[0]


def test_a_window_of_units_has_as_many_slots_as_its_blocks_have_units():
    mechanism, read = publication(ridge=0.05), reader()
    learner, (release,) = mechanism.learner, run(mechanism, 1, read)[0]
    sums = [learner.statistics(read(start, start + BLOCK), BLOCK) for start in (0, BLOCK)]
    estimates, origin = tuple(map(np.append, sums, (3, 4))), np.zeros(learner.shape)
    model = learner.model(estimates, BLOCK, origin, release.perturbation, 1)
    np.testing.assert_allclose(model, learner.solve(sums[0] + sums[1], 3 + 4, 0.05, origin), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("classes", "least", "mean", "spread"), [(0, 0.8, 0.944, 0.014), (2, 0.9, 0.958, 0.0034), (4, 0.6, 0.746, 0.0175)]
)
def test_it_learns_and_clients_predict_as_with_any_model(classes, least, mean, spread):
    """Real noise, at a budget at which it is small; the record map and the loss are told with the model.

    Four models are judged together, whose mean spreads half as much as each.
    """
    rng = np.random.default_rng(5)
    x = rng.normal(size=(6 * BLOCK, FEATURES)).astype(np.float32)
    scores = x @ rng.normal(size=(FEATURES, max(classes, 1)))
    y = np.clip(scores[:, 0], -2, 2) / 4 if not classes else scores[:, :classes].argmax(axis=1)
    if classes == 2:
        y = (scores[:, 0] > 0).astype(int)
    mechanism = publication({"epsilon": 1000, "delta": 1e-6}, classes)
    right = []
    for _ in range(4):
        released, _ = run(mechanism, 6, lambda start, end: Records(x=x[start:end], y=y[start:end]))
        labels, scores = predict(mechanism.model_description(), released[-1].parameters, x)
        right.append((labels == y).mean() if classes else np.corrcoef(labels, y)[0, 1])
        assert scores.shape == (len(x), classes or 1)
    chance.assert_above(np.mean(right), least, mean=mean, spread=spread / 2, runs=400)


@IN_EITHER_CURRENCY
def test_every_restart_goes_on_exactly(privacy, monkeypatch):
    goes_on_exactly(publication(privacy), 10, monkeypatch)


@IN_EITHER_CURRENCY
def test_parts_are_written_once_and_no_more_of_them_are_kept_than_needed(privacy):
    mechanism = publication(privacy)
    written, chain = {}, ()
    for number in range(12):
        chain = mechanism.step((number + 1) * BLOCK, chain, number + 1, reader()).chain
        for part in chain:
            assert np.array_equal(written.setdefault(part.number, part.values), part.values)
        assert [part.number for part in chain] == sorted({part.number for part in chain})
        assert len(chain) == min(number + 1, BLOCKS - 1) + (3 if privacy == GAUSSIAN else 0)
    assert len(written) == 12 * (4 if privacy == GAUSSIAN else 1), "estimates are not written again"


@IN_EITHER_CURRENCY
def test_what_was_forgotten_is_never_made_up(privacy):
    never_made_up(publication(privacy), (BLOCK, 2 * BLOCK, 6 * BLOCK))


def test_from_released_models_comes_white_noise_of_the_right_size():
    """The test adds to each sum over a window what has left it, and then looks at the noise (paper-audit.md 8.2)."""
    steps = 12
    mechanism = publication(classes=2, ridge=1e6)
    sums = sums_with_labels(mechanism, steps, BLOCK * np.minimum(np.arange(1, steps + 1), BLOCKS))
    blocks = np.diff(sums, axis=1, prepend=0)
    for t in range(BLOCKS, steps):
        blocks[:, t] += blocks[:, t - BLOCKS]
    assert_white_and_of_the_right_size(mechanism, running_sums_column(1 - 1 / BLOCKS), blocks)


def test_pure_statistics_have_spherical_laplace_noise_of_their_own():
    assert_spherical_laplace_each(publication(PURE), lambda chain: chain)


@IN_EITHER_CURRENCY
def test_the_plan_tells_the_noise_and_the_ridge(privacy):
    mechanism = publication(privacy)
    plan = mechanism.plan()
    assert plan["lifetime"]["share"] == "1"
    assert plan["first_releases"] == [BLOCK * each for each in range(1, 9)]
    (fit,) = plan["fits"]
    tells_its_noise(mechanism, fit)
    assert publication(privacy, ridge=0.3).plan()["fits"][0]["ridge"] == 0.3
    assert (mechanism.currency is Currency.PURE) == ("rho" not in plan["lifetime"])


@IN_EITHER_CURRENCY
def test_the_ridge_is_a_third_of_the_size_of_the_noise_matrix(privacy):
    """By drawing it 16 times: the spectral norm of a symmetric matrix of such noise, times 1/(3·h·slots)."""
    mechanism = publication(privacy, features=40, classes=3, learner={"intercept": False}, blocks=1)
    (fit,) = mechanism.plan()["fits"]
    learner = mechanism.learner
    noise = learner.perturbation(
        mechanism.currency, mechanism._charge(mechanism.schedule.lifetime().share), BLOCK
    ).noise
    upper, right = np.triu_indices(40)

    def longest():
        draw = noise.sample()[: 40 * 41 // 2] * noise.grid / learner.weights.second
        matrix = np.zeros((40, 40))
        matrix[upper, right] = np.where(upper == right, draw, draw / np.sqrt(2))
        return np.linalg.norm(matrix + np.triu(matrix, 1).T, 2)

    ratio = np.mean([longest() for _ in range(16)]) / 3 / 3 / BLOCK / fit["ridge"]
    measured = {"mean": 0.975, "spread": 0.054 / 4, "runs": 400}
    chance.assert_above(ratio, 0.75, **measured)
    chance.assert_below(ratio, 1.2, **measured)


@pytest.mark.parametrize(
    ("path", "learner", "settings"),
    [
        *NOT_THE_LEARNERS,
        ("mechanism.block", {}, {"block": 2**40}),
        ("mechanism.blocks", {}, {"features": 300, "blocks": 4096}),
    ],
)
def test_what_the_mechanism_says_the_learner_does_not(path, learner, settings):
    is_refused(path, publication, learner=learner, **settings)


@pytest.mark.more
def test_a_window_of_the_most_that_may_be_remembered_is_fine():
    assert publication(features=100, blocks=4096).learner.entries * 4096 <= MAX_REMEMBERED


def test_pure_noise_for_more_numbers_than_its_law_is_proved_for_is_refused():
    is_refused("privacy.delta", publication, PURE, features=6000, blocks=1)
    assert publication(GAUSSIAN, features=6000, blocks=1).learner.entries > 2**24


@pytest.mark.parametrize("settings", [{"blocks": 0}, {"blocks": 4097}, {"block": 0}, {"ridge": 0.0}, {"window": 3}])
def test_settings_beyond_their_range_are_refused(settings):
    with pytest.raises(ValueError, match="validation error"):
        publication(**settings)
