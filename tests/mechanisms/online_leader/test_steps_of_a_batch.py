"""Several steps of a batch: as many batches, in smaller publications, of which only every so manieth is released."""

import numpy as np
import pytest

from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.online_leader import mechanism as online_leader
from service.mechanisms.online_leader.online_gradient import OnlineGradient
from service.privacy.noise.additive import Gaussian
from service.streams.schema import StreamSchema
from service.streams.units import contributions
from tests import chance
from tests.mechanisms.online_leader.publications import BATCH, factor, publication
from tests.mechanisms.steps import FEATURES, GAUSSIAN, RHO, data, nothing, reader, run


@pytest.fixture
def sums(monkeypatch):
    """Each step as (n, its number, its slots)."""
    seen, true = [], OnlineGradient.advance

    def advance(self, state, records, n, origin, perturbation, step):
        seen.append((n, step, records.slots.tolist()))
        return true(self, state, records, n, origin, perturbation, step)

    monkeypatch.setattr(OnlineGradient, "advance", advance)
    return seen


@pytest.mark.parametrize("noise", ["blt", "toeplitz"])
@pytest.mark.parametrize("steps", [2, 4, 8])
@pytest.mark.parametrize("averaging", [False, "tracking"])
def test_every_step_is_that_of_a_smaller_batch(noise, steps, averaging, monkeypatch):
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    several, _ = run(publication(noise, steps=steps, averaging=averaging), 6, reader())
    small, _ = run(publication(noise, batch=BATCH // steps, averaging=averaging), 6 * steps, reader())
    for one, other in zip(several, small[steps - 1 :: steps], strict=True):
        assert np.array_equal(one.parameters, other.parameters)
        assert one.perturbation == other.perturbation
        assert one.charge == other.charge
    assert [each.fit for each in several] == [(start, start + BATCH) for start in range(0, 6 * BATCH, BATCH)]


@pytest.mark.parametrize("steps", [2, 4])
def test_from_released_models_comes_white_noise_of_the_right_size(steps):
    """All records erased. A release is the sum of `steps` estimates, whose covariance follows from C by hand."""
    mechanism = publication(steps=steps, averaging=False, clip=0.25, learning_rate=1.0, learner={"momentum": 0.0})
    released = [run(mechanism, 10, nothing)[0] for _ in range(12)]
    models = np.array([[np.zeros((3, FEATURES)), *(each.parameters for each in one)] for one in released])
    estimates = -(BATCH // steps) * np.diff(models, axis=1).reshape(12, 10, -1)
    matrix, norm = factor("blt", 10 * steps)
    of_releases = np.linalg.inv(matrix).reshape(10, steps, -1).sum(axis=1)
    whitening = np.linalg.inv(np.linalg.cholesky(of_releases @ of_releases.T))
    white = np.einsum("ts,rsd->rtd", whitening, estimates).reshape(120, -1)
    chance.assert_gaussian(white, scale=norm * 0.5 / np.sqrt(2 * RHO))


@pytest.mark.parametrize("erased", [0, 3, 4, 7])
def test_an_erased_record_leaves_every_other_part_as_it_is(sums, erased):
    """Slots make the parts, whichever of them hold records: else one record would move two sums."""
    x, y = data()

    def read(start, end):
        there = np.array([slot for slot in range(start, end) if slot != erased])
        return Records(x=x[there], y=y[there], slots=there)

    run(publication(steps=4), 2, read)
    parts = [[slot for slot in range(start, start + 2) if slot != erased] for start in range(0, 16, 2)]
    assert sums == [(2, number, part) for number, part in enumerate(parts)]


def test_parts_are_as_even_as_can_be_and_the_noise_is_for_the_longest(sums):
    mechanism = publication(steps=4, batch=10)
    x, y = data()

    def read(start, end):
        return Records(x=x[start:end], y=y[start:end], slots=np.arange(start, end))

    released, _ = run(mechanism, 2, read)
    assert [slots for _, _, slots in sums[:4]] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
    assert [n for n, _, _ in sums] == [2, 3, 2, 3] * 2
    expected = mechanism.learner.perturbation(mechanism.currency, mechanism.capacity, 3, mechanism.origin, 0)
    assert [each.perturbation for each in released] == [expected] * 2
    assert expected.largest >= 3 * mechanism.learner.longest, "of a sum, for what rounding adds"


def test_slots_that_are_set_aside_count_in_no_part(sums):
    stream = {"features": FEATURES, "task": {"kind": "classification", "classes": 3}, "evaluation": {"every": 4}}
    mechanism = publication(steps=2, stream=stream)
    x, y = data()

    def read(start, end):
        there = np.array([slot for slot in range(start, end) if slot % 4 != 3])
        return Records(x=x[there], y=y[there], slots=there)

    run(mechanism, 1, read)
    assert sums == [(3, 0, [0, 1, 2]), (3, 1, [4, 5, 6])]
    with pytest.raises(Refused):  # a part could have evaluation slots alone
        publication(steps=8, stream=stream)


def made(stream, **settings):
    configuration = PublicationConfiguration.model_validate(
        {
            "mechanism": {"kind": "online_leader", "batch": 1000, **settings.pop("mechanism", {})},
            "learner": {"kind": "noisy_gradient_descent"},
            "privacy": GAUSSIAN | settings,
        }
    )
    return build(StreamSchema.model_validate(stream), configuration.begun())


@pytest.mark.parametrize(
    ("features", "classes", "epsilon", "batch", "steps"),
    [
        (8, 2, 1, 1000, 8),  # parts of at least 125
        (8, 2, 1, 999, 4),
        (8, 2, 1, 200, 1),
        (8, 2, 1, 100_000, 16),
        (8, 2, 0.01, 1000, 1),  # noise is longer than a gradient
        (784, 10, 1, 1000, 1),
        (784, 10, 1, 10_000, 8),
        (784, 10, 10, 10_000, 16),
    ],
)
def test_auto_makes_as_many_steps_as_noise_allows(features, classes, epsilon, batch, steps):
    stream = {"features": features, "task": {"kind": "classification", "classes": classes}}
    mechanism = made(stream, epsilon=epsilon, mechanism={"batch": batch, "steps": "auto"})
    assert mechanism.steps == steps
    (fit,) = mechanism.plan()["fits"]
    noise = mechanism.first_noise().noise.expected_norm() / mechanism.learner.longest
    assert steps == 1 or noise <= fit["records"] >= online_leader.PART
    assert steps == 16 or noise > batch // (2 * steps) or batch // (2 * steps) < online_leader.PART
    assert (fit.get("steps", 1), fit["records"]) == (steps, batch // steps)


def test_auto_counts_the_slots_of_a_part_that_may_be_fitted():
    """Where every second slot is set aside, 250 of them are 125 records."""
    stream = {"features": 8, "task": {"kind": "classification", "classes": 2}}
    assert (made(stream).steps, made(stream | {"evaluation": {"every": 2}}).steps) == (8, 4)


def test_what_begins_now_chooses_by_itself_and_what_began_before_makes_one_step():
    stream = {"features": 8, "task": {"kind": "classification", "classes": 2}}
    configuration = PublicationConfiguration.model_validate(
        {
            "mechanism": {"kind": "online_leader", "batch": 1000},
            "learner": {"kind": "noisy_gradient_descent"},
            "privacy": GAUSSIAN,
        }
    )
    assert "steps" not in configuration.stored()["mechanism"]
    assert build(StreamSchema.model_validate(stream), configuration).steps == 1
    assert configuration.begun().stored()["mechanism"]["steps"] == "auto"
    assert made(stream).steps == made(stream, mechanism={"steps": "auto"}).steps == 8
    assert made(stream, mechanism={"batch": 2001}).steps == 1
    assert made(stream, mechanism={"steps": 1}).steps == 1
    assert made(stream, mechanism={"noise": "tree"}).steps == 1
    assert made(stream, mechanism={"strong_convexity": 0.1}).steps == 1
    assert made(stream | {"unit": {"max_records": 4}}).steps == 1


def test_a_unit_has_one_contribution_a_step_and_a_part_has_a_record():
    stream = {"features": 8, "task": {"kind": "classification", "classes": 2}}
    for privacy in ({}, {"delta": 0}):
        with pytest.raises(Refused, match=r"leave mechanism\.steps out"):
            made(stream | {"unit": {"max_records": 4}}, mechanism={"steps": 2}, **privacy)
    with pytest.raises(Refused, match="ask for fewer steps") as refused:
        made(stream, mechanism={"batch": 3, "steps": 4})
    assert refused.value.path == "mechanism.steps"


def test_a_step_is_along_the_mean_of_as_many_units_as_there_are(monkeypatch):
    """Without noise, four records of two units are two records."""
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    mechanism = publication(learning_rate=1.0, clip=0.5)
    x, y = (each[:4] for each in data())
    places = [0, 0, 1, 1]
    shares = contributions(np.array(places))
    of_units = Records(x=x[places], y=y[places], weights=shares, units=2)
    noise, start = mechanism.first_noise(), mechanism.learner.start(mechanism.origin)
    models = [
        mechanism.learner.advance(start, records, n, mechanism.origin, noise, 0)[-1]
        for records, n in ((of_units, 4), (Records(x=x[:2], y=y[:2]), 2))
    ]
    assert np.linalg.norm(models[1]) > 0.1
    np.testing.assert_allclose(models[0], models[1], rtol=0, atol=1e-9)
