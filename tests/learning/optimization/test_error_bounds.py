"""Each bound on what rounding does, against its formula in exact fractions: no term is left out or halved.

A bound may be a little larger than its formula: by a margin for the rounding of norms, of 2^-20 each, and by rounding
up. It may not be smaller, and not much larger: another term would cover for one that is missing.
"""

from fractions import Fraction
from math import sqrt

import pytest

from service.learning.encoders import Dense, Encoder
from service.learning.noisy_gradient_descent import NoisyGradientDescent, clipped_sum
from service.learning.objective_perturbation import ObjectivePerturbation
from service.learning.optimization.losses import LOSSES
from service.learning.optimization.solvers import Exact, Inaccurate, Setting, _accuracy
from service.mechanisms.lifelong.encoder_pass import EncoderPass
from service.mechanisms.sufficient_statistics import Statistics
from service.privacy import currency as losses
from service.privacy import sensitivity
from service.privacy.currency import Currency
from service.privacy.noise.correlated import Toeplitz, _moved, calibrate

U = Fraction(1, 2**53)
SLACK = Fraction(1, 2**16)
MARGINS = Fraction(1, 2**18)
ROWS = 128
RHO = 0.0244


def is_bound(computed: float, exact: Fraction) -> bool:
    return 1 - 8 * U <= Fraction(computed) / exact <= 1 + MARGINS


def setting(**changed) -> Setting:
    settings = {"loss": LOSSES["logistic"], "norm_bound": 1.0, "regularization": 0.125, "shape": (1, 1)}
    return Setting(**settings | {"center_norm": 0.0} | changed)


# In each of these another term is the largest: scores, evaluation, summation, the tilt, the regularizer, the step.
SETTINGS = [
    setting(),
    setting(shape=(1, 1000), center_norm=1e3),
    setting(loss=LOSSES["softmax"], shape=(500, 2)),
    setting(tilt=1e4),
    setting(regularization=1e4, center_norm=1.0),
    setting(norm_bound=2.0**-10, regularization=1.0, center_norm=1e4),
]


@pytest.mark.parametrize("public", SETTINGS, ids=["small", "wide", "classes", "tilt", "regularizer", "step"])
def test_a_computed_gradient_is_as_near_as_its_formula_says(public: Setting):
    """The sum in the docstring of `solvers`, twice."""
    rows, features = public.shape
    bound, alpha, tilt = (Fraction(each) for each in (public.norm_bound, public.regularization, public.tilt))
    lipschitz = Fraction(public.lipschitz)
    curved = Fraction(public.loss.score_smoothness)
    smoothness = Fraction(public.loss.smoothness(public.norm_bound)) + alpha
    for radius in (0.0, 3.0):
        weights = Fraction(public.center_norm) + Fraction(radius)
        scores = bound * curved * (features + 2) * weights * bound
        evaluated = bound * Fraction(public.loss.slope_error(rows))
        summed = (ROWS + 8) * lipschitz
        added = 8 * (lipschitz + tilt + alpha * Fraction(radius))
        stepped = 8 * smoothness * weights
        assert is_bound(public.error(radius), 2 * U * (scores + evaluated + summed + added + stepped))


@pytest.mark.parametrize("public", [SETTINGS[0], SETTINGS[2]], ids=["small", "classes"])
@pytest.mark.parametrize("records", [1, 2**16, 2**40])
def test_a_minimiser_is_certified_as_its_formula_says(public: Setting, records):
    """With few records by the slack, with many by five times the error."""
    lipschitz, alpha = Fraction(public.lipschitz), Fraction(public.regularization)
    accuracy = _accuracy(public, records)
    assert is_bound(accuracy.radius, min(2 * lipschitz / alpha, Fraction(public.reach)))
    assert accuracy.error == public.error(accuracy.radius)
    tolerance = max(SLACK * lipschitz / records, 5 * Fraction(accuracy.error))
    assert is_bound(accuracy.tolerance, tolerance)
    moved = 2 * lipschitz / (alpha * records) + 2 * Fraction(accuracy.tolerance) / alpha
    assert moved <= Fraction(Exact().sensitivity(public, records)) <= moved * (1 + 4 * U)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_solver_that_counts_its_steps_moves_as_its_formula_says(steps):
    settings = {"lipschitz": 1.5, "strong_convexity": 0.25, "tolerance": 2.0**-12}
    once = 2 * Fraction(3, 2) / (Fraction(1, 4) * 10)
    inexact = 2 * Fraction(1, 2**12) / Fraction(1, 4)
    moved = once * (1 - Fraction(3, 4) ** steps) + inexact
    bound = Fraction(sensitivity.gradient_descent(**settings, records=10, step=1.0, steps=steps))
    assert moved * (1 + Fraction(1, 2**42)) <= bound <= moved * (1 + Fraction(1, 2**39))
    bound = Fraction(sensitivity.permutation_sgd(**settings, slots=10))
    assert (once + inexact) * (1 + Fraction(1, 2**42)) <= bound <= (once + inexact) * (1 + Fraction(1, 2**39))


LINEAR = {"loss": LOSSES["logistic"], "intercept": False, "norm_bound": 1.0, "features": 3, "classes": 2}


@pytest.mark.parametrize("records", [1, 2**40])
@pytest.mark.parametrize("weights", [0.0, 1e4])
def test_a_sum_of_clipped_gradients_moves_as_its_formula_says(records, weights):
    learner = NoisyGradientDescent(**LINEAR, regularization=0.0)
    clip = Fraction(1, 2)
    scores = Fraction(1, 4) * (3 + 2) * Fraction(weights)
    error = 2 * U * records * (scores + 4 + 64 + (ROWS + 1 + 3 + 16) * clip)
    if error > clip / 2:
        with pytest.raises(Inaccurate):
            clipped_sum(learner, clip=float(clip), records=records, weights=weights)
        return
    exact = 2 * (clip + max(SLACK * clip, error))
    assert is_bound(clipped_sum(learner, clip=float(clip), records=records, weights=weights), exact)


@pytest.mark.parametrize("records", [1, 2**22])
def test_statistics_move_as_their_formula_says(records):
    learner = Statistics(**LINEAR, regularization=0.1)
    weights = learner.weights
    named = {name: getattr(weights, name) for name in ("second", "first", "label", "count")}
    length = sqrt(sum(each**2 for each in named.values()))
    error = max(SLACK, 2 * U * records * (1024 + Fraction(records, 1024) + 16)) * Fraction(length)
    exact = Fraction(sensitivity.sufficient_statistics(**named, codes=2)) + 2 * error
    assert is_bound(learner.perturbation(Currency.ZCDP, RHO, records).sensitivity, exact)


@pytest.mark.parametrize("batch", [1, 2**20])
def test_the_gradients_of_an_encoder_move_as_their_formula_says(batch):
    encoder = Encoder(input_features=3, norm_bound=1.0, layers=(Dense(inputs=3, units=2),))
    made = EncoderPass(encoder=encoder, loss=LOSSES["logistic"], classes=2, records=batch, batch=batch, clip=0.5)
    error = max(SLACK, 2 * U * batch * (batch + 16))
    assert is_bound(made.perturbation(Currency.ZCDP, RHO).sensitivity, 2 * Fraction(1, 2) * (1 + error))


def test_the_output_of_a_tilted_minimiser_moves_as_its_formula_says():
    learner = ObjectivePerturbation(**LINEAR, regularization=0.1)
    for records in (1000, 2**30):
        made = learner.perturbation(Currency.PURE, 1.0, records)
        promise, longest = learner._promise(made.noise, records, made.regularization, 0.0)
        assert is_bound(longest, Fraction(made.noise.scale) * (4 * 3 + 200) / records)
        lattice = Fraction(made.noise.grid) * Fraction(sqrt(3)) / (2 * records)
        tolerance = Fraction(promise.tolerance) + 2 * U * Fraction(longest) + lattice
        assert is_bound(made.output_sensitivity, 2 * tolerance / Fraction(made.regularization))


@pytest.mark.parametrize("kind", Currency)
@pytest.mark.parametrize("largest", [1.0, 1e12])
def test_rounding_moves_correlated_noise_as_its_formula_says(kind, largest):
    factor = Toeplitz(bands=3, decay=0.5)
    made = calibrate(kind, factor=factor, sensitivity=1.0, largest=largest, charge=1.0, dimension=4)
    coefficients = [Fraction(float(each)) for each in factor.coefficients]
    total, square = sum(coefficients), sum(each**2 for each in coefficients)
    rounding = 2 * U * Fraction(largest) + (4 * 2 * 4 * total + 1) * Fraction(made.noise.grid) * 2
    exact = total + 3 * rounding if kind is Currency.PURE else Fraction(sqrt(square)) + Fraction(sqrt(3)) * rounding
    assert exact * (1 - 8 * U) <= _moved(made, Fraction(1)) <= exact * (1 + Fraction(1, 2**30))


@pytest.mark.parametrize("order", [2.0**-20, 1.0, 2.0**20])
def test_an_epsilon_covers_32_roundings_of_each_of_its_terms(order):
    """Only one term is large there, so that the others' share hides nothing."""
    rho, inverse = 0.0, 2.0**40
    terms = [Fraction(inverse) / Fraction(order)]
    epsilon = Fraction(losses._epsilon_at(order, rho, inverse))
    assert terms[0] * (1 + 31 * U) - 64 <= epsilon
    assert Fraction(losses._INFLATION) >= 32 * U
