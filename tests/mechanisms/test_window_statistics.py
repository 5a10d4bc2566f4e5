"""A window of private statistics: each record counted once, forgotten exactly, and the noise of sums over a window."""

import numpy as np
import pytest
from scipy import stats

from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import MAX_REMEMBERED, PublicationConfiguration, Refused
from service.mechanisms.linear import predict
from service.mechanisms.mechanism import Forgotten
from service.mechanisms.stream_schema import StreamSchema
from service.privacy import claims
from service.privacy.loss import Kind
from service.privacy.noise import Gaussian, SphericalLaplace
from tests.mechanisms.steps import (
    ALARM,
    FEATURES,
    GAUSSIAN,
    PURE,
    RHO,
    a_third_too_small,
    nothing,
    reader,
    run,
    seeded,
    stored,
)

BLOCK = 8
BLOCKS = 3
ENTRIES = 5 * 6 // 2 + 5 + 3 * 6  # second and first moments, and of each of three classes' codes


def publication(privacy=GAUSSIAN, classes=3, learner=None, features=FEATURES, **settings):
    task = {"kind": "classification", "classes": classes} if classes else {"kind": "regression", "bound": 2.0}
    return build(
        StreamSchema.model_validate({"features": features, "task": task}),
        PublicationConfiguration.model_validate(
            {
                "mechanism": {"kind": "window_statistics", "block": BLOCK, "blocks": BLOCKS, **settings},
                "learner": {"kind": "output_perturbation", **(learner or {})},
                "privacy": privacy,
            }
        ),
    )


@pytest.fixture(params=[GAUSSIAN, PURE], ids=["gaussian", "pure"])
def privacy(request):
    return request.param


def test_a_record_is_read_with_its_block_only_and_charged_everything_once(privacy):
    seen = []

    def read(start, end):
        seen.append((start, end))
        return reader()(start, end)

    mechanism = publication(privacy)
    released, _ = run(mechanism, 9, read)
    blocks = [(start, start + BLOCK) for start in range(0, 9 * BLOCK, BLOCK)]
    assert seen == blocks == [release.fit for release in released]
    assert [release.window for release in released] == [(max(0, end - 3 * BLOCK), end) for _, end in blocks]
    assert {(release.parent, release.role) for release in released} == {(None, "model")}
    for release in released:
        described = release.perturbation.described()
        assert 0.999 * mechanism.capacity < release.charge <= mechanism.capacity
        assert 0.999 * release.charge < release.perturbation.charge() <= release.charge
        assert 0 < claims.cost(mechanism.kind, described, records=BLOCK) <= release.charge
        assert described["dimension"] == claims.dimension(described, release.parameters.shape) == ENTRIES
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


@pytest.mark.parametrize(("classes", "least"), [(0, 0.75), (2, 0.9), (4, 0.55)])
def test_it_learns_and_clients_predict_as_with_any_model(classes, least):
    """Real noise, at a budget at which it is small; the record map and the loss are told with the model.

    Found were .943 with a deviation of .016 (regression), .958 and .003 (two classes), .748 and .020 (four): more than
    nine deviations above what is asked for.
    """
    rng = np.random.default_rng(5)
    x = rng.normal(size=(6 * BLOCK, FEATURES)).astype(np.float32)
    scores = x @ rng.normal(size=(FEATURES, max(classes, 1)))
    y = np.clip(scores[:, 0], -2, 2) / 4 if not classes else scores[:, :classes].argmax(axis=1)
    if classes == 2:
        y = (scores[:, 0] > 0).astype(int)
    mechanism = publication({"epsilon": 1000, "delta": 1e-6}, classes)
    released, _ = run(mechanism, 6, lambda start, end: Records(x=x[start:end], y=y[start:end]))
    labels, found = predict(mechanism.model_description(), released[-1].parameters, x)
    if classes:
        assert (labels == y).mean() > least
        assert found.shape == (len(x), classes)
    else:
        assert np.corrcoef(labels, y)[0, 1] > least


def test_every_restart_goes_on_exactly(privacy, monkeypatch):
    mechanism = publication(privacy)

    seeded(monkeypatch)
    whole, _ = run(mechanism, 10, reader())
    seeded(monkeypatch)
    restarted, _ = run(mechanism, 10, reader(), between=stored)
    for one, other in zip(whole, restarted, strict=True):
        assert np.array_equal(one.parameters, other.parameters)
    monkeypatch.undo()
    again, _ = run(mechanism, 1, reader())
    assert not np.array_equal(whole[0].parameters, again[0].parameters)


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


def test_what_was_forgotten_is_never_made_up(privacy):
    mechanism = publication(privacy)
    _, chain = run(mechanism, 5, reader())
    for wrong in ((), chain[:-1]):
        with pytest.raises(Forgotten):
            mechanism.step(6 * BLOCK, wrong, 6, reader())
    with pytest.raises(Forgotten):
        mechanism.step(BLOCK, chain, 1, reader())
    assert mechanism.terms(BLOCK) is None
    assert mechanism.terms(2 * BLOCK)["weights"] == mechanism.learner.weights.described()


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "noise a third too small"])
def test_from_released_models_comes_white_noise_of_the_right_size(planted, monkeypatch):
    """All records erased, and a ridge so strong that models are the sums with labels: (g/λ)·Σ v⊗φ (mechanisms.md 8).

    Two classes: with codes ±1, a record replaced moves Σ v⊗a by up to 2, and all weighted statistics by Δ.
    """
    if planted:
        a_third_too_small(monkeypatch, Gaussian)
    steps, runs = 12, 30
    mechanism = publication(classes=2, ridge=1e6)
    weights = mechanism.learner.weights
    released = [run(mechanism, steps, nothing)[0] for _ in range(runs)]
    models = np.array([[each.parameters[0] for each in one] for one in released])
    slots = BLOCK * np.minimum(np.arange(1, steps + 1), BLOCKS)
    sums = models * (1e6 * slots[:, None] / 0.25) / 2.0 * np.sqrt(2)  # λ/g, and φ = (a, 1)/√2
    sums = sums * np.array([weights.label] * FEATURES + [weights.count])
    blocks = np.diff(sums, axis=1, prepend=0)
    for t in range(BLOCKS, steps):
        blocks[:, t] += blocks[:, t - BLOCKS]
    decays = np.array([0.99897285, 0.97855964, 0.74328276]) * (1 - 1 / BLOCKS)
    scales = np.array([0.04444111, 0.12054534, 0.31138952]) * (1 - 1 / BLOCKS)
    column = np.array([1.0, *(decays ** np.arange(3000)[:, None] @ scales)])
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    matrix = np.where(lags >= 0, column[np.abs(lags)], 0.0)
    s, f, k = weights.second**2, weights.first**2, weights.count**2
    apart = np.sqrt(2 * s + 2 * (f + 1) + max((f + 1) ** 2, (f - 1) ** 2 + 8 * s * k) / (2 * s))
    white = np.einsum("ts,rsd->rtd", matrix, blocks) / (np.linalg.norm(column) * apart / np.sqrt(2 * RHO))
    size, total = stats.chi2(white.size), (white**2).sum()
    pvalue = 3 * min(size.cdf(total), size.sf(total), stats.kstest(white.ravel(), stats.norm.cdf).pvalue)
    assert bool(pvalue > ALARM) is not planted


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "noise a third too small"])
def test_pure_statistics_have_spherical_laplace_noise_of_their_own(planted, monkeypatch):
    """What is kept of an empty block is its noise, for all statistics together; every block's is independent."""
    if planted:
        a_third_too_small(monkeypatch, SphericalLaplace)
    mechanism = publication(PURE)
    w = mechanism.learner.weights
    s, f = w.second**2, w.first**2
    apart = np.sqrt(2 * s + 2 * (f + 1) + (f + 1) ** 2 / (2 * s))  # two of the same class; its count is free
    noises = [run(mechanism, 2, nothing)[1] for _ in range(40)]
    radii = [np.linalg.norm(part.values) / apart for chain in noises for part in chain]
    assert len(radii) == 80
    assert bool(stats.kstest(radii, stats.gamma(ENTRIES).cdf).pvalue > ALARM) is not planted


def test_the_plan_tells_the_noise_and_the_ridge(privacy):
    mechanism = publication(privacy)
    plan = mechanism.plan()
    assert plan["lifetime"]["share"] == "1"
    assert plan["first_releases"] == [BLOCK * each for each in range(1, 9)]
    (told,) = plan["fits"]
    released, _ = run(mechanism, 2, reader())
    described = released[0].perturbation.described()
    assert {name: told["noise"][name] for name in ("scale", "factor", "largest", "weights")} == {
        name: described[name] for name in ("scale", "factor", "largest", "weights")
    }
    assert told["noise"]["dimension"] == ENTRIES
    assert publication(privacy, ridge=0.3).plan()["fits"][0]["ridge"] == 0.3
    assert (mechanism.kind is Kind.PURE) == ("rho" not in plan["lifetime"])


def test_the_ridge_is_a_third_of_the_size_of_the_noise_matrix(privacy):
    """By drawing it: the spectral norm of a symmetric matrix of such noise, times 1/(3·h·slots)."""
    mechanism = publication(privacy, features=40, classes=3, learner={"intercept": False}, blocks=1)
    (told,) = mechanism.plan()["fits"]
    learner = mechanism.learner
    noise = learner.perturbation(mechanism.kind, mechanism._charge(mechanism.schedule.lifetime().share), BLOCK).noise
    draw = noise.sample()[: 40 * 41 // 2] * noise.grid / learner.weights.second
    upper, right = np.triu_indices(40)
    matrix = np.zeros((40, 40))
    matrix[upper, right] = np.where(upper == right, draw, draw / np.sqrt(2))
    longest = np.linalg.norm(matrix + np.triu(matrix, 1).T, 2)
    assert told["ridge"] == pytest.approx(longest / 3 / 3 / BLOCK, rel=0.4)


@pytest.mark.parametrize(
    ("path", "learner", "settings"),
    [
        ("learner.kind", {"kind": "objective_perturbation"}, {}),
        ("learner.kind", {"kind": "noisy_gradient_descent"}, {}),
        ("learner.solver", {"solver": "psgd"}, {}),
        ("learner.regularization", {"regularization": 0.5}, {}),
        ("learner.loss", {"loss": "huber_hinge"}, {}),
        ("mechanism.block", {}, {"block": 2**40}),
        ("mechanism.blocks", {}, {"features": 300, "blocks": 4096}),
    ],
)
def test_what_the_mechanism_says_the_learner_does_not(path, learner, settings):
    with pytest.raises(Refused) as refused:
        publication(learner=learner, **settings)
    assert refused.value.path == path


def test_a_window_of_the_most_that_may_be_remembered_is_fine():
    assert publication(features=100, blocks=4096).learner.entries * 4096 <= MAX_REMEMBERED


@pytest.mark.parametrize("settings", [{"blocks": 0}, {"blocks": 4097}, {"block": 0}, {"ridge": 0.0}, {"window": 3}])
def test_settings_beyond_their_range_are_refused(settings):
    with pytest.raises(ValueError, match="validation error"):
        publication(**settings)
