"""The solver's result is certified: its exact gradient is below the public tolerance, whatever the records."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from service.learning.optimization import newton, solvers
from service.learning.optimization.losses import LOSSES
from service.learning.optimization.objective import ROWS, Objective, chunk_rows, norm
from service.learning.optimization.solvers import SLACK, Inaccurate, accuracy
from service.learning.records import PIECE, PreparedRows

CASES = [("logistic", 2), ("softmax", 4), ("huber_hinge", 2), ("huber_hinge", 4), ("squared", 0)]


def problem(
    name="softmax", classes=4, m=120, features=5, alpha=0.1, slots=None, center=0.0, scale=1.0, seed=0, bound=1.0
):
    """A data set in a ball of radius `bound`, its centre of norm `center`, and the promise made for it."""
    rng = np.random.default_rng(seed)
    loss = LOSSES[name]
    shape = (loss.rows(classes), features)
    x = rng.normal(size=(m, features))
    x *= scale * bound / np.maximum(1e-300, np.linalg.norm(x, axis=1, keepdims=True))
    y = rng.integers(0, classes, m) if classes else rng.normal(size=m)
    direction = rng.normal(size=shape)
    c = center * direction / np.linalg.norm(direction)
    slots = m if slots is None else slots
    promise = accuracy(loss, norm_bound=bound, regularization=alpha, shape=shape, records=slots, center_norm=norm(c))
    return {
        "loss": loss, "x": x, "y": y, "records": slots, "regularization": alpha, "center": c, "norm_bound": bound,
        "promise": promise,
    }  # fmt: skip


def solved(x, **p):
    return solvers.exact(x=PreparedRows.as_they_are(x), **p)


def gradient(p, w, dtype=np.longdouble):
    """∇J in 64-bit mantissas, written down a second time."""
    x, w, c = (np.asarray(a, dtype=dtype) for a in (p["x"], w, p["center"]))
    scores = x @ w.T
    if p["loss"].name == "squared":
        slopes = scores - np.clip(p["y"].astype(dtype), -1, 1)[:, None]
    elif p["loss"].name == "huber_hinge":
        signs = hinge_signs(p)
        slopes = signs * np.clip((signs * scores - dtype(1.5)) / dtype(1), -1, 0)
    elif p["loss"].name == "logistic":
        signs = (2 * p["y"] - 1).astype(dtype)
        slopes = (-signs * (1 - np.tanh(signs * scores[:, 0] / 2)) / 2)[:, None]
    else:
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        slopes = powers / powers.sum(axis=1, keepdims=True)
        slopes[np.arange(len(x)), p["y"]] -= 1
    slopes = slopes * np.asarray(p.get("shares", np.ones(len(x))), dtype=dtype)[:, None]
    return slopes.T @ x / p["records"] + dtype(p["regularization"]) * (w - c)


def hinge_signs(p):
    rows = p["center"].shape[0]
    return np.where(p["y"][:, None] == (np.ones(1) if rows == 1 else np.arange(rows)), 1.0, -1.0)


def value(p, w):
    scores = p["x"] @ w.T
    if p["loss"].name == "squared":
        total = 0.5 * np.sum((scores[:, 0] - np.clip(p["y"], -1, 1)) ** 2)
    elif p["loss"].name == "huber_hinge":
        z = hinge_signs(p) * scores
        total = np.where(z > 1.5, 0, np.where(z < 0.5, 1 - z, (1.5 - z) ** 2 / 2)).sum()
    elif p["loss"].name == "logistic":
        total = np.logaddexp(0, -(2 * p["y"] - 1) * scores[:, 0]).sum()
    else:
        total = (special.logsumexp(scores, axis=1) - scores[np.arange(len(scores)), p["y"]]).sum()
    return total / p["records"] + p["regularization"] / 2 * np.sum((w - p["center"]) ** 2)


def length(values):
    return float(np.sqrt(np.sum(np.square(values))))


HARD = {
    "plain": {},
    "half erased": {"slots": 240},
    "one left": {"m": 1, "slots": 10_000},
    "weak pull": {"alpha": 1e-4},
    "far centre": {"center": 1e6},
    "far centre, weak pull": {"center": 1e4, "alpha": 1e-3},
    "strong pull": {"alpha": 1e4},
    "tiny rows": {"scale": 1e-9},
    "big bound": {"bound": 1e3, "alpha": 10.0},
    "several chunks": {"m": 2000},
}


@pytest.mark.parametrize(("name", "classes"), CASES)
@pytest.mark.parametrize("setting", HARD, ids=str)
def test_the_exact_gradient_is_below_the_tolerance(name, classes, setting):
    p = problem(name, classes, **HARD[setting])
    assert length(gradient(p, solved(**p))) <= p["promise"].tolerance


@pytest.mark.parametrize(("name", "classes"), CASES)
@pytest.mark.parametrize("setting", ["plain", "far centre, weak pull", "several chunks"])
def test_so_it_is_where_records_share_what_their_unit_contributes(name, classes, setting):
    """Parts from 1 to a ten-thousandth: n is far below the number of records."""
    p = problem(name, classes, **HARD[setting])
    p["shares"] = 10 ** -np.random.default_rng(1).uniform(0, 4, len(p["y"]))
    p["records"] = slots = math.ceil(p["shares"].sum())
    p["promise"] = accuracy(
        p["loss"], norm_bound=1.0, regularization=p["regularization"], shape=p["center"].shape, records=slots,
        center_norm=norm(p["center"]),
    )  # fmt: skip
    assert length(gradient(p, solved(**p))) <= p["promise"].tolerance


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_separable_records_are_no_exception(name, classes):
    p = problem(name, classes, alpha=1e-5)
    p["x"] = np.eye(5)[p["y"].astype(int) % 5]
    assert length(gradient(p, solved(**p))) <= p["promise"].tolerance


@pytest.mark.more
@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.sampled_from(CASES), st.integers(1, 60), st.integers(1, 8), st.floats(-4, 2), st.floats(-2, 4), st.integers(0, 9)
)
def test_it_holds_for_any_problem(case, m, features, log_alpha, log_center, seed):
    p = problem(*case, m=m, features=features, alpha=10**log_alpha, center=10**log_center, seed=seed)
    assert length(gradient(p, solved(**p))) <= p["promise"].tolerance


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_it_is_the_minimiser_that_scipy_finds(name, classes):
    p = problem(name, classes, m=60, center=3.0)
    shape = p["center"].shape
    minimum = optimize.minimize(
        lambda w: value(p, w.reshape(shape)),
        np.zeros(math.prod(shape)),
        jac=lambda w: gradient(p, w.reshape(shape), np.float64).ravel(),
        method="BFGS",
        options={"gtol": 1e-12},
    ).x.reshape(shape)
    apart = (p["promise"].tolerance + length(gradient(p, minimum))) / p["regularization"]
    assert length(solved(**p) - minimum) <= apart < 1e-4


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_with_every_record_erased_it_is_the_centre_itself(name, classes):
    p = problem(name, classes, m=0, slots=50, center=2.0)
    assert np.array_equal(solved(**p), p["center"])


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_erased_records_are_not_there_but_their_slots_are(name, classes):
    """Leaving rows out is the same as rows of zeros: they pull nowhere, and n stays."""
    p = problem(name, classes, slots=200)
    padded = {**p, "x": np.vstack((p["x"], np.zeros((80, 5)))), "y": np.concatenate((p["y"], np.zeros(80, dtype=int)))}
    apart = 2 * p["promise"].tolerance / p["regularization"]
    assert length(solved(**p) - solved(**padded)) <= apart


@pytest.mark.parametrize(("name", "classes"), CASES)
@pytest.mark.parametrize("setting", ["plain", "far centre", "several chunks", "one left"])
def test_descent_arrives_when_newton_gives_up(name, classes, setting, monkeypatch):
    monkeypatch.setattr(solvers, "minimize", lambda *_: None)
    p = problem(name, classes, **HARD[setting])
    assert length(gradient(p, solved(**p))) <= p["promise"].tolerance


@pytest.mark.parametrize(("name", "classes"), CASES)
@pytest.mark.parametrize("setting", HARD, ids=str)
def test_the_error_of_a_computed_gradient_is_below_its_bound(name, classes, setting):
    """Everywhere in the ball; against 64-bit mantissas, whose own error is 2^-11 of it."""
    p = problem(name, classes, **HARD[setting])
    rng = np.random.default_rng(1)
    computing = Objective(
        p["loss"], PreparedRows.as_they_are(p["x"]), p["y"], p["records"], p["regularization"], p["center"]
    )
    for part in (0.0, 0.01, 0.5, 1.0):
        offset = rng.normal(size=p["center"].shape)
        w = p["center"] + part * p["promise"].radius * offset / length(offset)
        assert length(computing.evaluate(w)[1] - gradient(p, w)) <= p["promise"].error


def test_a_gradient_that_is_not_small_enough_is_never_certified():
    p = problem()
    computing = Objective(
        p["loss"], PreparedRows.as_they_are(p["x"]), p["y"], p["records"], p["regularization"], p["center"]
    )
    w = solved(**p)
    at = w - p["center"], computing.evaluate(w)[1]
    assert p["promise"].certifies(*at)
    assert not replace(p["promise"], tolerance=p["promise"].error).certifies(*at)
    assert not replace(p["promise"], radius=0.0).certifies(*at)


@pytest.mark.parametrize("steps", [1, 12])
def test_a_point_that_nothing_certifies_is_no_result(monkeypatch, steps):
    """Noise is for certified fits alone, wherever a search ends."""
    monkeypatch.setattr(newton, "_STEPS", steps)
    p = problem(alpha=1.0)
    computing = Objective(
        p["loss"], PreparedRows.as_they_are(p["x"]), p["y"], p["records"], p["regularization"], p["center"]
    )
    nothing = replace(p["promise"], radius=-1.0)
    assert newton.minimize(computing, nothing.tolerance, nothing.certifies) is None
    with pytest.raises(Inaccurate, match="arithmetic"):
        solvers._certified(computing, 1.0, nothing)


def promised(**change):
    given = {"norm_bound": 1.0, "regularization": 0.1, "shape": (10, 785), "records": 8192, "center_norm": 0.0}
    return accuracy(LOSSES["softmax"], **(given | change))


def test_the_tolerance_is_a_public_fraction_of_what_one_record_can_do():
    assert promised().tolerance == SLACK * LOSSES["softmax"].lipschitz(1.0, 10) / 8192
    assert promised().error <= promised().tolerance / 5


def test_where_doubles_end_the_tolerance_grows_instead():
    long = promised(records=2**40)
    assert long.tolerance == 5 * long.error > SLACK * LOSSES["softmax"].lipschitz(1.0, 10) / 2**40


def test_what_cannot_be_certified_at_all_is_refused_from_public_numbers_alone():
    with pytest.raises(Inaccurate, match="double precision cannot certify"):
        promised(center_norm=1e14)


def test_the_minimiser_lies_in_the_ball():
    for setting in HARD.values():
        p = problem(**setting)
        assert length(solved(**p) - p["center"]) <= p["promise"].radius


def test_more_records_than_slots_are_refused():
    with pytest.raises(ValueError, match="more records than slots"):
        solved(**problem(slots=119))


def test_records_alike_of_which_single_precision_makes_a_singular_matrix_do_not_end_a_fit():
    """As many rows of 300·2^-20 each as a preconditioner is made of: beside that single precision loses an α of 1e-12.

    One other record may give the matrix an inverse. So a fit must not show whether there is one.
    """
    x, y, center = np.full((1024, 300), 2.0**-5), np.arange(1024) % 4 == 0, np.zeros((1, 300))
    alike = Objective(LOSSES["logistic"], PreparedRows.as_they_are(x), y.astype(float), 1024, 1e-12, center)
    alike.evaluate(center)
    assert newton.Preconditioner(alike)(np.ones((1, 300))).tolist() == np.ones((1, 300)).tolist()
    assert newton.minimize(alike, 1e-7, lambda _offset, slope: norm(slope) <= 1e-7) is not None


@pytest.mark.parametrize("size", [0.0, -1.0])
def test_a_preconditioner_that_is_not_positive_definite_does_not_end_a_fit(size, monkeypatch):
    """Single precision makes it so of records of a few kinds, with one record among them, and without it not."""
    p = problem("softmax", 3, features=3, alpha=1e-3)
    p["x"][:, -1] = 0.0
    aside = np.zeros((3, 3))
    aside[:, -1] = 1.0  # where the residual is 0 for ever

    def turned(inverse, residual):
        return residual if inverse._inverse is None else size * residual + aside

    monkeypatch.setattr(newton.Preconditioner, "__call__", turned)
    assert length(gradient(p, solved(**p))) <= p["promise"].tolerance


def test_a_preconditioner_that_misleads_is_dropped(monkeypatch):
    """Few of the 256 records in it may be curved, and in other classes: then it is worse than none."""
    products = 0
    curve = Objective.curve

    def counted(problem, direction):
        nonlocal products
        products += 1
        return curve(problem, direction)

    def misled(inverse, residual):
        spread = np.geomspace(1.0, 1e9, residual.size).reshape(residual.shape)
        return residual if inverse._inverse is None else residual * spread

    monkeypatch.setattr(Objective, "curve", counted)
    monkeypatch.setattr(newton.Preconditioner, "__call__", misled)
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((1100, 300))
    rows /= 1.001 * np.linalg.norm(rows, axis=1, keepdims=True)
    solvers.exact(
        LOSSES["softmax"],
        x=PreparedRows.as_they_are(rows),
        y=rng.integers(0, 3, 1100),
        records=1100,
        regularization=1e-3,
        center=(center := np.zeros((3, 300))),
        norm_bound=1.0,
        promise=solvers.accuracy(
            LOSSES["softmax"], norm_bound=1.0, regularization=1e-3, shape=center.shape, records=1100, center_norm=0.0
        ),
    )
    assert products < 2 * newton.MAX_PRODUCTS


@pytest.mark.parametrize("features", [20, 300])
@pytest.mark.parametrize("alpha", [0.1, 0.001])
def test_a_fit_finer_than_single_precision_takes_few_passes_in_double(alpha, features, monkeypatch):
    passes = {True: 0, False: 0}
    evaluate = Objective.evaluate

    def counted(self, weights, *, roughly=False):
        passes[roughly] += 1
        return evaluate(self, weights, roughly=roughly)

    monkeypatch.setattr(Objective, "evaluate", counted)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3000, features))
    x /= 1.01 * np.linalg.norm(x, axis=1, keepdims=True)
    shape, n = (3, features), 10**6
    promise = accuracy(LOSSES["softmax"], norm_bound=1.0, regularization=alpha, shape=shape, records=n, center_norm=0.0)
    solvers.exact(
        LOSSES["softmax"],
        x=PreparedRows.as_they_are(x.astype(np.float32)),
        y=x[:, :3].argmax(axis=1),
        records=n,
        regularization=alpha,
        center=np.zeros(shape),
        norm_bound=1.0,
        promise=promise,
    )
    assert passes[False] <= 3
    assert passes[True] <= 8


def test_a_chunk_of_a_gradient_takes_no_more_additions_than_its_bound_counts():
    for features in (1, 33, 784, 16_384, 10**6):
        for dtype in (np.float32, np.float64):
            rows = chunk_rows(features, dtype)
            assert rows % PIECE == 0
            assert PIECE - 1 + rows // PIECE - 1 <= ROWS
