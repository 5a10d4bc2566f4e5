"""Checks from outside for every mechanism that counts each record once, in private statistics."""

import numpy as np
import pytest

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.mechanism import StateLost
from service.privacy.accounting import events
from service.streams.schema import StreamSchema
from tests import chance
from tests.mechanisms.steps import FEATURES, GAUSSIAN, PURE, RHO, nothing, reader, run

ENTRIES = 5 * 6 // 2 + 5 + 3 * 6  # second and first moments, and of each of three classes' codes
IN_EITHER_CURRENCY = pytest.mark.parametrize("privacy", [GAUSSIAN, PURE], ids=["gaussian", "pure"])
NOT_THE_LEARNERS = [
    ("learner.kind", {"kind": "objective_perturbation"}, {}),
    ("learner.kind", {"kind": "noisy_gradient_descent"}, {}),
    ("learner.score_noise", {"score_noise": 0.5}, {}),
    ("learner.solver", {"solver": "psgd"}, {}),
    ("learner.regularization", {"regularization": 0.5}, {}),
    ("learner.loss", {"loss": "huber_hinge"}, {}),
]
"""Settings of a learner that the mechanism decides itself: the field that is refused, the learner, the mechanism."""


def publish(mechanism, privacy, classes, learner, columns=FEATURES, feature_map=None):
    """A publication on a stream of so many classes (0: of a regression)."""
    task = {"kind": "classification", "classes": classes} if classes else {"kind": "regression", "bound": 2.0}
    return build(
        StreamSchema.model_validate({"features": columns, "task": task, "feature_map": feature_map}),
        PublicationConfiguration.model_validate(
            {"mechanism": mechanism, "learner": {"kind": "output_perturbation", **(learner or {})}, "privacy": privacy}
        ),
    )


def is_refused(path, publication, *args, **settings):
    with pytest.raises(Refused) as refused:
        publication(*args, **settings)
    assert refused.value.path == path


def charged_everything_once(mechanism, fits, records):
    """Runs it past those fits: each reads its records only, and pays all there is for them, as its noise tells."""
    seen = []

    def read(start, end):
        seen.append((start, end))
        return reader()(start, end)

    released, _ = run(mechanism, len(fits), read)
    assert seen == fits == [release.fit for release in released]
    for release in released:
        assert release.role == "model"
        paid_for(mechanism, release, records)
    return released


def paid_for(mechanism, release, records):
    """It costs all there is, as its noise tells whoever verifies the ledger, and holds as many numbers as that."""
    described = release.perturbation.to_json()
    assert 0.999 * mechanism.capacity < release.charge <= mechanism.capacity
    cost = events.from_json(described).cost(mechanism.currency, records=records)
    assert 0.999 * release.charge < cost == release.perturbation.cost(mechanism.currency, records) <= release.charge
    assert described["dimension"] == release.perturbation.dimension(release.parameters.shape)
    assert np.isfinite(release.parameters).all()


def never_made_up(mechanism, times, *wrongs):
    """Assert that nothing goes on where the memory lacks or exceeds five steps; times: the first two and the sixth."""
    first, second, sixth = times
    _, chain = run(mechanism, 5, reader())
    for wrong in ((), chain[:-1], *(make(chain) for make in wrongs)):
        with pytest.raises(StateLost):
            mechanism.step(sixth, wrong, 6, reader())
    with pytest.raises(StateLost):
        mechanism.step(first, chain, 1, reader())
    assert mechanism.terms(first) is None
    assert mechanism.terms(second)["weights"] == mechanism.learner.weights.to_json()


def tells_its_noise(mechanism, fit):
    """A plan tells the noise of the first fit, as its release does."""
    described = run(mechanism, 1, reader())[0][0].perturbation.to_json()
    names = ("scale", "factor", "largest", "weights")
    assert {name: fit["noise"][name] for name in names} == {name: described[name] for name in names}
    assert fit["noise"]["dimension"] == ENTRIES


def running_sums_column(decay):
    """Return the column of paper-audit.md 8.1's buffered Toeplitz factor for 1,024 steps, times decay^i."""
    decays = np.array([0.99897285, 0.97855964, 0.74328276]) * decay
    scales = np.array([0.04444111, 0.12054534, 0.31138952]) * decay
    return np.array([1.0, *(decays ** np.arange(3000)[:, None] @ scales)])


def sums_with_labels(mechanism, steps, slots):
    """Return the sums of 8 runs on erased records, (8, steps, FEATURES + 1), weighted as when noise is added to them.

    Two classes and a ridge of 1e6, so strong that models are the sums with labels: (g/λ)·Σ v⊗φ; slots: of each model.
    """
    weights = mechanism.learner.weights
    models = np.array([[each.parameters[0] for each in run(mechanism, steps, nothing)[0]] for _ in range(8)])
    sums = models * (1e6 * slots[:, None] / 0.25) / 2.0 * np.sqrt(2)  # λ/g, and φ = (a, 1)/√2
    return sums * np.array([weights.label] * FEATURES + [weights.count])


def assert_white_and_of_the_right_size(mechanism, column, increments):
    """Assert that what was added to each step's own sums is what the factor with that column makes of white noise.

    With codes ±1, a record replaced moves Σ v⊗a by up to 2, and all weighted statistics by Δ.
    """
    steps, weights = increments.shape[1], mechanism.learner.weights
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    matrix = np.where((lags >= 0) & (lags < len(column)), np.resize(column, 3001)[np.abs(lags)], 0.0)
    s, f, k = weights.second**2, weights.first**2, weights.count**2
    apart = np.sqrt(2 * s + 2 * (f + 1) + max((f + 1) ** 2, (f - 1) ** 2 + 8 * s * k) / (2 * s))
    white = np.einsum("ts,rsd->rtd", matrix, increments)
    scale = np.linalg.norm(column) * apart / np.sqrt(2 * RHO)
    chance.assert_gaussian(white.reshape(-1, white.shape[-1]), scale=scale)


def assert_spherical_laplace_each(mechanism, memory_of):
    """Assert that what is kept of two empty batches is noise of the right size, for all statistics together."""
    w = mechanism.learner.weights
    s, f = w.second**2, w.first**2
    apart = np.sqrt(2 * s + 2 * (f + 1) + (f + 1) ** 2 / (2 * s))  # two of the same class; its count is free
    noise = [part.values[:ENTRIES] for _ in range(10) for part in memory_of(run(mechanism, 2, nothing)[1])]
    assert len(noise) == 20
    chance.assert_spherical_laplace(noise, scale=apart)
