"""The code adds for rounding as much as the proof: neither less, which would be a leak, nor more, which is waste."""

from decimal import Context, Decimal
from fractions import Fraction

import pytest

from service.privacy import sensitivity
from service.privacy.accounting.events.objective import curvature
from service.privacy.noise.correlated import Toeplitz

ULP = Fraction(1, 2**52)
EXACT = Context(prec=60)


@pytest.mark.parametrize("factor", [Toeplitz(bands=5, decay=0.9), Toeplitz.for_ever(0.97)])
def test_a_column_s_sums_are_raised_by_two_to_the_minus_50(factor):
    entries = [Fraction(float(each)) for each in factor.coefficients]
    for raised, exact in ((factor.column.total, sum(entries)), (factor.column.square, sum(e**2 for e in entries))):
        assert abs(raised / exact - 1 - Fraction(1, 2**50)) <= ULP


@pytest.mark.parametrize(("rank", "steepness", "records"), [(1, 0.75, 10), (3, 0.75, 1000), (2, 8.0, 1)])
def test_the_cost_of_curvature_is_raised_by_two_to_the_minus_45(rank, steepness, records):
    cost = curvature(rank=rank, steepness=steepness, records=records, regularization=0.125)
    ratio = Fraction(steepness) / (rank * records * Fraction(0.125))
    exact = rank * EXACT.ln(1 + EXACT.divide(Decimal(ratio.numerator), Decimal(ratio.denominator)))
    assert abs(Fraction(cost) / Fraction(exact) - 1 - Fraction(1, 2**45)) <= 8 * ULP


def test_step_sizes_are_covered_by_two_to_the_minus_40():
    moved = sensitivity.permutation_sgd(lipschitz=0.75, strong_convexity=0.1, slots=96, tolerance=0.0)
    exact = 2 * Fraction(0.75) / (Fraction(0.1) * 96)
    assert abs(Fraction(moved) / exact - 1 - Fraction(1, 2**40)) <= 2 * ULP


@pytest.mark.parametrize("steps", [1, 7, 100])
def test_what_steps_move_is_raised_by_two_to_the_minus_40(steps):
    settings = {"lipschitz": 0.75, "strong_convexity": 0.125, "records": 96, "tolerance": 0.0}
    moved = sensitivity.gradient_descent(step=0.25, steps=steps, **settings)
    exact = 2 * Fraction(0.75) / (Fraction(0.125) * 96) * (1 - (1 - Fraction(0.25) * Fraction(0.125)) ** steps)
    assert abs(Fraction(moved) / exact - 1 - Fraction(1, 2**40)) <= 8 * ULP
    whole = sensitivity.gradient_descent(step=8.0, steps=steps, **settings)
    assert whole == pytest.approx(2 * 0.75 / (0.125 * 96), rel=1e-15)
    for step in (0.0, 8.1):
        with pytest.raises(ValueError, match="0 < step·α <= 1"):
            sensitivity.gradient_descent(step=step, steps=steps, **settings)
