"""The cost of a release, recomputed from what it says: right to the last digit, and nothing is believed blindly."""

from fractions import Fraction
from math import log

import pytest

from service.privacy import claims
from service.privacy.loss import Kind

GAUSSIAN = {"distribution": "gaussian", "scale": 4.0, "sensitivity": 2.0, "dimension": 3, "added_to": "weights"}
LAPLACE = GAUSSIAN | {"distribution": "spherical_laplace"}
TILT = LAPLACE | {
    "added_to": "objective",
    "regularization": 0.5,
    "curvature": {"rank": 2, "steepness": 3.0},
    "output": {"distribution": "spherical_laplace", "scale": 8.0, "sensitivity": 0.5, "dimension": 3},
}
CURVED = 2 * log(1 + 3 / (2 * 100 * 0.5))


@pytest.mark.parametrize(
    ("kind", "noise", "cost"),
    [
        (Kind.PURE, LAPLACE, 0.5),
        (Kind.ZCDP, LAPLACE, 0.125),
        (Kind.ZCDP, GAUSSIAN, 0.125),
        (Kind.ZCDP, GAUSSIAN | {"added_to": "gradient_sums", "steps": 10}, 1.25),
        (Kind.PURE, TILT, 0.5 + CURVED + 0.0625),
        (Kind.ZCDP, TILT, (0.5 + CURVED + 0.0625) ** 2 / 2),
    ],
)
def test_the_cost_is_the_formulas(kind, noise, cost):
    found = claims.cost(kind, noise, records=100)
    assert float(found) == pytest.approx(cost, rel=1e-12)
    assert found >= Fraction(cost) * (1 - Fraction(1, 2**50))


@pytest.mark.parametrize(
    ("kind", "noise"),
    [
        (Kind.PURE, GAUSSIAN),
        (Kind.PURE, TILT | {"output": GAUSSIAN}),
        (Kind.ZCDP, GAUSSIAN | {"distribution": "uniform"}),
        (Kind.ZCDP, GAUSSIAN | {"added_to": "nothing"}),
        (Kind.ZCDP, GAUSSIAN | {"scale": None}),
        (Kind.ZCDP, GAUSSIAN | {"scale": 0.0}),
        (Kind.ZCDP, GAUSSIAN | {"added_to": "gradient_sums"}),
        (Kind.PURE, {name: TILT[name] for name in TILT if name != "curvature"}),
        (Kind.PURE, {}),
        (Kind.ZCDP, GAUSSIAN | {"sensitivity": -2.0}),
        (Kind.ZCDP, GAUSSIAN | {"sensitivity": float("inf")}),
        (Kind.ZCDP, GAUSSIAN | {"added_to": "gradient_sums", "steps": 0}),
        (Kind.ZCDP, GAUSSIAN | {"added_to": "gradient_sums", "steps": -1}),
        (Kind.PURE, TILT | {"regularization": 0.0}),
        (Kind.PURE, TILT | {"regularization": -0.5}),
        (Kind.PURE, TILT | {"curvature": {"rank": 0, "steepness": 3.0}}),
        (Kind.PURE, TILT | {"curvature": {"rank": 2, "steepness": -3.0}}),
        (Kind.PURE, TILT | {"output": LAPLACE | {"sensitivity": -2.0}}),
    ],
)
def test_what_has_no_such_cost_is_no_claim(kind, noise):
    with pytest.raises(ValueError, match=r"."):
        claims.cost(kind, noise, records=100)


def test_fewer_records_bend_an_objective_more():
    costs = [claims.curvature(rank=3, steepness=0.75, records=n, regularization=0.1) for n in (1, 10, 1000)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == pytest.approx(3 * log(1 + 0.75 / 0.3))
