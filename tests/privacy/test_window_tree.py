"""A window tree has the nodes of paper-audit.md 2, draws each once, and declassifies no step too early.

Which nodes there have to be is written down here from that page, by their definition; so are the matrices of what is
released, of which sums and of which noises.
"""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from service.privacy.currency import Currency
from service.privacy.noise import additive as noise
from service.privacy.noise import running_sums
from service.privacy.noise.additive import Gaussian, SphericalLaplace, Unaffordable
from service.privacy.noise.window_tree import Windowed, WindowTree, calibrate
from tests import chance
from tests.mechanisms.steps import seeded

LARGEST = 50.0
EXPIRIES = ["leaf", "block"]
WINDOWS = [*range(1, 33), 33, 47, 48, 49, 63, 64]


def block(window):
    """B, the least power of two that is no less than W."""
    return next(2**e for e in range(7) if 2**e >= window)


def clean(t, window, expiry):
    """Count the clean leaves at 0-based step t: leaf i is clean from i + W on; a block once all of its leaves are."""
    leaves = {i for i in range(t + 1) if i + window <= t}
    if expiry == "leaf":
        return len(leaves)
    size = block(window)
    return size * sum(leaves.issuperset(range(first, first + size)) for first in range(0, t + 1, size))


def nodes(t, window, expiry):
    """All aligned nodes of at most B leaves that lie in what is not clean, less those whose parents do."""
    low = clean(t, window, expiry)
    within = {
        (start, start + size)
        for size in (2**e for e in range(7))
        if size <= block(window)
        for start in range(-(-low // size) * size, t + 2 - size, size)
    }
    return {
        (a, b)
        for a, b in within
        if (a // (2 * (b - a)) * 2 * (b - a), -(-b // (2 * (b - a))) * 2 * (b - a)) not in within
    }


def steps(tree):
    """As many as it takes until all comes again twice."""
    return 2 * block(tree.window) + 2 * tree.window + 2


@pytest.fixture(params=[(window, expiry) for window in (1, 3, 4, 7, 8) for expiry in EXPIRIES], ids=str)
def tree(request):
    window, expiry = request.param
    return WindowTree(window=window, expiry=expiry)


def by(tree, scale=3.0, dimension=4, law=Gaussian, largest=LARGEST):
    return Windowed(factor=tree, noise=law(scale=scale, dimension=dimension), largest=largest)


def run(mechanism, values, between=lambda memory: memory):
    """Return what is released, as the estimates S_t themselves."""
    released, memory = [], ()
    for step, each in enumerate(values):
        difference, memory = mechanism.release(each, between(memory), step)
        released.append(difference)
    return np.cumsum(released, axis=0)


def factors(tree, count, used=None):
    """Return releases as matrices: of the values, and of the nodes' noises, one column for each in the order of use.

    And the first step of each column's node, and the one after its last. `used`: by each step; as defined if not given.
    """
    used = used or (lambda t: nodes(t, tree.window, tree.expiry))
    order, of_values = {}, np.tril(np.ones((count, count)))
    rows = []
    for t in range(count):
        here = sorted(used(t))
        rows.append([order.setdefault(node, len(order)) for node in here])
    of_noise = np.zeros((count, len(order)))
    for t, columns in enumerate(rows):
        of_noise[t, columns] = 1.0
    return of_values, of_noise, list(order)


def test_a_window_of_4_leaf_by_leaf_is_that_of_mechanisms_md():
    """There steps count from 1, and closed ranges are written."""
    printed = {
        1: (0, ["v1"]),
        2: (0, ["s12"]),
        3: (0, ["s12", "v3"]),
        4: (0, ["s14"]),
        5: (1, ["v2", "s34", "v5"]),
        6: (2, ["s34", "s56"]),
        7: (3, ["v4", "s56", "v7"]),
        8: (4, ["s58"]),
    }
    tree = WindowTree(window=4, expiry="leaf")
    for t, (gone, used) in printed.items():
        assert tree.declassified(t - 1) == gone
        named = [f"v{b}" if b - a == 1 else f"s{a + 1}{b}" for a, b in tree.cover(t - 1)]
        assert named == used


def test_a_window_of_4_by_blocks_keeps_the_root_until_all_its_leaves_have_expired():
    tree = WindowTree(window=4, expiry="block")
    assert [tree.declassified(t) for t in range(13)] == [0] * 7 + [4] * 4 + [8] * 2
    assert [tree.cover(t) for t in range(9)] == [
        ((0, 1),),
        ((0, 2),),
        ((0, 2), (2, 3)),
        ((0, 4),),
        ((0, 4), (4, 5)),
        ((0, 4), (4, 6)),
        ((0, 4), (4, 6), (6, 7)),
        ((4, 8),),
        ((4, 8), (8, 9)),
    ]


@pytest.mark.more
@pytest.mark.parametrize("expiry", EXPIRIES)
def test_a_window_of_any_size_has_those_nodes_and_a_record_in_few_of_them(expiry):
    for window in WINDOWS:
        tree = WindowTree(window=window, expiry=expiry)
        least = int(np.floor(np.log2(window))) + 1 if expiry == "leaf" else int(np.ceil(np.log2(window))) + 1
        assert tree.levels == least
        used = {}
        for t in range(steps(tree)):
            here = tree.cover(t)
            assert tree.declassified(t) == clean(t, window, expiry)
            assert set(here) == nodes(t, window, expiry)
            covered = [tree.declassified(t), *(b for _, b in here)]
            assert list(here) == list(pairwise(covered))
            assert covered[-1] == t + 1
            assert covered[0] <= max(0, t + 1 - window), "a step is in the clear before it has left the window"
            for node in here:
                used.setdefault(node, []).append(t)
        for node, times in used.items():
            assert times == list(range(times[0], times[-1] + 1)), f"{node} comes again"
        held = np.zeros(steps(tree))
        for a, b in used:
            held[a:b] += 1
        assert held.max() == tree.levels


@pytest.mark.parametrize("expiry", EXPIRIES)
def test_no_combination_of_releases_is_free_of_noise(expiry):
    """Full row rank: neither one that holds a record in the window, nor any other."""
    for window in (1, 2, 3, 5, 6, 8, 11, 16, 21, 32, 33, 48, 63, 64):
        tree = WindowTree(window=window, expiry=expiry)
        _, of_noise, order = factors(tree, steps(tree))
        first = np.argmax(of_noise != 0, axis=0)
        assert set(first) == set(range(steps(tree))), "a release has no noise of its own"
        assert np.linalg.eigvalsh(of_noise @ of_noise.T)[0] > 1e-3
        assert len(set(order)) == of_noise.shape[1]


def exact_loss(tree, i, until):
    """The ρ of releases 0 … until together, of step i's record, for noise of variance 1 and a sensitivity of 1."""
    of_values, of_noise, _ = factors(tree, until + 1, tree.cover)
    shift = of_values[:, i]
    return shift @ np.linalg.solve(of_noise @ of_noise.T, shift) / 2


@pytest.mark.parametrize("expiry", EXPIRIES)
def test_until_it_is_declassified_a_record_loses_what_it_is_charged_and_some_do_lose_it(expiry):
    for window in (1, 2, 3, 4, 6, 8, 13):
        tree = WindowTree(window=window, expiry=expiry)
        losses = []
        for i in range(2 * block(window)):
            last = next(t for t in range(steps(tree) + window) if clean(t + 1, window, expiry) > i)
            losses.append(exact_loss(tree, i, last))
        assert max(losses) <= tree.levels / 2 * (1 + 1e-9)
        assert losses[0] == pytest.approx(tree.levels / 2)


def test_after_that_it_loses_more_with_every_step_and_without_bound():
    """The figures of paper-audit.md 2 for a window of 4, of a step in the middle of a block."""
    printed = [0.88, 1.04, 1.92, 4.54, 8.92, 17.7]
    tree = WindowTree(window=4, expiry="leaf")
    losses = [[exact_loss(tree, i, i + after) for after in (3, 4, 8, 20, 40, 80)] for i in range(4, 8)]
    assert any(each == pytest.approx(printed, rel=6e-3) for each in losses)
    assert all(late > 10 * tree.levels / 2 for *_, late in losses)


def test_what_is_released_is_the_sums_and_the_nodes_of_one_noise_each(tree, monkeypatch):
    mechanism, count = by(tree), steps(tree)
    of_values, of_noise, order = factors(tree, count)
    drawn = np.random.default_rng(1).normal(size=(len(order), 4)) * 3
    draws = iter(np.rint(drawn / mechanism.noise.grid).astype(np.int64))
    monkeypatch.setattr(Gaussian, "sample", lambda _: next(draws))
    values = np.random.default_rng(2).normal(size=(count, 4))
    # Of one step's new nodes the left ones are drawn first, as `factors` orders them.
    np.testing.assert_allclose(run(mechanism, values), of_values @ values + of_noise @ drawn, rtol=0, atol=1e-11)
    assert next(draws, None) is None


@pytest.mark.more
@pytest.mark.parametrize("largest", [1.0, 50.0, 2.0**40])
def test_one_record_moves_the_nodes_that_hold_it_by_what_is_charged_and_no_others(tree, largest, monkeypatch):
    """For whatever was released before, here the same for both neighbours; in doubles, values beyond all clipping."""
    mechanism, count = by(tree, largest=largest), steps(tree)
    _, _, order = factors(tree, count)
    rng = np.random.default_rng(3)
    values = rng.normal(size=(count, 4)) * largest
    shift = rng.normal(size=4)
    shift *= 0.3 / np.linalg.norm(shift)
    allowed = 0.3 + tree.grid(largest) * 2
    for i in range(0, count, 3):
        seen = []
        for moved in (values, values + shift * (np.arange(count) == i)[:, None]):
            centres = []

            def add(centre, _law, centres=centres):
                centres.append(centre)
                return centre

            monkeypatch.setattr(noise, "add", add)
            run(mechanism, moved)
            seen.append(np.array(centres))
        distances = np.linalg.norm(seen[0] - seen[1], axis=1)
        holds = np.array([a <= i < b for a, b in order])
        assert np.all(distances[~holds] == 0)
        assert np.all(distances[holds] <= allowed)
        assert holds.sum() <= tree.levels


def test_sums_are_exact_whatever_their_order():
    """Add up fractions; each value was rounded once."""
    tree = WindowTree(window=64, expiry="leaf")
    rng = np.random.default_rng(4)
    values = rng.normal(size=(64, 3)) * np.exp(rng.normal(size=(64, 3)) * 6)
    largest = float(np.abs(values).max())
    grid = tree.grid(largest)
    sums = by(tree, largest=largest, dimension=3)
    memory, seen = (), []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(noise, "add", lambda centre, _: seen.append(centre) or centre)
        for step, each in enumerate(values):
            _, memory = sums.release(each, memory, step)
    whole = [sum(round(Fraction(each) / Fraction(grid)) for each in column) for column in values.T]
    assert [Fraction(each) for each in seen[-1]] == [Fraction(grid) * each for each in whole]


@pytest.mark.parametrize("currency", Currency)
@pytest.mark.parametrize("dimension", [1, 18_000])
def test_the_least_noise_for_a_charge_costs_that_much_by_the_formulas(tree, currency, dimension):
    settings = {"sensitivity": 0.5, "largest": LARGEST, "charge": 0.02, "dimension": dimension}
    mechanism = running_sums.calibrate(currency, factor=tree, **settings)
    paid = mechanism.charge(0.5)
    assert 0.02 * (1 - 1e-9) < paid <= 0.02
    scale = mechanism.noise.scale
    if currency is Currency.PURE:
        assert tree.levels * 0.5 / scale == pytest.approx(0.02, rel=1e-4)
        assert isinstance(mechanism.noise, SphericalLaplace)
    else:
        assert tree.levels * 0.25 / (2 * scale**2) == pytest.approx(0.02, rel=1e-6)
    assert mechanism.charge(0.6) > 0.02


def test_rounding_is_charged_and_never_more_than_the_records():
    tree = WindowTree(window=5, expiry="leaf")
    alone = by(tree, dimension=1).charge(1.0)
    exact = Fraction(3 * 1**2, 2 * 9)
    moved = 1 + Fraction(tree.grid(LARGEST)) + Fraction(Gaussian(scale=3.0, dimension=1).grid)
    assert exact < Fraction(alone)
    assert exact * moved**2 <= Fraction(alone) <= exact * moved**2 * (1 + Fraction(1, 2**50))
    assert tree.grid(LARGEST) >= 2.0**-52 * 8 * LARGEST
    assert alone < by(tree, dimension=2**24).charge(1.0)
    assert alone < by(tree, dimension=1, largest=2.0**40).charge(1.0)
    assert alone < by(WindowTree(window=2**30, expiry="leaf"), dimension=1).charge(1.0) / 10
    with pytest.raises(Unaffordable, match="window is too long"):
        calibrate(
            Currency.ZCDP,
            tree=WindowTree(window=2**40, expiry="block"),
            sensitivity=1.0,
            largest=2.0**20,
            charge=1.0,
            dimension=1,
        )


@pytest.mark.parametrize(
    ("law", "expiry", "follows"),
    [(Gaussian, "leaf", chance.assert_gaussian), (SphericalLaplace, "block", chance.assert_spherical_laplace)],
)
def test_nodes_that_are_released_alone_have_the_stated_noise(law, expiry, follows):
    """All values are zero. S_t is one node's noise at t = 0, 1, 3, 7 before anything has expired."""
    mechanism = by(WindowTree(window=8, expiry=expiry), dimension=30, law=law)
    draws = [run(mechanism, np.zeros((8, 30)))[[0, 1, 3, 7]] for _ in range(8)]
    follows(np.concatenate(draws), scale=3.0)


def test_a_restart_at_any_step_goes_on_exactly_as_if_there_had_been_none(tree, monkeypatch):
    """Memory goes to bytes and back; with the same randomness the same nodes have the same noise, bit by bit."""
    values = np.random.default_rng(6).normal(size=(steps(tree), 4))

    def stored(memory):
        return tuple(np.frombuffer(each.tobytes()) for each in memory)

    seeded(monkeypatch)
    whole = run(by(tree), values)
    seeded(monkeypatch)
    assert np.array_equal(whole, run(by(tree), values, between=stored))


def test_what_is_remembered_is_as_small_as_stated_and_new_things_come_last(tree):
    h = tree.levels - 1
    most = tree.window + 2 * h + 2 if tree.expiry == "leaf" else 2 * h + 3
    mechanism, memory = by(tree), ()
    reached = 0
    for step in range(steps(tree)):
        assert len(memory) == tree.remembers(step) <= most
        reached = max(reached, len(memory))
        with pytest.raises(ValueError, match="belongs to another step"):
            mechanism.release(np.zeros(4), (*memory, np.zeros(4)), step)
        before = memory
        _, memory = mechanism.release(np.zeros(4), memory, step)
        if step:
            remaining = [each for each in tree.remembered(step) if each in tree.remembered(step + 1)]
            assert list(tree.remembered(step + 1)[: len(remaining)]) == remaining
            places = {id(each): place for place, each in enumerate(before[:-1])}
            assert [places[id(each)] for each in memory[: len(remaining)]] == [
                tree.remembered(step).index(each) for each in remaining
            ]
    assert reached >= most - 3


def test_a_description_tells_all_of_a_tree(tree):
    assert running_sums.of(tree.described()) == tree


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0, "expiry": "leaf"},
        {"window": 2**41, "expiry": "leaf"},
        {"window": True, "expiry": "leaf"},
        {"window": 4.0, "expiry": "leaf"},
        {"window": 4, "expiry": "never"},
    ],
)
def test_what_describes_no_tree_is_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        running_sums.of({"kind": "window_tree"} | wrong)
