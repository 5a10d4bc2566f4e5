"""All assertions on random draws. Each fails by chance alone with probability at most `false_alarm`, and says so.

The bound follows from that rate by an exact law or a proven inequality. Comparisons in one assertion share the rate.
Only `assert_above` and `assert_below` rest on measurements: they are for what has no known law.
"""

from contextlib import AbstractContextManager
from math import exp, inf, log

import numpy as np
import pytest
from scipy import stats

from service.privacy.currency import Currency

FALSE_ALARM = 1e-6
LOOKS = 24
RARE = 1e-6
TOO_SMALL = 2 / 3  # noise a third too small: tests of noise have to notice it


class Unlikely(AssertionError):
    """The draws are rarer than the false-alarm rate if the stated law holds."""


def is_noticed() -> AbstractContextManager:
    """Expect an assertion of this module to fail, because of a planted error."""
    return pytest.raises(Unlikely)


def assert_count(seen: int, of: int, probability: float, *, false_alarm: float = FALSE_ALARM) -> None:
    """Assert that so many of so many independent draws may have come out, each with that probability."""
    law = stats.binom(of, probability)
    _assert_likely({f"{seen} of {of}": 2 * min(law.cdf(seen), law.sf(seen - 1))}, false_alarm)


def assert_no_more(seen: int, of: int, probability: float, *, false_alarm: float = FALSE_ALARM) -> None:
    """Assert the same of draws that come out with at most that probability, whatever was drawn before."""
    _assert_likely({f"{seen} of {of}": stats.binom.sf(seen - 1, of, probability)}, false_alarm)


def assert_frequencies(seen, probabilities, *, false_alarm: float = FALSE_ALARM) -> None:
    """Assert that cells with these probabilities were drawn so often: each one's binomial law, and their running sum.

    seen, probabilities: shape (cells,).
    """
    seen, probabilities = np.asarray(seen), np.asarray(probabilities, dtype=float)
    draws, law = seen.sum(), stats.binom(seen.sum(), probabilities)
    cells = 2 * len(seen) * np.minimum(law.cdf(seen), law.sf(seen - 1))
    apart = np.abs(np.cumsum(seen) / draws - np.cumsum(probabilities)).max()
    _assert_likely({"a frequency": cells.min(), "frequencies, summed up": _far_apart(apart, draws)}, false_alarm)


def assert_follows(sample, law, *, false_alarm: float = FALSE_ALARM) -> None:
    """Assert that independent draws follow a continuous law (one of scipy.stats)."""
    _assert_likely({"the empirical distribution": _shape(sample, law)}, false_alarm)


def assert_gaussian(residuals, *, scale: float = 1.0, false_alarm: float = FALSE_ALARM) -> None:
    """Assert that all numbers are independent N(0, scale²), and that noise a third too small would be noticed.

    residuals: shape (releases, numbers), two releases or more. Half of the rate is for either part.
    """
    rows = _rows(residuals, scale)
    _assert_enough(stats.chi2(rows.size), TOO_SMALL**2, len(_gaussian(rows)), false_alarm / 2)
    _assert_likely(_gaussian(rows), false_alarm / 2)
    with is_noticed():
        _assert_likely(_gaussian(rows * TOO_SMALL), false_alarm / 2)


def assert_spread(sample, low: float, high: float, *, false_alarm: float = FALSE_ALARM) -> None:
    """Assert that independent N(0, σ²) numbers may have a σ from low to high."""
    square, law = np.square(sample).sum(), stats.chi2(np.size(sample))
    chances = {"as small a spread": law.cdf(square / low**2), "as large a spread": law.sf(square / high**2)}
    _assert_likely(chances, false_alarm)


def longest_gaussian(dimension: int, *, scale: float, false_alarm: float = FALSE_ALARM) -> float:
    """Return the length that N(0, scale²) noise of so many numbers passes with that probability."""
    return float(stats.chi(dimension).isf(false_alarm)) * scale


def assert_spherical_laplace(residuals, *, scale: float = 1.0, false_alarm: float = FALSE_ALARM) -> None:
    """Assert that rows are independent, of density ∝ exp(-‖row‖₂/scale), and that a third too little would be noticed.

    residuals: shape (releases, numbers), two releases or more. Half of the rate is for either part.
    """
    rows = _rows(residuals, scale)
    _assert_enough(stats.gamma(rows.size), TOO_SMALL, len(_spherical_laplace(rows)), false_alarm / 2)
    _assert_likely(_spherical_laplace(rows), false_alarm / 2)
    with is_noticed():
        _assert_likely(_spherical_laplace(rows * TOO_SMALL), false_alarm / 2)


def least_loss(hits, false_hits, kind: Currency, *, false_alarm: float = FALSE_ALARM) -> float:
    """Return a lower confidence bound on what a record loses: an ε, or the ρ of the Gaussian that would show as much.

    hits, false_hits: whether an attacker says that the record is there, in runs with it and in runs without it. The
    bounds on both rates are Clopper and Pearson's; each is wrong with half of the rate.
    """
    least, most = _rates(hits, false_hits, false_alarm)
    if not least > 0 or not most < 1:
        return -inf
    if kind is Currency.PURE:
        return log(least / most)
    return max(0.0, stats.norm.ppf(least) - stats.norm.ppf(most)) ** 2 / 2


def least_loss_without_gaussians(hits, false_hits, kind: Currency, *, false_alarm: float = FALSE_ALARM) -> float:
    """Return the same where noise is not Gaussian: a ρ is at least the Rényi divergence of two coins, by its order."""
    p, q = _rates(hits, false_hits, false_alarm)
    if kind is Currency.PURE or not 0 < q < p < 1:
        return least_loss(hits, false_hits, kind, false_alarm=false_alarm)
    divergences = {a: log(p**a * q ** (1 - a) + (1 - p) ** a * (1 - q) ** (1 - a)) / (a - 1) for a in (1.1, 2, 4, 8)}
    return max(divergence / a for a, divergence in divergences.items())


def assert_loses_no_more(least: float, capacity: float, *, false_alarm: float = FALSE_ALARM) -> None:
    """Assert that a lower confidence bound, which is wrong with at most that rate, does not pass the promise."""
    if least > capacity:
        raise Unlikely(f"a record loses {least:.3g}, and {float(capacity):.3g} is promised{_stated(false_alarm)}")


def assert_tells_apart_no_better(
    hit, false_hit, runs: int, kind: Currency, capacity: float, *, bound=least_loss, false_alarm: float = FALSE_ALARM
) -> None:
    """Assert the same of an attacker who sees so many runs with the record and as many without it.

    hit, false_hit: make one run, with or without the record; they return whether the attacker says that it is there.
    bound: `least_loss` or `least_loss_without_gaussians`: neither falls with a hit more or a false hit less. So runs
    that are left are not made once they would pass even if either attacker hit in them as often as may be (`_at_most`):
    each look's verdict is that of all runs but for a probability below 2·RARE; then it is too lenient.
    """
    hits, misses = [], []
    for left in range(runs - 1, -1, -1):
        hits.append(bool(hit()))
        misses.append(not false_hit())
        if left % (runs // LOOKS or 1) == 0:
            best = [[*seen, *(np.arange(left) < _at_most(seen, left))] for seen in (hits, misses)]
            least = bound(best[0], np.logical_not(best[1]), kind, false_alarm=false_alarm)
            if least <= capacity:
                return
    assert_loses_no_more(least, capacity, false_alarm=false_alarm)


def _at_most(seen: list[bool], more: int) -> int:
    """Return how often so many more runs hit at most, after those that were seen, but for a probability below RARE.

    By the beta-binomial law; that it is rare whatever the rate, `test_chance` adds up.
    """
    if all(seen):
        return more
    chances = stats.betabinom.pmf(np.arange(more, -1, -1), more, sum(seen) + 1, len(seen) - sum(seen))
    return more - int(np.searchsorted(np.cumsum(chances), RARE, "right"))


def assert_above(
    value: float, limit: float, *, mean: float, spread: float, runs: int, false_alarm: float = FALSE_ALARM
) -> None:
    """Assert that a value of unknown law is above a limit that lies far enough below what it was in many runs.

    mean, spread: measured, in so many runs; spread is a standard deviation. Far enough is k spreads with
    exp(1 - k) ≤ false_alarm: no law with a log-concave density goes as far more often (Lovász and Vempala, "The
    geometry of logconcave functions", 2007, Lemma 5.17). We assume that the law is one of these.
    """
    _assert_margin((mean - limit) / spread, false_alarm)
    if not value > limit:
        measured = f"in {runs} runs it was {mean:.3g} ± {spread:.2g}"
        raise Unlikely(f"{value:.4g} is not above {limit:.4g}; {measured}{_stated(false_alarm)}")


def assert_below(
    value: float, limit: float, *, mean: float, spread: float, runs: int, false_alarm: float = FALSE_ALARM
) -> None:
    """Assert the same of a limit that lies above."""
    assert_above(-value, -limit, mean=-mean, spread=spread, runs=runs, false_alarm=false_alarm)


def _stated(false_alarm: float) -> str:
    return f" (chance alone fails this with probability at most {false_alarm:.2g})"


def _assert_likely(chances: dict[str, float], false_alarm: float) -> None:
    """chances: of each comparison, the probability of a result as far from the stated law or farther."""
    for what, chance in chances.items():
        if not chance > false_alarm / len(chances):
            raise Unlikely(f"{what}: of probability {chance:.1e} under the stated law{_stated(false_alarm)}")


def _assert_margin(spreads: float, false_alarm: float) -> None:
    if exp(1 - spreads) > false_alarm:
        raise ValueError(f"{spreads:.1f} spreads are too narrow a margin for a false-alarm rate of {false_alarm:.2g}")


def _assert_enough(size, factor: float, comparisons: int, false_alarm: float) -> None:
    """Assert that noise whose size is `factor` of the right one is taken for right with at most that probability."""
    least = size.ppf(false_alarm / comparisons / 2)
    if size.sf(least / factor) > false_alarm:
        raise ValueError("the sample is too small to notice noise that is a third too small")


def _rows(residuals, scale: float):
    rows = np.asarray(residuals, dtype=float) / scale
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError("residuals must have the shape (releases, numbers), with two releases or more")
    return rows


def _gaussian(rows) -> dict[str, float]:
    """Return the chances of the sizes of all, of sums and of differences of neighbouring releases; and of the shape."""
    even = len(rows) // 2 * 2
    pairs = {"sums": rows[:even:2] + rows[1:even:2], "differences": rows[:even:2] - rows[1:even:2]}
    chances = {name: _size((pair**2).sum() / 2, stats.chi2(pair.size)) for name, pair in pairs.items()}
    return chances | {"size": _size((rows**2).sum(), stats.chi2(rows.size)), "shape": _shape(rows, stats.norm)}


def _spherical_laplace(rows) -> dict[str, float]:
    """Return the chances of the size and shape of lengths; and of directions, along one axis and between releases."""
    lengths, dimension = np.linalg.norm(rows, axis=1), rows.shape[1]
    chances = {"size": _size(lengths.sum(), stats.gamma(rows.size)), "shape": _shape(lengths, stats.gamma(dimension))}
    if dimension == 1:
        positive, even = int((rows > 0).sum()), len(rows) // 2 * 2
        alike = int((rows[:even:2] * rows[1:even:2] > 0).sum())
        sides = {"signs": (positive, len(rows)), "signs of neighbours": (alike, even // 2)}
        laws = {name: (seen, stats.binom(of, 0.5)) for name, (seen, of) in sides.items()}
        return chances | {name: 2 * min(law.cdf(seen), law.sf(seen - 1)) for name, (seen, law) in laws.items()}
    units, cosine = rows / lengths[:, None], stats.beta(0.5, (dimension - 1) / 2)  # the law of a squared cosine
    neighbours = (units[:-1] * units[1:]).sum(axis=1)  # independent: each direction is uniform, given all before it
    return chances | {
        "directions": _shape(units[:, 0] ** 2, cosine),
        "directions of neighbours": _shape(neighbours**2, cosine),
    }


def _size(total: float, law) -> float:
    return 2 * min(law.cdf(total), law.sf(total))


def _shape(sample, law) -> float:
    levels = law.cdf(np.sort(np.ravel(sample)))
    steps = np.arange(len(levels) + 1) / len(levels)
    return _far_apart(max((steps[1:] - levels).max(), (levels - steps[:-1]).max()), len(levels))


def _far_apart(distance: float, draws: int) -> float:
    """Return the bound by Dvoretzky, Kiefer, Wolfowitz and Massart, which holds for all laws and numbers of draws."""
    return 2 * exp(-2 * draws * distance**2)


def _rates(hits, false_hits, false_alarm: float) -> tuple[float, float]:
    """Return the least rate of hits and the largest of false hits."""
    least = stats.beta.ppf(false_alarm / 2, sum(hits), len(hits) - sum(hits) + 1) if any(hits) else 0.0
    most = stats.beta.ppf(1 - false_alarm / 2, sum(false_hits) + 1, len(false_hits) - sum(false_hits))
    return least, most
