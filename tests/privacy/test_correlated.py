"""Every factor keeps one contract: what is added is C⁻¹ of fresh noise, and a record moves C·v by what it is charged.

Matrices are written down here from the definitions of paper-audit.md 8.1 and 2, not taken from the service.
"""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from service.privacy.currency import Currency
from service.privacy.noise import additive as noise
from service.privacy.noise import correlated, running_sums
from service.privacy.noise.additive import Gaussian, SphericalLaplace, Unaffordable
from service.privacy.noise.correlated import Blt, Correlated, Toeplitz, Tree, calibrate
from service.privacy.noise.running_sums import Doubling, Repeated
from tests import chance
from tests.mechanisms.steps import seeded

STEPS = 16
DECAYS, SCALES = (0.99, 0.7), (0.1, 0.3)
CASES = {
    "toeplitz": Toeplitz(bands=STEPS, decay=1.0),
    "decayed toeplitz": Toeplitz(bands=5, decay=0.8),
    "blt": Blt(decays=DECAYS, scales=SCALES, steps=STEPS),
    "tree": Tree(steps=STEPS),
}
LARGEST = 50.0


def root(n):
    """Coefficients of (1 - x)^(-1/2)."""
    coefficients = [1.0]
    for l in range(1, n):
        coefficients.append(coefficients[-1] * (2 * l - 1) / (2 * l))
    return np.array(coefficients)


def lower(column):
    n = len(column)
    return np.array([[column[t - i] if t >= i else 0.0 for i in range(n)] for t in range(n)])


def node(t):
    """Return the first step of the maximal aligned node that ends with step t."""
    size = 1
    while (t + 1) % (2 * size) == 0:
        size *= 2
    return t + 1 - size


MATRICES = {
    "toeplitz": lower(root(STEPS)),
    "decayed toeplitz": lower(np.where(np.arange(STEPS) < 5, root(STEPS) * 0.8 ** np.arange(STEPS), 0.0)),
    "blt": lower([1.0] + [sum(a * x ** (l - 1) for x, a in zip(DECAYS, SCALES, strict=True)) for l in range(1, STEPS)]),
    "tree": np.array([[1.0 if node(t) <= i <= t else 0.0 for i in range(STEPS)] for t in range(STEPS)]),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param], MATRICES[request.param]


def run(mechanism, values, memory=(), first=0):
    released = []
    for step, each in enumerate(values, first):
        estimate, memory = mechanism.release(each, memory, step)
        released.append(estimate)
    return np.array(released), memory


def by(factor, scale=3.0, dimension=4, law=Gaussian):
    return Correlated(factor=factor, noise=law(scale=scale, dimension=dimension), largest=LARGEST)


def test_what_is_released_is_the_values_and_the_inverse_factor_of_fresh_noise(case, monkeypatch):
    factor, matrix = case
    mechanism = by(factor)
    drawn = np.random.default_rng(1).normal(size=(STEPS, 4)) * 3
    draws = iter(np.rint(drawn / mechanism.noise.grid).astype(np.int64))
    monkeypatch.setattr(Gaussian, "sample", lambda _: next(draws))
    values = np.random.default_rng(2).normal(size=(STEPS, 4))
    released, _ = run(mechanism, values)
    np.testing.assert_allclose(released, values + np.linalg.solve(matrix, drawn), rtol=0, atol=1e-12)


@pytest.mark.parametrize("wild", [False, True])
def test_one_record_moves_what_noise_is_added_to_by_its_column_and_no_more(case, wild, monkeypatch):
    """For whatever was released before, here the same for both neighbours; in doubles, and as charged."""
    factor, matrix = case
    mechanism = by(factor, scale=1e-3 if wild else 3.0)
    transcript = np.random.default_rng(3).normal(size=(STEPS, 4)) * [1, 1e-4, 1e-2, 0]  # wild: beyond all clipping
    values = np.random.default_rng(4).normal(size=(STEPS, 4)) * 10
    sensitivity = 0.3
    slack = float(correlated._moved(mechanism, Fraction(0)))  # of all steps together
    assert slack < 1e-9
    shift = np.random.default_rng(5).normal(size=4)
    shift *= sensitivity / np.linalg.norm(shift)
    for i in range(STEPS):
        seen = []
        for moved in (values, values + shift * (np.arange(STEPS) == i)[:, None]):
            centres = []
            replies = iter(transcript)

            def add(centre, _law, centres=centres, replies=replies):
                centres.append(centre)
                return next(replies)

            monkeypatch.setattr(noise, "add", add)
            run(mechanism, moved)
            seen.append(np.array(centres))
        distances = np.linalg.norm(seen[0] - seen[1], axis=1)
        assert np.all(distances <= matrix[:, i] * sensitivity + slack)
        if not wild:
            np.testing.assert_allclose(distances, matrix[:, i] * sensitivity, rtol=0, atol=slack)


def test_columns_bound_the_factors_and_are_tight(case):
    factor, matrix = case
    column = factor.column
    if isinstance(factor, Blt):  # it is that of a run without end
        long = [1.0] + [sum(a * x ** (l - 1) for x, a in zip(DECAYS, SCALES, strict=True)) for l in range(1, 5000)]
        square, total = float(np.square(long).sum()), float(np.sum(long))
    else:
        square, total = float((matrix**2).sum(axis=0).max()), float(matrix.sum(axis=0).max())
    assert square * (1 - 1e-14) <= float(column.square) <= square * (1 + 1e-9)
    assert total * (1 - 1e-14) <= float(column.total) <= total * (1 + 1e-9)
    assert (matrix != 0).sum(axis=0).max() <= column.length


@pytest.mark.parametrize("currency", Currency)
@pytest.mark.parametrize("dimension", [1, 18_000])
def test_the_least_noise_for_a_charge_costs_that_much_by_the_formulas(case, currency, dimension):
    factor, _ = case
    mechanism = calibrate(currency, factor=factor, sensitivity=0.5, largest=LARGEST, charge=0.02, dimension=dimension)
    paid = mechanism.charge(0.5)
    assert 0.02 * (1 - 1e-9) < paid <= 0.02
    scale = mechanism.noise.scale
    if currency is Currency.PURE:
        assert float(factor.column.total) * 0.5 / scale == pytest.approx(0.02, rel=1e-4)
        assert isinstance(mechanism.noise, SphericalLaplace)
    else:
        assert float(factor.column.square) * 0.25 / (2 * scale**2) == pytest.approx(0.02, rel=1e-6)
    assert mechanism.charge(0.6) > 0.02


def test_rounding_is_charged_and_never_more_than_the_records():
    factor = Toeplitz(bands=5, decay=0.8)
    alone = by(factor, dimension=1).charge(1.0)
    assert alone < by(factor, dimension=2**24).charge(1.0)
    wide = Correlated(factor=factor, noise=Gaussian(scale=3.0, dimension=1), largest=2.0**60)
    assert alone < wide.charge(1.0)
    with pytest.raises(Unaffordable):
        calibrate(Currency.ZCDP, factor=factor, sensitivity=1e-30, largest=1e30, charge=1.0, dimension=1)


def test_a_trees_rounding_is_of_all_its_levels():
    assert Tree(steps=1024).column.rounding == 2 * (11 + 2) ** 3


def test_the_factor_of_what_is_released_is_white_noise_of_the_stated_scale(case):
    factor, matrix = case
    released, _ = run(by(factor, dimension=40), np.zeros((STEPS, 40)))
    chance.assert_gaussian(matrix @ released, scale=3.0)


def test_the_nodes_of_a_tree_can_have_spherical_laplace_noise():
    mechanism = by(Tree(steps=STEPS), dimension=30, law=SphericalLaplace)
    released = [run(mechanism, np.zeros((STEPS, 30)))[0] for _ in range(2)]
    chance.assert_spherical_laplace(np.concatenate([MATRICES["tree"] @ each for each in released]), scale=3.0)


def test_a_restart_at_any_step_goes_on_exactly_as_if_there_had_been_none(case, monkeypatch):
    """Memory goes to bytes and back; with the same randomness everything is the same, bit by bit."""
    factor, _ = case
    mechanism = by(factor)
    values = np.random.default_rng(6).normal(size=(STEPS, 4))

    seeded(monkeypatch)
    whole, _ = run(mechanism, values)
    seeded(monkeypatch)
    memory, released = (), []
    for step, each in enumerate(values):
        stored = [vector.tobytes() for vector in memory]
        estimate, memory = mechanism.release(each, tuple(np.frombuffer(one) for one in stored), step)
        released.append(estimate)
    assert np.array_equal(whole, np.array(released))


def test_what_is_remembered_is_as_small_as_stated_and_nothing_once_a_run_is_over(case):
    factor, _ = case
    most = {"toeplitz": getattr(factor, "bands", 0) - 1, "blt": len(DECAYS), "tree": 4}[factor.kind]
    mechanism, memory = by(factor), ()
    for step in range(STEPS):
        assert len(memory) == factor.remembers(step) <= most
        assert all(each.shape == (4,) for each in memory)
        with pytest.raises(ValueError, match="belongs to another step"):
            mechanism.release(np.zeros(4), (*memory, np.zeros(4)), step)
        _, memory = mechanism.release(np.zeros(4), memory, step)
    assert (memory == ()) is (factor.steps is not None)


@pytest.mark.parametrize("window", [2**e for e in range(7)])
def test_a_tree_has_as_many_nodes_per_record_as_it_says_and_full_rank(window):
    """Prefixes are sums of nodes; no combination of releases is free of noise (paper-audit.md 2)."""
    matrix = np.array([[1.0 if node(t) <= i <= t else 0.0 for i in range(window)] for t in range(window)])
    assert matrix.sum(axis=0).max() == Tree(steps=window).levels == window.bit_length()
    cover = np.zeros((window, window))  # release t is a sum of the nodes that end at these steps
    for t in range(window):
        end = t
        while end >= 0:
            cover[t, end] = 1.0
            end = node(end) - 1
    assert np.array_equal(cover @ matrix, np.tril(np.ones((window, window))))
    assert np.linalg.matrix_rank(cover) == window


def test_runs_follow_each_other_so_that_every_step_is_in_one():
    fours = Repeated(factor=Tree(steps=4))
    assert [fours.at(step)[1] for step in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert Repeated(factor=Toeplitz.for_ever(0.9)).at(10**9)[1] == 10**9
    doubling = [Doubling().at(step) for step in range(15)]
    assert [factor.steps for factor, _ in doubling] == [1, 2, 2, 4, 4, 4, 4] + [8] * 8
    for (before, last), (after, first) in pairwise(doubling):
        assert (after, first) == (before, last + 1) if last + 1 < before.steps else first == 0


def response(factor, n):
    """Return what one step's noise does to the running sums from there on: coefficients of A·C⁻¹."""
    if isinstance(factor, Toeplitz):
        inverse = np.array([1.0, *np.cumprod((np.arange(1.0, n) - 1.5) / np.arange(1.0, n))])
        return np.cumsum(inverse * factor.decay ** np.arange(n))
    # s ← (diag(decays) - 1·scalesᵀ)·s + z, and C⁻¹z = z - scalesᵀ·s
    eigen, vectors = np.linalg.eig(np.diag(factor.decays) - np.outer(np.ones(len(factor.decays)), factor.scales))
    weights = (np.array(factor.scales) @ vectors) * np.linalg.solve(vectors, np.ones(len(eigen)))
    return np.cumsum(np.array([1.0, *-(eigen[None] ** np.arange(n - 1.0)[:, None] @ weights)]))


def error_times_sensitivity(factor, n):
    """(max, RMS) over n steps of the noise in running sums, times the norm of the column over those steps."""
    variance = np.cumsum(response(factor, n) ** 2)
    if isinstance(factor, Toeplitz):
        column = factor.coefficients
    else:
        column = np.array([1.0, *(np.array(factor.decays)[None] ** np.arange(n - 1.0)[:, None] @ factor.scales)])
    assert (column[:n] ** 2).sum() <= float(factor.column.square)
    return np.sqrt(np.array([variance[-1], variance.mean()]) * (column[:n] ** 2).sum())


TABLE = {  # paper-audit.md 8.1
    2**10: ((10.49, 7.42), (3.27, 3.11), (3.28, 3.11), correlated._SHORT),
    2**16: ((16.49, 11.66), (4.60, 4.43), (4.62, 4.45), correlated._LONG),
    2**20: (
        (20.49, 14.49),
        (5.48, 5.32),
        (5.50, 5.34),
        (
            (0.99999882, 0.99996896, 0.99940946, 0.98888578, 0.80925981),
            (0.00154103, 0.00522455, 0.02261606, 0.09709266, 0.32916752),
        ),
    ),
}


@pytest.mark.parametrize("n", [2**10, 2**16, pytest.param(2**20, marks=pytest.mark.long)])
def test_error_times_sensitivity_is_that_of_the_table(n):
    tree, toeplitz, blt, (decays, scales) = TABLE[n]
    nodes = np.array([t.bit_count() for t in range(1, n + 1)])
    levels = Tree(steps=n).levels
    assert [np.sqrt(levels * nodes.max()), np.sqrt(levels * nodes.mean())] == pytest.approx(tree, abs=0.006)
    best = error_times_sensitivity(Toeplitz(bands=n, decay=1.0), n)
    assert best == pytest.approx(toeplitz, abs=0.006)
    near = error_times_sensitivity(Blt(decays=decays, scales=scales, steps=n), n)
    assert near == pytest.approx(blt, abs=0.006)
    assert (near <= 1.01 * best).all()


@pytest.mark.parametrize("decay", [0.9, 0.97, 0.99, 0.996])
def test_a_few_decays_and_a_cut_are_as_good_as_the_decayed_root(decay):
    """For decayed sums, whose error stays bounded, on a stream without end (paper-audit.md 8.1)."""
    n = 20_000
    whole = Toeplitz(bands=n, decay=decay)
    powers = decay ** np.arange(n)
    best = np.sqrt(float(whole.column.square)) * np.linalg.norm(root(n) * powers)
    blt, cut = Blt.decaying(decay), Toeplitz.for_ever(decay)
    for factor in (blt, cut):
        column = cut.coefficients if factor is cut else error_free_column(blt, n)
        decayed = np.fft.irfft(  # 1/((1 - decay·x)·C(x))
            1 / (np.fft.rfft(column, 2 * n) * np.fft.rfft([1.0, -decay], 2 * n)), 2 * n
        )[:n]
        error = np.sqrt(float(factor.column.square)) * np.linalg.norm(decayed)
        assert error <= 1.01 * best
    assert float(Toeplitz.for_ever(0.97).column.square) == pytest.approx(1.8004, abs=1e-3)


def error_free_column(blt, n):
    return np.array([1.0, *(np.array(blt.decays)[None] ** np.arange(n - 1.0)[:, None] @ np.array(blt.scales))])


@pytest.mark.parametrize("factor", CASES.values(), ids=CASES)
def test_a_description_tells_all_of_a_factor(factor):
    assert running_sums.of(factor.described()) == factor


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "none"},
        {"kind": "tree", "steps": 3},
        {"kind": "tree", "steps": True},
        {"kind": "toeplitz", "bands": 4, "decay": 1.5},
        {"kind": "toeplitz", "bands": 0, "decay": 0.5},
        {"kind": "toeplitz", "bands": 2**40, "decay": 0.5},
        {"kind": "blt", "decays": [1.0], "scales": [0.5], "steps": 4},
        {"kind": "blt", "decays": [0.5, 0.4], "scales": [0.5], "steps": 4},
        {"kind": "blt", "decays": [0.5], "scales": [-0.5], "steps": 4},
        {"kind": "blt", "decays": [float("nan")], "scales": [0.5], "steps": 4},
    ],
)
def test_what_describes_no_factor_is_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        running_sums.of(wrong)


def test_a_blt_of_one_decay_is_one():
    assert Blt(decays=(0.5,), scales=(0.25,), steps=3).steps == 3
