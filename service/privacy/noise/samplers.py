"""Samplers of whole numbers whose law is exactly the stated one, and of the gamma law to very many digits.

 - `discrete_gaussian(σ²)`: P(z) ∝ exp(-z²/(2σ²)) on the integers, for any rational σ²; many at a time.
 - `discrete_laplace(s)`: P(z) ∝ exp(-|z|/s) on the integers, for any rational s.
 - `gamma(k)`: Gamma(k/2). No finite number of bits is exact; how far it can be off is stated there.

After Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), Algorithms 1 to 3:
rejection from a discrete Laplace law, with every coin decided exactly. Where this differs, for speed: the coins of
one candidate are joined into a single exponent, and decided by real uniforms instead of runs of rational coins.

Why it is exact. A real uniform R in [0, 1) is a stream of bits, read as far as a decision needs them. The one kind of
decision there is, R < exp(-x) for a rational x ≥ 0, is a comparison of rationals once exp(-x) is enclosed by two of
them (`below_exp`); while the bits at hand do not settle it, more are read, and some number of them does, with
probability 1. The fast path decides the same for thousands of candidates at once, in doubles, from the first 64 bits,
and leaves to the slow path whatever is nearer than MARGIN, which is far more than doubles are off by. So both paths
are the same function of the same bits, and which of them ran changes nothing.

This rests on numpy's exp and log being right to 2^-40 relatively (they are to a few units of 2^-52), on decimal's exp
being correctly rounded, as documented, and on the operating system's generator being as good as true randomness. It
is asked at every call: nothing to seed, nothing that a fork could copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from math import exp, floor, isqrt, log
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from service.privacy.randomness import random_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

MARGIN = 2.0**-30  # a decision in doubles nearer than this is left to exact arithmetic
_LEAST_WORD = np.uint64(2**40)  # below it, 64 bits determine the logarithm of a uniform too coarsely
_CHUNK = 2**15  # candidates at a time: their arrays stay in the processor's cache
_PLAIN = 600  # exp(-x) is a normal double for x below this
_EXTENSION = 64  # bits that an undecided uniform is extended by
_GAMMA_BITS = 384


def _bits(count: int) -> int:
    """Return a uniform integer of that many bits, a multiple of 8."""
    return int.from_bytes(random_bytes(count // 8))


def _context(digits: int, rounding: str) -> Context:
    return Context(prec=digits, rounding=rounding, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _quotient(value: Fraction, context: Context) -> Decimal:
    return context.divide(Decimal(value.numerator), Decimal(value.denominator))


def below_exp(numerator: int, bits: int, x: Fraction, factor: Fraction = Fraction(1)) -> bool | None:
    """Return whether factor·R < exp(-x) for a real R in [numerator, numerator + 1)·2^-bits; None if both can be.

    x ≥ 0, factor > 0. decimal's exp is correctly rounded, so its neighbours enclose it; the exponent is rounded both
    ways.
    """
    if x == 0 and factor <= 1:
        return True
    least, most = enclosed_exp(x, bits // 3 + 12)  # far narrower than 2^-bits
    if factor * Fraction(numerator + 1, 2**bits) <= least:
        return True
    if factor * Fraction(numerator, 2**bits) >= most:
        return False
    return None


def enclosed_exp(x: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Return rationals below and above exp(-x), x > 0, which agree in about so many digits."""
    digits += len(str(int(x)))
    down, up = _context(digits, ROUND_FLOOR), _context(digits, ROUND_CEILING)
    most = up.next_plus(up.exp(_quotient(x, down).copy_negate()))
    least = down.next_minus(down.exp(_quotient(x, up).copy_negate()))
    return Fraction(least), Fraction(most)


def log_above(x: Fraction, digits: int) -> Fraction:
    """Return a rational above ln x, x > 0, that agrees with it in about so many digits."""
    up = _context(digits, ROUND_CEILING)
    return Fraction(up.next_plus(up.ln(_quotient(x, up))))


def fair_coin() -> bool:
    """Return True or False, each with probability 1/2."""
    return bool(_bits(8) & 1)


@dataclass
class Uniform:
    """A real in [0, 1), known to `bits` bits: it lies in [numerator, numerator + 1)·2^-bits. Reads more when needed."""

    numerator: int
    bits: int

    @staticmethod
    def fresh() -> Uniform:
        """Return a fresh uniform of which only the first bits are drawn."""
        return Uniform(_bits(_EXTENSION), _EXTENSION)

    def _extend(self) -> None:
        self.numerator = self.numerator << _EXTENSION | _bits(_EXTENSION)
        self.bits += _EXTENSION

    def below_exp(self, x: Fraction, factor: Fraction = Fraction(1)) -> bool:
        """Return whether factor times this uniform is < exp(-x), x ≥ 0; draw more bits until that is decided.

        In doubles where they leave no doubt: they are within 2^-50 of it, and what is not known of it within 2^-64.
        """
        if factor == 1 and x < _PLAIN and abs(above := self.numerator * 2.0**-self.bits - exp(-x)) > MARGIN:
            return above < 0
        while (settled := below_exp(self.numerator, self.bits, x, factor)) is None:
            self._extend()
        return settled

    def geometric(self, rate: Fraction, near: float) -> int:
        """Return the largest k with it < exp(-rate·k): P(k ≥ m) = exp(-rate·m) for a uniform. rate > 0.

        near: the rate as a double.
        """
        if (at_sight := self._at_sight(near)) is not None:
            return at_sight
        while True:
            if k := self._guess(rate):
                if below_exp(self.numerator, self.bits, k * rate) and (
                    below_exp(self.numerator, self.bits, (k + 1) * rate) is False
                ):
                    return k
            elif below_exp(self.numerator, self.bits, rate) is False:
                return 0
            self._extend()

    def _at_sight(self, rate: float) -> int | None:
        """Return the k of `geometric` computed in doubles if the bits drawn so far decide it, else None.

        With a numerator of at least 2^40, what is not known of the real changes its logarithm by less than 2/numerator;
        double precision, here and in `rate`, by less than 2^-48 of it and 2^-48. So k is right unless a whole number is
        that near; then, and where rates are so small that one always is, exact arithmetic decides.
        """
        if self.bits != _EXTENSION or self.numerator < _LEAST_WORD or rate < 2.0**-100:
            return None
        exponent = -log(self.numerator * 2.0**-_EXTENSION)
        scaled = exponent / rate
        doubt = (exponent * 2.0**-48 + 2.0**-48 + 2.0 / self.numerator) / rate
        least, most = floor(scaled - doubt), floor(scaled + doubt)
        return least if least == most and least >= 0 else None

    def _guess(self, rate: Fraction) -> int:
        context = _context(self.bits // 3 + 32, ROUND_FLOOR)
        middle = Fraction(2 * self.numerator + 1, 2 ** (self.bits + 1))
        return int(Fraction(context.ln(_quotient(middle, context)).copy_negate()) / rate)


def uniform_below(end: int) -> int:
    """Return a uniform whole number, 0 ≤ k < end.

    >>> 0 <= uniform_below(6) < 6
    True
    """
    bits = end.bit_length()
    while (drawn := _bits(-(-bits // 8) * 8) >> (-bits % 8)) >= end:
        pass
    return drawn


def discrete_laplace(scale: Fraction) -> int:
    """Return one z with P(z) ∝ exp(-|z|/scale) on the integers, exactly. scale > 0."""
    return discrete_laplaces(scale, 1)[0]


def discrete_laplaces(scale: Fraction, count: int) -> list[int]:
    """Return `count` independent z with P(z) ∝ exp(-|z|/scale) on the integers, exactly. scale > 0.

    |z| ≥ m with probability exp(-m/scale), and a fair sign; zero has two signs, of which one is drawn again.
    """
    if scale <= 0:
        raise ValueError("a scale is positive")
    rate = 1 / scale
    near = float(rate)
    drawn: list[int] = []
    while (left := count - len(drawn)) > 0:
        words, signs = (memoryview(random_bytes(left * size)) for size in (_EXTENSION // 8, 1))
        for word, sign in zip(words.cast("Q"), signs, strict=True):
            size, negative = Uniform(word, _EXTENSION).geometric(rate, near), sign & 1
            if size or not negative:
                drawn.append(-size if negative else size)
    return drawn


class Candidates(NamedTuple):
    """Candidates of a rejection sampler: their values, and masks of those accepted and those still undecided."""

    values: NDArray[np.int64]
    accepted: NDArray[np.bool_]
    unsettled: NDArray[np.bool_]


class Envelope:
    """Rejection of the discrete Gaussian of a variance σ² > 0 from blocks of t integers with geometric weights.

    V has P(V = v) ∝ exp(-av), U is uniform on 0…t-1, y = U + tV, and y is accepted with probability exp(-x), where
    x = y²/(2σ²) - aV + 1/2; then P(y) ∝ exp(-aV)·exp(-x) ∝ exp(-y²/(2σ²)), y ≥ 0. It is a probability: a ≤ t/σ, so
    y ≥ aσV and x ≥ (aV - 1)²/2 ≥ 0. A fair sign is added, and zero refused with one of its signs. t is a power of two
    near σ/16, so that U is some bits of a word; a is rational. About .73 of the candidates are accepted (.76 at most).

    Each candidate is a function of three words: U and the sign, and the first 64 bits of the two uniforms that
    decide on V and on acceptance.
    """

    def __init__(self, variance: Fraction) -> None:
        if not 0 < variance < 2**116:
            raise ValueError("a variance is positive, and such that its law fits into 64 bits")
        self.variance = variance
        self._shift = max(0, isqrt(int(variance)).bit_length() - 5)
        self.width = 1 << self._shift
        # 1/a, rounded up to a multiple of 2^-8: at least σ/t
        self._rate = Fraction(256, isqrt(int(2**16 * variance / self.width**2)) + 1)
        self._float_rate, self._float_half = float(self._rate), float(1 / (2 * variance))

    def settle(self, words: NDArray[np.uint64]) -> Candidates:
        """Return the candidates made of words (3, n), computed in doubles; undecided ones are marked. Draws nothing.

        With words of at least `_LEAST_WORD` for V: -ln R ≤ 17, so aV ≤ 17, y ≤ 18σ + t, x ≤ 2^8 and what is computed
        is within 2^-40 of x; the logarithm of the word is within 2^-39 of the real's, and 1/a < 34 (smaller for
        small σ). So a V nearer than MARGIN to the next integer, or a uniform nearer than MARGIN to exp(-x), is
        unsettled, and everything else is right.
        """
        place, block, accept = words
        scaled = np.log(np.maximum(block, _LEAST_WORD).astype(np.float64) * 2.0**-64) / -self._float_rate
        nearest = np.rint(scaled)
        unsettled = (block <= _LEAST_WORD) | (np.abs(scaled - nearest) < MARGIN)
        v = np.floor(scaled)
        sizes = (place & np.uint64(self.width - 1)).astype(np.int64) + (v.astype(np.int64) << self._shift)
        real = sizes.astype(np.float64)
        threshold = np.exp(self._float_rate * v - 0.5 - real * real * self._float_half)
        above = accept.astype(np.float64) * 2.0**-64 - threshold
        unsettled |= np.abs(above) < MARGIN
        negative = place >> np.uint64(63) == 1
        accepted = (above < 0) & ~unsettled & ((sizes != 0) | ~negative)
        return Candidates(np.where(negative, -sizes, sizes), accepted, unsettled)

    def settle_exactly(self, words: NDArray[np.uint64]) -> int | None:
        """Return the value of one candidate, of shape (3,), if it is accepted, else None. Reads more where needed."""
        place, block, accept = (int(word) for word in words)
        v = Uniform(block, 64).geometric(self._rate, self._float_rate)
        size = (place & (self.width - 1)) + (v << self._shift)
        negative = place >> 63 == 1
        x = size**2 / (2 * self.variance) - v * self._rate + Fraction(1, 2)
        if not Uniform(accept, 64).below_exp(x) or (size == 0 and negative):
            return None
        return -size if negative else size


@lru_cache(maxsize=64)
def _envelope(variance: Fraction) -> Envelope:
    """Return the envelope for a variance, cached: most noise is drawn with few variances."""
    return Envelope(variance)


def discrete_gaussian(variance: Fraction, count: int) -> NDArray[np.int64]:
    """Return `count` independent z with P(z) ∝ exp(-z²/(2·variance)) on the integers, int64 of shape (count,).

    0 < variance < 2^116. Exact (see the module), but for a z beyond 64 bits, which raises OverflowError: at least 32
    standard deviations, probability below 2^-700 (below 2^-10^5 at a variance of 2^104, the largest that noise uses).
    """
    envelope = _envelope(variance)
    drawn = np.empty(count, dtype=np.int64)
    filled = 0
    while (left := count - filled) > 0:
        size = min(_CHUNK, left + left // 2 + 16)
        words = np.frombuffer(random_bytes(24 * size), dtype=np.uint64).reshape(3, size)
        values, accepted, unsettled = envelope.settle(words)
        for index in np.flatnonzero(unsettled):
            value = envelope.settle_exactly(words[:, index])
            if value is not None:
                values[index], accepted[index] = value, True
        accepted_values = values[accepted][:left]
        drawn[filled : filled + len(accepted_values)] = accepted_values
        filled += len(accepted_values)
    return drawn


_LOGARITHMS = _context(100, ROUND_FLOOR)  # times 2^33, the size of the largest, still below 2^-290
_LN_2 = Fraction(_LOGARITHMS.ln(Decimal(2)))


def gamma(halves: int) -> Fraction:
    """Return a draw of Gamma(shape halves/2, scale 1), 2 ≤ halves ≤ 2^25, to a relative error of 2^-130.

    In other words: there is a real number of exactly that law such that the two differ by less, if it is at least
    2^-70, but for a probability of halves·2^-127.

    Gamma(1) is -ln R of a uniform R; Gamma(1/2) is Gamma(1) times Beta(1/2, 1/2), which is the share x²/(x² + y²) of
    a uniform point of the disc; independent gammas add up to that of the summed shape. Here the middle of an interval
    of length 2^-384 stands for a real uniform. But for a probability of 2^-128 each, a uniform (or an x) is at least
    2^-128, and so off by less than 2^-256 relatively. The logarithm of the product, cut to 384 bits after each of at
    most 2^24 factors, is then off by less than 2^-230, and a share by 2^-253 relatively: against a sum of at least
    2^-70 all that is less than 2^-130. Where the disc's edge crosses it, the middle may be in and the real out, or
    the other way round, which has a probability below 2^-380.
    """
    total = -_log_product(halves // 2)
    if halves % 2:
        while True:
            x, y = 2 * _bits(_GAMMA_BITS) + 1, 2 * _bits(_GAMMA_BITS) + 1
            if (length := x * x + y * y) <= 4 ** (_GAMMA_BITS + 1):
                break
        total += -_log_product(1) * Fraction(x * x, length)
    return total


def _log_product(count: int) -> Fraction:
    """Return the logarithm of the product of that many uniforms in (0, 1)."""
    product, exponent = 1, 0
    size = _GAMMA_BITS // 8
    bytes_ = random_bytes(size * count)
    for start in range(0, len(bytes_), size):
        product *= 2 * int.from_bytes(bytes_[start : start + size]) + 1
        exponent -= _GAMMA_BITS + 1
        if (excess := product.bit_length() - _GAMMA_BITS) > 0:
            product >>= excess
            exponent += excess
    return Fraction(_LOGARITHMS.ln(Decimal(product))) + exponent * _LN_2
