"""One pass over disjoint batches: no record moves a sum further than stated, some nearly as far; the noise is there."""

from dataclasses import replace
from fractions import Fraction
from math import fsum, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.learning import encoders
from service.learning.optimization.losses import LOSSES, Squared
from service.learning.optimization.solvers import SLACK, Inaccurate
from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.lifelong import encoder_pass
from service.mechanisms.lifelong.encoder_pass import CHUNK, EncoderPass, gradients_of
from service.mechanisms.timing import BYTES_AT_LEAST, bytes_at_once, fit_cost
from service.privacy.accounting import events
from service.privacy.currency import Currency
from service.privacy.noise.additive import Gaussian
from service.streams.schema import StreamSchema
from tests import chance
from tests.held import most_held

pytestmark = pytest.mark.skipif(not encoder_pass.available(), reason="the extra `deep` is not installed")

RHO = 0.0244
ENCODERS = {
    "dense": encoders.build({"kind": "dense", "version": 1, "layers": [4, 3], "norm_bound": 1.0}, 12),
    "convolutional": encoders.build(
        {
            "kind": "convolutional",
            "version": 1,
            "width": 4,
            "height": 3,
            "channels": [2],
            "kernel": 2,
            "norm_bound": 1.0,
        },
        12,
    ),
}
CASES = [("logistic", 2), ("softmax", 3), ("squared", 0)]


def one_pass(encoder="dense", case=("softmax", 3), records=7, batch=3, clip=0.5, **settings):
    loss = Squared(bound=2.0) if case[0] == "squared" else LOSSES[case[0]]
    return EncoderPass(
        encoder=ENCODERS[encoder], loss=loss, classes=case[1], records=records, batch=batch, clip=clip, **settings
    )


def some(count, rng, case=("softmax", 3)):
    return rng.normal(size=(count, 12)).astype(np.float32), rng.integers(0, case[1] or 3, count)


def summed(learnt, weights, x, y, slots, n):
    return learnt.summed(weights, x, y, slots, n, np.ones(len(y)))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.sampled_from(sorted(ENCODERS)),
    st.sampled_from(CASES),
    st.integers(1, 150),
    st.floats(-3, 2),
    st.sampled_from([0.1, 1.0, 30.0, 1e20, 1e300]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_neighbours_never_move_a_sum_further(encoder, case, n, log_clip, size, erase, seed):
    """Whatever the weights are, also where gradients are not finite any more."""
    rng = np.random.default_rng(seed)
    learnt = one_pass(encoder, case, records=n, batch=n, clip=10**log_clip)
    weights, (x, y) = size * rng.normal(size=learnt.dimension), some(n, rng, case)
    other_x, other_y, slots, at = x.copy(), y.copy(), np.arange(n), rng.integers(n)
    other_x[at], other_y[at] = rng.choice([-1, 1]) * x[at], rng.integers(case[1] or 3)
    others = slots != at if erase else slots >= 0
    sums = (
        summed(learnt, weights, x, y, slots, n),
        summed(learnt, weights, other_x[others], other_y[others], slots[others], n),
    )
    assert np.linalg.norm(sums[0] - sums[1]) <= learnt.perturbation(Currency.ZCDP, RHO).sensitivity


@pytest.mark.parametrize("encoder", ENCODERS)
def test_some_neighbours_come_close(encoder):
    """Two labels of one record: where the head is zero, their gradients are opposite."""
    learnt = one_pass(encoder, ("logistic", 2), records=1, batch=1, clip=0.01)
    x, weights = np.ones((1, 12), dtype=np.float32), learnt.encoder.initial(1)
    first, second = (summed(learnt, weights, x, np.array([y]), np.arange(1), 1) for y in (0, 1))
    moved = np.linalg.norm(first - second) / learnt.perturbation(Currency.ZCDP, RHO).sensitivity
    assert 0.999 < moved <= 1.0


@pytest.mark.more
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_added_up_are_gradients_of_the_loss_clipped(encoder, case):
    """Against differences of the loss itself. Some of them are clipped and some not, and one slot is empty."""
    rng = np.random.default_rng(4)
    learnt = one_pass(encoder, case)
    n = CHUNK + 6
    x, y = some(n, rng, case)
    weights = rng.normal(size=learnt.dimension)
    rows, _ = learnt.encoder.rows(x)

    def losses(at):
        return np.array(
            [learnt.loss.derivatives(learnt.encoder.scores(at, rows[i : i + 1]), y[i : i + 1])[0][0] for i in range(n)]
        )

    steps = 1e-5 * np.eye(learnt.dimension)
    gradients = np.array([(losses(weights + step) - losses(weights - step)) / 2e-5 for step in steps]).T
    lengths = np.linalg.norm(gradients, axis=1)
    learnt = replace(learnt, clip=float(np.median(lengths)))
    expected = gradients * np.minimum(1.0, learnt.clip / lengths)[:, None]
    there = np.arange(n) != 3
    total = summed(learnt, weights, x[there], y[there], np.arange(n)[there], n)
    np.testing.assert_allclose(total, expected[there].sum(axis=0), atol=1e-3 * learnt.clip)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_gradient_is_its_own_record_s_to_the_last_bit(encoder):
    """The gradient of slot 5 becomes another, that of slot 6 is not finite; all others stay as they are."""
    rng = np.random.default_rng(5)
    here, slopes = rng.normal(size=(CHUNK, 12)), rng.normal(size=(CHUNK, 3))
    weights = rng.normal(size=ENCODERS[encoder].dimension(3))
    gradient = gradients_of(ENCODERS[encoder])
    before = gradient(weights, here, slopes)
    here[5], slopes[6] = 0.0, np.inf
    after = gradient(weights, here, slopes)
    others = ~np.isin(np.arange(CHUNK), (5, 6))
    np.testing.assert_array_equal(before[others], after[others])
    assert (before[5] != after[5]).any()
    assert not np.isfinite(after[6]).all()


def test_a_sum_is_within_its_rounding_of_the_exact_one(monkeypatch):
    """The gradients are as long as they may be, and nearly cancel."""
    n, rng = 1000, np.random.default_rng(6)
    learnt = one_pass(records=n, batch=n)
    fake = rng.normal(size=(CHUNK, learnt.dimension))
    fake *= 0.499 / np.linalg.norm(fake, axis=1)[:, None]
    monkeypatch.setattr(encoder_pass, "gradients_of", lambda _: lambda *_: fake)
    total = summed(learnt, np.zeros(learnt.dimension), *some(n, rng), np.arange(n), n)
    exact = [fsum(column) for column in fake[np.arange(n) % CHUNK].T]
    assert np.linalg.norm(total - exact) <= n * (n + 16) * 2.0**-53 * 0.5
    assert learnt.perturbation(Currency.ZCDP, RHO).sensitivity >= 2 * 0.5 * (1 + SLACK)


def test_each_batch_has_a_step_of_its_own_and_slots_keep_their_batch(monkeypatch):
    """7 slots in batches of 2, 2 and 3; erased are 2 and 3, a whole batch, which leaves nothing but its noise."""
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    rng = np.random.default_rng(7)
    learnt = one_pass(learning_rate=0.7)
    x, y = some(7, rng)
    there = np.array([0, 1, 4, 5, 6])
    released = learnt.release(
        Records(x=x[there], y=y[there], slots=there + 20), 20, learnt.perturbation(Currency.ZCDP, 1e9)
    )
    weights = learnt.encoder.initial(3)
    for batch, n in (([0, 1], 2), ([], 2), ([4, 5, 6], 3)):
        if batch:
            weights = weights - 0.7 / n * summed(learnt, weights, x[batch], y[batch], np.arange(n), n)
    assert released.shape == (1, learnt.dimension)
    np.testing.assert_allclose(released[0], weights, atol=1e-6)


def test_what_is_no_record_adds_nothing(monkeypatch):
    monkeypatch.setattr(Gaussian, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))
    learnt = one_pass(learning_rate=1.0)
    x, y = some(7, np.random.default_rng(8))
    y[:] = [-1, 3, 0, 0, 0, 0, 0]
    x[2:] = [[value] * 12 for value in (np.nan, np.inf, -np.inf, np.nan, np.inf)]
    released = learnt.release(Records(x=x, y=y), 0, learnt.perturbation(Currency.ZCDP, RHO))
    np.testing.assert_allclose(released[0], learnt.encoder.initial(3), atol=1e-9)


def test_noise_is_fresh_in_every_step_and_follows_its_law():
    """Three steps without records."""
    wide = encoders.build({"kind": "dense", "version": 1, "layers": [100], "norm_bound": 1.0}, 12)
    learnt = replace(one_pass(learning_rate=1.0), encoder=wide)
    spent = learnt.perturbation(Currency.ZCDP, RHO)
    empty = Records(x=np.empty((0, 12)), y=np.empty(0, dtype=np.int64), slots=np.empty(0, dtype=np.int64))
    moved = learnt.release(empty, 0, spent)[0] - wide.initial(3)
    chance.assert_gaussian(moved.reshape(4, -1), scale=spent.noise.scale * sqrt(1 / 4 + 1 / 4 + 1 / 9))


@pytest.mark.parametrize(("encoder", "multiplied"), [("dense", 12 + 4), ("convolutional", 2 * (4 + 2))])
def test_a_step_holds_the_gradients_of_a_chunk_and_what_its_largest_layer_multiplies(encoder, multiplied):
    learnt = one_pass(encoder)
    assert learnt.numbers == CHUNK * (3 * learnt.dimension + 2 * multiplied)


@pytest.mark.parametrize("charge", [1e-9, 1e-3, 0.0244, 2.0])
def test_the_pass_costs_a_record_one_of_its_sums(charge):
    learnt = one_pass(records=10_000, batch=500)
    spent = learnt.perturbation(Currency.ZCDP, charge)
    assert learnt.steps == 20
    again = events.from_json(spent.to_json()).cost(Currency.ZCDP, records=10_000)
    assert 0.999999 * Fraction(charge) < again == spent.cost(Currency.ZCDP, records=10_000) <= Fraction(charge)
    assert spent.noise.scale == pytest.approx(2 * 0.5 / sqrt(2 * charge), rel=1e-3)
    assert spent.dimension((1, learnt.dimension)) == spent.noise.dimension


def test_the_more_noise_the_shorter_the_steps():
    """Where nobody says otherwise: the noise of all steps in a weight has at most the spread that is meant."""
    learnt = one_pass(records=4000, batch=500)
    rates = {charge: learnt.rate(learnt.perturbation(Currency.ZCDP, charge)) for charge in (1e-6, 1e-4, 1e3)}
    for charge in (1e-6, 1e-4):
        noise = learnt.perturbation(Currency.ZCDP, charge).noise.scale
        assert rates[charge] * noise / 500 * sqrt(8) == pytest.approx(encoder_pass.NOISE)
    assert rates[1e3] == encoder_pass.FASTEST


def test_more_gradients_than_doubles_can_add_up_are_refused():
    with pytest.raises(Inaccurate, match="smaller batches"):
        one_pass(batch=2**40).perturbation(Currency.ZCDP, RHO)
    with pytest.raises(ValueError, match="pure"):
        one_pass().perturbation(Currency.PURE, 1.0)


def test_the_rate_follows_from_the_noise_beside_the_contributions_and_one_is_the_least():
    learnt = one_pass(records=7)
    noisy = learnt.perturbation(Currency.ZCDP, RHO)
    rates = [learnt.rate(noisy, many) for many in (0, 1, 2, 7)]
    assert rates[0] == rates[1]
    assert rates[2] == pytest.approx(2 * rates[1])
    assert rates[3] == learnt.rate(noisy) == pytest.approx(7 * rates[1])
    assert rates[3] < encoder_pass.FASTEST


def held_by(learnt, records, monkeypatch):
    """Return the most bytes that a pass holds beside the records, its gradients being made up."""
    fake = np.ones((CHUNK, learnt.dimension))
    monkeypatch.setattr(encoder_pass, "gradients_of", lambda _: lambda *_: fake.copy())
    return most_held(learnt.release, records, 0, learnt.perturbation(Currency.ZCDP, RHO))


@pytest.mark.parametrize("value", [1.0, 1e30, np.nan], ids=["plain", "long", "empty"])
def test_no_record_makes_a_pass_need_more_memory_than_its_plan_says(value, monkeypatch):
    n = 20_000
    learnt = one_pass("dense", records=n, batch=n)
    x = np.full((n, 12), 0.1, dtype=np.float32)
    x[7, 0] = value
    records = Records(x=x, y=np.zeros(n, dtype=np.int32), slots=np.arange(n))
    assert x.nbytes + held_by(learnt, records, monkeypatch) <= bytes_at_once(n, 12) + BYTES_AT_LEAST


def test_a_plan_reckons_with_the_gradients_that_one_record_takes(monkeypatch):
    """All other slots are empty, so that without it nearly nothing is held; then none is."""
    encoder = {"kind": "dense", "records": CHUNK, "layers": [100, 80]}
    stream = {"features": 12, "task": {"kind": "classification", "classes": 3}}
    settings = {"mechanism": {"kind": "lifelong", "task_size": CHUNK, "encoder": encoder}}
    privacy = {"privacy": {"epsilon": 1, "delta": 1e-6}, "learner": {"kind": "output_perturbation"}}
    mechanism = build(StreamSchema.model_validate(stream), PublicationConfiguration.model_validate(settings | privacy))
    planned = fit_cost(mechanism.obligations().fit, CHUNK).bytes
    x, y = np.full((CHUNK, 12), np.nan, dtype=np.float32), np.zeros(CHUNK, dtype=np.int32)
    x[5] = 1.0
    records = Records(x=x, y=y, slots=np.arange(CHUNK))
    assert 8 * CHUNK * mechanism.encoder.dimension < held_by(mechanism.encoder, records, monkeypatch) <= planned
    x[:] = 1.0
    assert planned / 2 < held_by(mechanism.encoder, records, monkeypatch) <= planned
