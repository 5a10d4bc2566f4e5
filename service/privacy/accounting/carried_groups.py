"""The joint cost of one unit's records where noise is carried on: T(p) of `groups`, from the factor's columns.

Statement. Let a step of `correlated` be charged ρ for one record: (‖c‖₂·Δ + √L·r)² = 2σ²·ρ. A unit with contributions
k_b to the batches b, p in all, costs at most (‖Σ_b k_b·c^(b)‖₂·Δ + p·√L·r)²/(2σ²), c^(b) being the factor's column
shifted to batch b. `carried` returns T(p), at least the largest quotient of both, for p = 1, …, m. Every batch is a
step of the noise, also one in which no slot counts: else batches would be nearer there than their slots are.

Why the sum. With all else fixed, the noises that are remembered differ by what the unit's contributions were, so a step
is moved by what each of them alone would move it, at most (C·k)_t·Δ, and by the rounding errors of at most p of them,
each at most r in L steps (`correlated`, by a chain of p neighbours). Minkowski's inequality.

`Toeplitz`, `Blt`. R(τ) = Σ_t c_t·c_(t+τ), so that ‖Σ_b k_b·c^(b)‖² ≤ Σ_(b,b') k_b·k_b'·R(|b - b'|): a run that ends
only cuts columns off, and batches of two runs have nothing in common. For τ ≥ 1 R does not increase, since c_1, c_2, …
do not, and R(0) ≥ R(1) (Cauchy and Schwarz).
 - One contribution per batch, or s ≥ B: contributions j and l are in batches at least d(|j - l|) apart, where d(k) =
   max(k, ⌊k·s/B⌋) (`Batching.batches_apart`). So T(p) = p + 2·Σ_(k<p) (p - k)·R(d(k))/R(0). Exact, and attained, where
   s ≤ B or B divides s; else a bound. (⌈⌉ in the place of ⌊⌋ is a bug: B = 4, s = 6, m = 3 and `Blt.decaying(.97)`
   cost 6.26. ⌈⌉ says 5.94, this 6.46, and d(k) = k·⌊s/B⌋ 6.61.)
 - Else k_b ≤ c = ⌈B/s⌉. The form is convex in k, so it is largest where all k_b but one are 0 or c; and of those where
   they are neighbours, c, c, …, c, p mod c (Hardy, Littlewood, Pólya, "Inequalities", Theorem 371: R is symmetric and
   decreasing). A bound: slots s apart cannot fill all batches so.
 - T(p)/p is largest where all batches are full, at n·c or at m. With n full batches and r of a next one T(n·c + r) is
   n·c² + r² + 2/R(0)·(c²·P_n + c·r·S_n), S_n = Σ_(k≤n) R(d(k)) and P_n = Σ_(j<n) S_j: convex in r, so T(p)/p, which is
   it over a line, is largest at r = 0 or r = c. And T(n·c)/(n·c) = c + 2c/R(0)·P_n/n does not decrease in n, since
   S_j does not. So n = ⌊m/c⌋ and m are enough, and what a request makes the processor do is one sum of n terms.
 - Blt: R(τ) = Σ_k a_k·x_k^(τ-1) + Σ_(j,k) a_j·a_k·x_k^τ/(1 - x_j·x_k), a the scales, x the decays: c_0·c_τ, and the
   geometric series of c_t·c_(t+τ), t ≥ 1. Powers are computed in whole numbers of 2^-160, each from the one before,
   rounded up.
 - Toeplitz: the sum itself. Floating point is at most `bands` roundings off, relatively, and 2^-1000.

`Tree`, of 2^e steps, one after another. c^(b) has a 1 for each of its nodes that holds step b, so the cost is Σ N², N
being the contributions within a node, over h = e + 1. The nodes are the left children and the root. A node of 2^k steps
holds at most as many contributions as `Batching.contributions` says. Under these bounds alone the most is found level
by level: M_(k+1)(i + j) = i² + M_k(i) + M_k(j), M_0 = 0, and M_e(p) + p² of one tree; several trees share p. Attained
where s ≤ B with one contribution, and where s/B is a power of two; else a bound. For m > 4096 it is p².
Where M_k(i) + M_k(j) ≤ M_k(i + j), and nodes of 2^k steps hold m, i = p is the best, M_(k+1)(p) = p² + M_k(p), and the
same holds of M_(k+1): no further level needs a search, nor do several trees.

A window tree with expiry declassifies records, which ends the promise for their unit: refused.

Rounding. e = √L·r/(‖c‖₂·Δ) depends on the scale of the noise, and the scale on g. `settled` takes the least e = 2^-k
that the noise then keeps to; ((A + p·e)/(1 + e))² increases with e, as A = ‖Σ k_b·c^(b)‖/‖c‖ ≤ p. Over p it is
(√(T(p)/p) + √p·e)²/(1 + e)²: largest at a p after which no T(p)/p is as large, whatever e is.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from service.privacy.accounting.groups import Costs, group_factor
from service.privacy.noise.additive import SphericalLaplace, Unaffordable, root
from service.privacy.noise.correlated import Blt, Toeplitz, Tree
from service.privacy.noise.window_tree import WindowTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from service.privacy.accounting.groups import Batching
    from service.privacy.noise.correlated import Correlated
    from service.privacy.noise.running_sums import Factor

_BITS = 160
_LARGEST_TREE_RECORDS = 2**12  # above it, m² is used: the search takes m² steps
_ROUNDING_BITS = range(36, 2, -2)
_IMPOSSIBLE = -(2**60)


def carried(factor: Factor, batching: Batching, *, rounding: Fraction = Fraction(0)) -> Costs:
    """Return T of noise that later batches take back. rounding: e, at least the `rounding_share` of the noise."""
    match factor:
        case WindowTree():
            raise ValueError("a window tree with expiry declassifies records: it has no place on a stream with units")
        case Tree():
            exact = _tree(factor, batching)
        case _:
            exact = _toeplitz(factor, batching)
    return {slots: _with_rounding(cost, slots, rounding) for slots, cost in exact.items()}


def rounding_share(noise: Correlated, sensitivity: float) -> Fraction:
    """Return e of a noise and Δ = `sensitivity`, rounded up; of pure noise L·r/(‖c‖₂·Δ), which is more."""
    column, scale, charge = noise.factor.column, Fraction(noise.noise.scale), Fraction(noise.charge(sensitivity))
    moved, norm = root(column.square) * Fraction(sensitivity), column.total * Fraction(sensitivity)
    if isinstance(noise.noise, SphericalLaplace):
        return (scale * charge - norm) / moved
    return (root(2 * scale**2 * charge) - moved) / moved


def settled(factor: Factor, batching: Batching, share_at: Callable[[Fraction], Fraction]) -> Fraction:
    """Return g of carried noise with what rounding adds.

    share_at: from g to the `rounding_share` of the noise for a slot's share of 1/g. Unaffordable if rounding costs a
    sixteenth of what records do, or more.
    """
    for bits in _ROUNDING_BITS:
        rounding = Fraction(1, 2**bits)
        candidate = group_factor(carried(factor, batching, rounding=rounding))
        if share_at(candidate) <= rounding:
            return candidate
    raise Unaffordable("the charge of a slot is too small: rounding would cost a sixteenth of what the records do")


def _with_rounding(cost: Fraction, slots: int, rounding: Fraction) -> Fraction:
    return ((root(cost) + slots * rounding) / (1 + rounding)) ** 2 if rounding else cost


@lru_cache(maxsize=64)
def _toeplitz(factor: Toeplitz | Blt, batching: Batching) -> Costs:
    """Return T of full batches alone, and of these and the rest of m."""
    most, records, inverse = batching.contributions(), batching.bound.max_records, _up(1 / factor.column.square)
    full = records // most
    pairs, singles = (
        _sums_of_blt(factor, batching, full) if isinstance(factor, Blt) else _sums_of_toeplitz(factor, batching, full)
    )

    def cost(rest: int) -> Fraction:
        products = 2 * (most**2 * pairs + most * rest * singles)
        alone = (full * most**2 + rest**2) << _BITS
        return Fraction(alone - (-products * inverse >> _BITS), 2**_BITS)

    return {full * most: cost(0), records: cost(records % most)}


def _sums_of_toeplitz(factor: Toeplitz, batching: Batching, full: int) -> tuple[int, int]:
    """Return P_n and S_n of R in whole numbers of 2^-160, rounded up; n = `full`."""
    pairs = singles = 0
    for batches in range(1, full + 1):
        pairs += singles
        if (lag := batching.batches_apart(batches)) >= factor.bands:
            return pairs + (full - batches) * singles, singles
        product = float(factor.coefficients[:-lag] @ factor.coefficients[lag:])
        singles += _up(Fraction(product) * (1 + Fraction(factor.bands + 1, 2**51)) + Fraction(1, 2**1000))
    return pairs, singles


def _sums_of_blt(factor: Blt, batching: Batching, full: int) -> tuple[int, int]:
    """Return P_n and S_n as `_sums_of_toeplitz` does: for each decay x the sums of its powers times its weight."""
    pairs = singles = 0
    for weight, decay in _geometric(factor):
        sum_of_sums, sum_of_powers = _sums_of_powers(decay, batching, full)
        pairs -= -weight * sum_of_sums >> _BITS
        singles -= -weight * sum_of_powers >> _BITS
    return pairs, singles


def _sums_of_powers(decay: int, batching: Batching, full: int) -> tuple[int, int]:
    """Return Σ_(j<n) Σ_(k≤j) x^(d(k)-1) and Σ_(k≤n) x^(d(k)-1), rounded up; n = `full`, x and they times 2^160."""
    whole, part = divmod(max(batching.bound.min_separation, batching.batch), batching.batch)
    step, longer = _power(decay, whole), _power(decay, whole + 1)
    power, rest = _power(decay, batching.batches_apart(1) - 1), part
    sum_of_sums = sum_of_powers = 0
    for left in range(full, 0, -1):
        if power <= 1:  # no later power is smaller
            return sum_of_sums + left * sum_of_powers + left * (left - 1) // 2 * power, sum_of_powers + left * power
        sum_of_sums += sum_of_powers
        sum_of_powers += power
        rest += part
        if rest >= batching.batch:
            rest -= batching.batch
            power = -(-power * longer >> _BITS)
        else:
            power = -(-power * step >> _BITS)
    return sum_of_sums, sum_of_powers


@lru_cache(maxsize=64)
def _geometric(factor: Blt) -> tuple[tuple[int, int], ...]:
    """Return weights w and decays x, in whole numbers of 2^-160, for which R(τ) ≤ Σ w·x^(τ-1), τ ≥ 1."""
    pairs = [(Fraction(scale), Fraction(decay)) for scale, decay in zip(factor.scales, factor.decays, strict=True)]
    later = (sum((b / (1 - x * y) for b, y in pairs), start=Fraction(0)) for _, x in pairs)
    return tuple((_up(a * (1 + x * more)), _up(x)) for (a, x), more in zip(pairs, later, strict=True))


def _power(base: int, exponent: int) -> int:
    """Return base^exponent, 0 < base ≤ 1, both in whole numbers of 2^-160, rounded up."""
    square, power = base, 1 << _BITS
    while exponent:
        if exponent & 1:
            power = -(-power * square >> _BITS)
        square = -(-square * square >> _BITS)
        exponent >>= 1
    return power


def _up(value: Fraction) -> int:
    return -((-value.numerator << _BITS) // value.denominator)


@lru_cache(maxsize=64)
def _tree(factor: Tree, batching: Batching) -> Costs:
    records = batching.bound.max_records
    if records > _LARGEST_TREE_RECORDS:
        return {records: Fraction(records**2)}
    squares = np.arange(records + 1, dtype=np.int64) ** 2
    most = np.zeros(batching.contributions() + 1, dtype=np.int64)
    levels, superadditive = 1, False
    while levels < factor.levels and not superadditive:
        most = _shared_out(most + squares[: len(most)], most, batching.contributions(2**levels))
        superadditive = len(most) > records and bool((_shared_out(most, most, records) <= most).all())
        levels += 1
    most = _shared_out(most, np.zeros(1, dtype=np.int64), records) + (factor.levels - levels + 1) * squares
    for p in () if superadditive else range(2, records + 1):  # several trees
        most[p] = max(most[p], (most[1:p] + most[p - 1 : 0 : -1]).max())
    costs, largest = dict[int, Fraction](), Fraction(0)
    for p in range(records, 0, -1):
        cost = Fraction(int(most[p]), factor.levels)
        if cost / p > largest:
            costs[p], largest = cost, cost / p
    return costs


def _shared_out(left: NDArray[np.int64], right: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return max_(i+j=p) left[i] + right[j] for every p ≤ `most`; what there can't be is impossible."""
    largest = np.full(most + 1, _IMPOSSIBLE, dtype=np.int64)
    for i, cost in enumerate(left[: most + 1]):
        stop = min(most + 1, i + len(right))
        np.maximum(largest[i:stop], cost + right[: stop - i], out=largest[i:stop])
    return largest
