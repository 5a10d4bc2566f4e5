"""DP-FTRL with the noise of running sums: what is released follows from noisy sums, each read once and charged once."""

import numpy as np
import pytest
from scipy import optimize, special

from service.learning.records import Records
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.mechanism import StateLost
from service.privacy.accounting import events
from service.privacy.currency import Currency
from service.privacy.noise import additive as noises
from service.privacy.noise.additive import Gaussian
from tests import chance
from tests.mechanisms.online_leader.publications import BATCH, NOISES, factor, publication
from tests.mechanisms.steps import FEATURES, GAUSSIAN, RHO, data, goes_on_exactly, nothing, reader, run


@pytest.fixture(params=NOISES)
def noise(request):
    return request.param


def test_the_leader_is_the_minimiser_of_all_gradients_so_far(monkeypatch):
    """Found by SciPy for the sum of what was linearised and of (μ/2)·‖w - c‖² per record, within the ball."""
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    x, y = data()
    rows = x * np.minimum(1, 1 / np.linalg.norm(x.astype(float), axis=1, keepdims=True))
    origin, mu = np.full((3, FEATURES), 0.1), 0.2
    settings = {"strong_convexity": mu, "clip": 10.0, "radius": 0.4, "averaging": False}
    released, _ = run(publication(learner={"origin": origin.tolist()}, **settings), 6, reader())
    w, total, reached = origin, np.zeros_like(origin), 0.0
    for t, release in enumerate(released):
        batch = slice(t * BATCH, (t + 1) * BATCH)
        total = total + (special.softmax(rows[batch] @ w.T, axis=1) - np.eye(3)[y[batch]]).T @ rows[batch]
        n = (t + 1) * BATCH

        def objective(flat, total=total, n=n):
            away = flat - origin.ravel()
            return (total.ravel() @ flat + mu * n / 2 * away @ away) / n, total.ravel() / n + mu * away

        within = {"type": "ineq", "fun": lambda flat: 0.16 - ((flat - origin.ravel()) ** 2).sum()}
        options = {"ftol": 1e-14, "maxiter": 500}
        solution = optimize.minimize(
            objective, origin.ravel(), jac=True, method="SLSQP", constraints=[within], options=options
        )
        w = release.parameters
        reached = max(reached, float(np.linalg.norm(w - origin)))
        np.testing.assert_allclose(w.ravel(), solution.x, rtol=0, atol=1e-4)
    assert reached == pytest.approx(0.4)


def test_a_record_is_read_with_its_batch_only_and_charged_everything_once(noise):
    seen = []

    def read(start, end):
        seen.append((start, end))
        return reader()(start, end)

    mechanism = publication(noise)
    released, _ = run(mechanism, 9, read)
    batches = [(start, start + BATCH) for start in range(0, 9 * BATCH, BATCH)]
    assert seen == batches == [release.fit for release in released]
    assert [release.window for release in released] == [(0, end) for _, end in batches]
    assert [release.parent for release in released] == [None, *range(1, 9)]
    for release in released:
        assert 0.999 * mechanism.capacity < release.charge <= mechanism.capacity
        cost = events.from_json(release.perturbation.to_json()).cost(Currency.ZCDP, records=BATCH)
        assert (
            0.999 * release.charge < cost == release.perturbation.cost(Currency.ZCDP, records=BATCH) <= release.charge
        )
    assert [mechanism.next_time(7), mechanism.next_time(8), mechanism.needs(23)] == [8, 16, 16]


@pytest.mark.parametrize("privacy", [GAUSSIAN, {"epsilon": 1}], ids=["gaussian", "pure"])
def test_every_restart_goes_on_exactly(noise, privacy, monkeypatch):
    goes_on_exactly(publication(noise, privacy), 14, monkeypatch)


@pytest.mark.more
def test_parts_are_written_once_and_no_more_of_them_are_kept_than_needed(noise):
    mechanism = publication(noise)
    written, chain = {}, ()
    for number in range(60):
        chain = mechanism.step((number + 1) * BATCH, chain, number + 1, reader()).chain
        for part in chain:
            assert np.array_equal(written.setdefault(part.number, part.values), part.values)
        remembered = mechanism.learner.remembers((number + 1) * mechanism.steps)
        assert len(chain) == len({part.number for part in chain}) == remembered
        trees = {"tree": 5, "window_tree": 2, "leaf": 3 + 2 * 1 + 2, "block": 2 * 2 + 3}
        most = {"blt": 3, "two steps": 3, "toeplitz": 43, **trees}[noise]
        assert len(chain) <= 4 + most
    assert max(written) <= 60 * 8


def test_what_was_forgotten_is_never_made_up(noise):
    mechanism = publication(noise)
    _, chain = run(mechanism, 5, reader())
    for wrong in ((), chain[:-1]):
        with pytest.raises(StateLost):
            mechanism.step(6 * BATCH, wrong, 6, reader())
    with pytest.raises(StateLost):
        mechanism.step(BATCH, chain, 1, reader())


@pytest.mark.parametrize("kind", ["blt", "toeplitz"])
def test_from_released_models_comes_white_noise_of_the_right_size(kind):
    """All records erased, so that models move by noise alone; clip C = .25, Δ = 2C.

    So many of them that noise without what a column costs, which is a sixth less, is noticed too.
    """
    mechanism = publication(kind, averaging=False, clip=0.25, learning_rate=1.0, learner={"momentum": 0.0})
    released = [run(mechanism, 20, nothing)[0] for _ in range(6)]
    models = np.array([[np.zeros((3, FEATURES)), *(each.parameters for each in one)] for one in released])
    estimates = -BATCH * np.diff(models, axis=1).reshape(6, 20, -1)
    matrix, norm = factor(kind, 20)
    white = np.einsum("ts,rsd->rtd", matrix, estimates).reshape(120, -1)
    chance.assert_gaussian(white, scale=norm * 0.5 / np.sqrt(2 * RHO))


def test_from_released_models_come_nodes_with_spherical_laplace_noise():
    """A window of 4 batches: every record is in at most 3 nodes, each of scale 3Δ/ε (paper-audit.md 2, strict)."""
    settings = {"averaging": False, "clip": 0.25, "learning_rate": 1.0, "learner": {"momentum": 0.0}}
    mechanism = publication("window_tree", {"epsilon": 1}, **settings)
    noise = []
    for _ in range(6):
        models = [np.zeros((3, FEATURES)), *(each.parameters for each in run(mechanism, 8, nothing)[0])]
        sums = -BATCH * np.array(models)  # of noise, up to each step
        nodes = [(0, 1), (0, 2), (2, 3), (0, 4), (4, 5), (4, 6), (6, 7), (4, 8)]
        noise += [(sums[end] - sums[start]).ravel() for start, end in nodes]
    chance.assert_spherical_laplace(noise, scale=3 * 0.5)


def test_the_plan_tells_the_noise_of_every_run(noise):
    mechanism = publication(noise)
    plan = mechanism.plan()
    assert plan["lifetime"]["share"] == "1"
    assert plan["lifetime"]["rho"] <= float(mechanism.capacity) * (1 + 1e-15)
    assert plan["first_releases"] == [BATCH * each for each in range(1, 9)]
    scales = [fit["noise"]["scale"] for fit in plan["fits"]]
    if noise == "tree":  # of 1, 4, 32, … leaves, which have 1, 3, 6, … levels
        assert np.array(scales[1:]) / scales[0] == pytest.approx(np.sqrt([3, 6, 11, 21]), rel=1e-6)
    else:
        assert len(scales) == 1
    released, _ = run(mechanism, 5, reader())
    noise_of_run = plan["fits"][0]["noise"]
    described = released[0].perturbation.to_json()
    assert {name: described[name] for name in ("scale", "factor", "largest")} == {
        name: noise_of_run[name] for name in ("scale", "factor", "largest")
    }


@pytest.mark.parametrize(
    ("path", "learner"),
    [
        ("learner.kind", {"kind": "output_perturbation"}),
        ("learner.steps", {"steps": 3}),
        ("learner.step", {"step": 0.1}),
        ("learner.clip", {"clip": 0.1}),
        ("learner.momentum", {"momentum": 0.5}),
        ("learner.regularization", {"regularization": 0.5}),
    ],
)
def test_what_the_mechanism_says_the_learner_does_not(path, learner):
    with pytest.raises(Refused) as refused:
        publication(learner=learner, strong_convexity=0.1)
    assert refused.value.path == path


@pytest.mark.more
@pytest.mark.parametrize("constraint", ["l1_ball", "box", "simplex"])
def test_a_pursuit_comes_near_the_leader_and_never_leaves_the_set(constraint, monkeypatch):
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    origin = np.full((3, FEATURES), 1 / (3 * FEATURES))
    settings = {"constraint": constraint, "radius": 1.0, "averaging": False, "strong_convexity": 0.2}
    learner = {"origin": origin.tolist()}
    x, y = np.tile(np.eye(FEATURES, dtype=np.float32)[:3], (1000, 1)), np.tile(np.arange(3), 1000)

    def read(start, end):
        return Records(x=x[start:end], y=y[start:end])

    leader, follower = (
        run(publication(learner=learner, step=step, **settings), 300, read)[0][-1].parameters
        for step in ("projection", "conditional_gradient")
    )
    assert np.linalg.norm(leader - origin) > 0.3
    assert np.linalg.norm(follower - leader) < 0.7 * np.linalg.norm(leader - origin)
    away = np.abs(follower - origin)
    if constraint == "simplex":
        assert follower.min() >= -1e-12
        assert follower.sum() == pytest.approx(1.0)
    else:
        assert (away.sum() if constraint == "l1_ball" else away.max()) <= 1 + 1e-12


@pytest.mark.parametrize("constraint", ["l1_ball", "box", "simplex"])
def test_iterates_stay_in_their_set(constraint):
    origin = np.full((3, FEATURES), 1 / (3 * FEATURES))
    settings = {"constraint": constraint, "radius": 1.0, "averaging": False, "learning_rate": 50.0}
    released, _ = run(publication(learner={"origin": origin.tolist()}, **settings), 6, reader())
    for release in released:
        w, away = release.parameters, np.abs(release.parameters - origin)
        sizes = {"l1_ball": away.sum(), "box": away.max(), "simplex": w.sum()}
        assert sizes[constraint] == pytest.approx(1.0)
        assert constraint != "simplex" or w.min() >= 0
    with pytest.raises(Refused, match="has to lie in the simplex") as refused:
        publication(**(settings | {"constraint": "simplex"}))
    assert refused.value.path == "learner.origin"


@pytest.mark.parametrize(
    "settings",
    [
        {"noise": "tree", "decay": 0.9},
        {"noise": "toeplitz", "decay": 0.999},
        {"noise": "window_tree"},
        {"window": 3},
        {"expiry": "leaf", "acknowledge_declassification": True},
        {"noise": "window_tree", "window": 3, "acknowledge_declassification": True},
        {"noise": "window_tree", "window": 1025, "expiry": "leaf", "acknowledge_declassification": True},
        {"noise": "window_tree", "window": 2**20 + 1, "expiry": "block", "acknowledge_declassification": True},
        {"constraint": "simplex"},
        {"constraint": "cone", "radius": 1.0},
        {"reach": "logits", "radius": 1.0},
        {"step": "conditional_gradient"},
        {"step": "conditional_gradient", "strong_convexity": 1.0},
        {"decay": 1.1},
        {"learning_rate": 1.0, "strong_convexity": 1.0},
        {"steps": 3},
        {"steps": 32},
        {"steps": "many"},
        {"steps": 2, "noise": "tree"},
        {"steps": "auto", "noise": "window_tree", "window": 3},
    ],
)
def test_settings_of_another_noise_and_of_another_version_are_refused(settings):
    with pytest.raises(ValueError, match="validation error"):
        PublicationConfiguration.model_validate(
            {
                "mechanism": {"kind": "online_leader", "batch": 8, **settings},
                "learner": {"kind": "noisy_gradient_descent"},
                "privacy": GAUSSIAN,
            }
        )


@pytest.mark.parametrize("expiry", ["leaf", "block"])
def test_what_declassifies_has_to_be_acknowledged_and_the_refusal_says_what_it_means(expiry):
    with pytest.raises(ValueError, match=r"no longer protected at all.*unbounded.*acknowledge_declassification"):
        publication(expiry, acknowledge_declassification=False)


@pytest.mark.parametrize("expiry", ["leaf", "block"])
def test_a_record_is_declassified_by_the_release_that_has_its_gradient_in_the_clear_and_not_before(expiry, monkeypatch):
    """Noise that hides all of what it is added to, and one record: the model moves once it is hidden no longer."""
    monkeypatch.setattr(noises, "add", lambda values, _: np.zeros(values.shape))
    mechanism = publication(expiry, averaging=False)
    x, y = data()
    for batch in range(9):

        def read(start, end, record=batch * BATCH + 3):
            here = slice(record, record + (start <= record < end))
            return Records(x=x[here], y=y[here])

        released, _ = run(mechanism, 20, read)
        shown = next(release.time for release in released if np.any(release.parameters))
        stated = next(release.time for release in released if mechanism.declassified(release.time) > batch * BATCH + 3)
        assert shown == stated


@pytest.mark.parametrize("noise", ["blt", "window_tree", "leaf", "block"])
def test_a_plan_says_from_when_on_a_record_is_no_longer_protected_and_what_it_loses_then(noise):
    mechanism = publication(noise)
    plan = mechanism.plan()
    if noise not in ("leaf", "block"):
        assert "declassification" not in plan
        assert "note" not in plan["lifetime"]
        assert mechanism.declassified(10**6 * BATCH) == 0
        return
    clause = plan["declassification"]
    assert clause["epsilon"] is None
    assert "unbounded" in clause["note"]
    assert "unbounded" in plan["lifetime"]["note"]
    times = range(0, 40 * BATCH, BATCH)
    gone = [mechanism.declassified(time) for time in times]
    assert next(time for time, records in zip(times, gone, strict=True) if records) == clause["first_time"]
    # Batch i has its release at time (i + 1)·b, and is protected in it.
    releases = [sum(records <= i * BATCH for records in gone[i + 1 :]) for i in range(20)]
    assert {"least": min(releases), "most": max(releases)} == clause["protected_releases"]
