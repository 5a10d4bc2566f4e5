"""Sliding window: a chain of models over the last W blocks (paper A, Algorithm 5 and Example 1).

| here | paper A | meaning |
|---|---|---|
| block | w_0 | records per block |
| blocks | w/w_0 = W | blocks in the window; the paper has W = 2^k - 1 only |
| levels | k | ⌊log2(W + 1)⌋: bucket sizes 2^0 … 2^(k-2) and the big one |
| period | P = 2^(k-1) | blocks between two resets |
| extra | E = W - (2P - 1) | blocks the big bucket has beyond P; 0 in the paper |

Blocks are numbered from 0. At time (W + q)·w_0, q = 0, 1, …, the window is blocks q … q + W - 1; write q = s + r, s a
multiple of P, 0 ≤ r < P (paper-audit.md 1.4, which reproduces Example 1 step by step):
 - r = 0, a reset: the P + E latest blocks are fitted near the origin, then ever smaller buckets of 2^i blocks, the
   oldest smallest, each near the one before.
 - r > 0: let 2^j be the largest power of two that divides r. The chain is kept down to the levels above j. The latest
   2^j blocks become one bucket, and the oldest old blocks are split again into buckets of 2^(j-1) … 1, each near the
   one before.

So r alone says what is fitted, and nothing has to be walked from the beginning. The last model fitted is the window's.
Place 0 in the chain is level k-1 and place d is level k-1-d.

The cost of one block, by following it. A bucket of m blocks costs e_0/m (pure) or e_0/m² (ρ) at equal noise. The fits
at q depend on q mod P only, shifted by whole blocks, so a block that sees only full windows is charged as the
one P blocks later. A block of the first window sees only a part of what its like P, 2P, … blocks later see: it is
charged no more. So following blocks through q = 0 … W + P - 2, within which P consecutive blocks live their whole
lives, finds the worst block of the infinite stream.

Shares.
 - `equal`: the same noise in every bucket, also the big one of P + E blocks, and e_0 as large as the worst block
   allows. For W = 2^k - 1 a block is in one bucket of each size: 2(1 - 2^-k)·e_0 in pure ε, a noise scale of
   4(1 - 2^-k)·L/(αw_0·ε) where the paper has 6.
 - `paper`: noise of the constant 6 in every bucket but the big one, which is charged ε/3 whatever its size (line 4), as
   much as a bucket of one block. For W = 2^k - 1 that is ε·(1 - 2^(2-k)/3) in all, so Theorem 7 holds; where another W
   would come to more than ε, all is scaled down to it. In ρ, where the paper says nothing, the same rule with 3/7 for
   1/3: 3/7·(1 + 1 + 1/4 + 1/16 + …) = 1.

Before the first full window there is nothing, or with `warm_up` a model of all blocks so far after each of blocks
0 … W-2: Algorithm 4 with B = b_0 = w_0, at equal noise. The cost of this, by following each block of the first window,
0 … W-1, which are all that the warm-up reads: let w be what the window's fits charge it, at most 1, and c what the
warm-up's do. The window's fits that read any of these blocks are charged f of their shares, the warm-up's g = min over
these blocks of (1 - f·w)/c: so each of them is charged at most f·w + g·c ≤ 1, and one exactly 1. Later blocks are
charged no more than without a warm-up, and exactly the same when no window holds them together with a block of the
first. f is the sixteenth with the largest f·g: a noise scale is proportional to 1/share or its root, so the warm-up's
and the first window's are least in the geometric mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from service.privacy.accounting.charges_by_record import ChargesByRecord
from service.privacy.currency import Currency
from service.schedules.continual import Continual
from service.schedules.schedule import Fit, Lifetime, Part, Pattern

Rule = Literal["equal", "paper"]


@dataclass(frozen=True, kw_only=True)
class SlidingWindow:
    """Algorithm 5 for any number of blocks, in the currency `kind`.

    Fit the two newest of three blocks near nothing, then the oldest near that model; a block later only the newest:

    >>> schedule = SlidingWindow(currency=Currency.PURE, block=2, blocks=3)
    >>> [(fit.start, fit.end, str(fit.share)) for time in (6, 8) for fit in schedule.fits(time)]
    [(2, 6, '1/3'), (0, 2, '2/3'), (6, 8, '2/3')]
    """

    currency: Currency
    block: int
    blocks: int
    shares: Rule = "equal"
    warm_up: bool = False

    def __post_init__(self) -> None:
        if self.block < 1 or self.blocks < 1:
            raise ValueError("a sliding window needs block >= 1 and blocks >= 1")

    @property
    def unit(self) -> Fraction:
        """Return the share of a bucket of one block, e_0, that holds no block of the first window."""
        return _steady(self.currency, self.blocks, self.shares)[1]

    def next_time(self, after: int) -> int:
        """Return the next end of a block: of any with a warm-up, else of one that closes a full window."""
        return max(1 if self.warm_up else self.blocks, after // self.block + 1) * self.block

    def fits(self, time: int) -> tuple[Fit, ...]:
        """Return the fits of that time, the oldest of the chain first; empty unless a block has just closed."""
        position, rest = divmod(time, self.block)
        if rest:
            return ()
        if position < self.blocks:
            warm_up = self._warm_up.fits(time) if self.warm_up else ()
            return tuple(replace(fit, share=fit.share * self._divided[1]) for fit in warm_up)
        buckets = _buckets(self.blocks, position - self.blocks)
        return tuple(
            Fit(
                start=first * self.block,
                end=end * self.block,
                near=depth - 1 if depth else None,
                depth=depth,
                share=_share(self, end - first, depth, first < self.blocks),
                role="model" if index == len(buckets) - 1 else "base" if depth == 0 else "link",
                window=(time - self.blocks * self.block, time),
            )
            for index, (first, end, depth) in enumerate(buckets)
        )

    def needs(self, after: int) -> int:
        """Return the oldest record that a fit after `after` reads: the next window's first, or one block later.

        Where r is odd only the latest block is fitted; everywhere else the window's oldest block is read too.
        """
        position = max(0, self.next_time(after) // self.block - self.blocks)
        return (position + (position % _period(self.blocks)) % 2) * self.block

    def lifetime(self) -> Lifetime:
        """Return the worst record's total by the sizes of the buckets that hold it: exactly 1, or less (`paper`)."""
        return _lifetime(self)

    def most_fits(self) -> int:
        """Return the most of any block of the first window and of those after it (see the module)."""
        return _most_fits(self.blocks, warm_up=self.warm_up)

    def patterns(self) -> tuple[Pattern, ...]:
        """Return one pattern per size of bucket, as after the first window, and the warm-up."""
        period = _period(self.blocks)
        big = self.blocks - period + 1
        sizes = [big, *(1 << level for level in reversed(range(period.bit_length() - 1)))]
        rest, warm_up = self._divided
        buckets = [
            Pattern(
                what=f"bucket of {_plural(size)}",
                when=(
                    f"every {_plural(period)} once the first window of {_plural(self.blocks)} is full, near the origin"
                    if depth == 0
                    else f"within the chain, near the bucket of {_plural(sizes[depth - 1])}"
                )
                + (f"; {rest} of this share while it holds any of the first {_plural(self.blocks)}" if warm_up else ""),
                records=size * self.block,
                share=self.unit * _cost(self.currency, self.shares, size, depth),
                near_origin=depth == 0,
            )
            for depth, size in enumerate(sizes)
        ]
        if warm_up:
            when = (
                f"after each of the first {_plural(self.blocks - 1)}, over all or the latest, as continual does with "
                f"base {self.block} and update_every {self.block}"
            )
            share = warm_up * self._warm_up.patterns()[0].share
            buckets.append(Pattern(what="warm-up", when=when, records=self.block, share=share, near_origin=True))
        return tuple(buckets)

    @property
    def _warm_up(self) -> Continual:
        return _continual(self.currency, self.block)

    @property
    def _divided(self) -> tuple[Fraction, Fraction]:
        """Return f and g: see the module docstring."""
        if self.warm_up and self.blocks > 1:
            return _divide(self.currency, self.blocks, self.shares)[1:]
        return Fraction(1), Fraction(0)

    def share_kept(self, early: bool) -> Fraction:
        """Return what a warm-up leaves of a bucket's share; early: one that holds some of the first window."""
        return self._divided[0] if early else Fraction(1)


@lru_cache(maxsize=1024)
def _share(schedule: SlidingWindow, size: int, depth: int, early: bool) -> Fraction:
    """Return the share of a bucket of that many blocks; early: it holds some of the first window."""
    return schedule.unit * _cost(schedule.currency, schedule.shares, size, depth) * schedule.share_kept(early)


@lru_cache(maxsize=256)
def _lifetime(schedule: SlidingWindow) -> Lifetime:
    kind, block, blocks = schedule.currency, schedule.block, schedule.blocks
    rule = _divide if schedule.warm_up and blocks > 1 else _steady
    worst = rule(kind, blocks, schedule.shares)[0]
    shares: dict[tuple[bool, int], list[Fraction]] = {}
    for position in range(worst + 1, worst + blocks + 1):
        for fit in schedule.fits(position * block):
            if fit.start <= worst * block < fit.end:
                shares.setdefault((position < blocks, (fit.end - fit.start) // block), []).append(fit.share)
    loose = "the paper's constants are valid but not the largest: `equal` uses the whole budget"
    return Lifetime(
        record=worst * block,
        parts=tuple(
            Part(
                what=f"{_times(len(charged))} fitted in a "
                + (f"warm-up over {_plural(size)}" if warming else f"bucket of {_plural(size)}"),
                fits=len(charged),
                share=sum(charged, start=Fraction(0)),
            )
            for (warming, size), charged in sorted(shares.items(), reverse=True)
        ),
        note=loose if sum(map(sum, shares.values())) < 1 else None,
    )


@lru_cache(maxsize=256)
def _most_fits(blocks: int, *, warm_up: bool) -> int:
    """Return how many fits read one block at most. The kind does not matter: only how often a block is read."""
    window = [bucket for position in range(blocks + _period(blocks) - 1) for bucket in _buckets(blocks, position)]
    before = [fit for time in range(1, blocks) for fit in _continual(Currency.PURE, 1).fits(time)] if warm_up else []
    ranges = [*((first, end, 1) for first, end, _ in window), *((fit.start, fit.end, 1) for fit in before)]
    return int(ChargesByRecord.of(ranges).maximum())


@lru_cache(maxsize=256)
def _continual(currency: Currency, block: int) -> Continual:
    """Return the schedule of the warm-up."""
    return Continual(currency=currency, base=block, update_every=block)


def _period(blocks: int) -> int:
    """Return P = 2^(k-1), k = ⌊log2(W + 1)⌋."""
    return 1 << ((blocks + 1).bit_length() - 2)


def _buckets(blocks: int, position: int) -> list[tuple[int, int, int]]:
    """Return the fits of the window that starts at block `position`, in order: (first block, end block, depth)."""
    period = _period(blocks)
    top = period.bit_length() - 1  # k - 1
    remainder = position % period
    end = position + blocks
    if remainder == 0:
        level = top
        fitted = [(position + period - 1, end, 0)]
    else:
        level = (remainder & -remainder).bit_length() - 1  # j
        fitted = [(end - (1 << level), end, top - level)]
    fitted.extend(
        (position + (1 << lower) - 1, position + (2 << lower) - 1, top - lower) for lower in reversed(range(level))
    )
    return fitted


def _cost(currency: Currency, shares: Rule, size: int, depth: int) -> Fraction:
    """Return what a bucket of that many blocks costs, in units of e_0."""
    return Fraction(1) if shares == "paper" and depth == 0 else Fraction(1, size ** currency.power())


@lru_cache(maxsize=256)
def _steady(currency: Currency, blocks: int, shares: Rule) -> tuple[int, Fraction]:
    """Return the worst block without a warm-up, and e_0: see the module docstring."""
    profile = ChargesByRecord.of(
        (first, end, _cost(currency, shares, end - first, depth))
        for position in range(blocks + _period(blocks) - 1)
        for first, end, depth in _buckets(blocks, position)
    )
    worst, _, total = max(profile.ranges(), key=lambda piece: piece[2])
    third = Fraction(1, 3) if currency is Currency.PURE else Fraction(3, 7)
    return worst, min(third, 1 / total) if shares == "paper" else 1 / total


@lru_cache(maxsize=256)
def _divide(currency: Currency, blocks: int, shares: Rule) -> tuple[int, Fraction, Fraction]:
    """Return a worst block with a warm-up, f and g: see the module docstring."""
    unit = _steady(currency, blocks, shares)[1]
    window = ChargesByRecord.of(
        (first, end, _cost(currency, shares, end - first, depth))
        for position in range(blocks)
        for first, end, depth in _buckets(blocks, position)
        if first < blocks
    )
    warm_up = ChargesByRecord.of(
        (fit.start, fit.end, fit.share) for time in range(1, blocks) for fit in _continual(currency, 1).fits(time)
    )
    charged = sorted(
        (-warm_up.at(block), -unit * window.at(block), block)
        for block in {*window.starts, *warm_up.starts}
        if block < blocks - 1  # the last block is in no warm-up
    )
    hardest: list[tuple[Fraction, Fraction, int]] = []  # (c, w, block) that no other exceeds in both c and w
    for c, w, block in charged:
        if not hardest or -w > hardest[-1][1]:
            hardest.append((-c, -w, block))
    best = (0, Fraction(0), Fraction(0))
    for f in (Fraction(n, 16) for n in range(1, 17)):
        g, block = min(((1 - f * w) / c, block) for c, w, block in hardest)
        if f * g > best[1] * best[2]:
            best = (block, f, g)
    return best


def _plural(blocks: int) -> str:
    return "1 block" if blocks == 1 else f"{blocks} blocks"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
