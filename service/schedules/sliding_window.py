"""Sliding window: a chain of models over the last W blocks (paper A, Algorithm 5 and Example 1).

| here | paper A | meaning |
|---|---|---|
| block | w_0 | records per block |
| blocks | w/w_0 = W | blocks in the window; the paper has W = 2^k - 1 only |
| levels | k | ⌊log2(W + 1)⌋: bucket sizes 2^0 … 2^(k-2) and the big one |
| period | P = 2^(k-1) | blocks between two resets |
| extra | E = W - (2P - 1) | blocks the big bucket has beyond P; 0 in the paper |

Blocks are numbered from 0. At time (W + q)·w_0, q = 0, 1, …, the window is blocks q … q + W - 1; write q = s + r, s a
multiple of P, 0 ≤ r < P (mechanisms.md 1.4, which reproduces Example 1 step by step):
 - r = 0, a reset: the P + E latest blocks are fitted near the origin, then ever smaller buckets of 2^i blocks, the
   oldest smallest, each near the one before.
 - r > 0: let 2^j be the largest power of two that divides r. The chain is kept down to the levels above j. The latest
   2^j blocks become one bucket, and the oldest old blocks are split again into buckets of 2^(j-1) … 1, each near the
   one before.

So r alone says what is fitted, and nothing has to be walked from the beginning. The last model fitted is the window's.
There is nothing before the first full window. Depth 0 is level k-1 and depth d is level k-1-d.

What one block costs, by following it. All fits carry the same noise, so a bucket of m blocks costs e_0/m (pure) or
e_0/m² (ρ), also the big one of P + E blocks. What is fitted at q depends on q mod P only, shifted by whole blocks, so
a block that sees only full windows is charged as the one P blocks later. A block of the first window sees only a part
of what its like P, 2P, … blocks later see: it is charged no more. So following blocks through q = 0 … W + P - 2,
within which P consecutive blocks live their whole lives, finds the worst block of the infinite stream.

For W = 2^k - 1 it comes to one bucket of each size: 2(1 - 2^-k)·e_0 in pure ε, a noise scale of 4(1 - 2^-k)·L/(αw_0·ε)
where the paper has 6.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from service.privacy.loss import Kind
from service.privacy.profile import Profile
from service.schedules.schedule import Fit, Lifetime, Part, Pattern


@dataclass(frozen=True, kw_only=True)
class SlidingWindow:
    """Algorithm 5 for any number of blocks, at equal noise, in the currency `kind`."""

    kind: Kind
    block: int
    blocks: int

    def __post_init__(self) -> None:
        if self.block < 1 or self.blocks < 1:
            raise ValueError("a sliding window needs block >= 1 and blocks >= 1")

    @property
    def unit(self) -> Fraction:
        """The share of a bucket of one block, e_0."""
        return 1 / _followed(self.blocks, self.kind)[1]

    def next_time(self, after: int) -> int:
        """Return the next end of a block that closes a full window."""
        return max(self.blocks, after // self.block + 1) * self.block

    def fits(self, time: int) -> tuple[Fit, ...]:
        """Return the fits of that time, the oldest of the chain first; empty unless a full window has just closed."""
        position, rest = divmod(time, self.block)
        if rest or position < self.blocks:
            return ()
        unit, power = self.unit, self.kind.power()
        buckets = _buckets(self.blocks, position - self.blocks)
        return tuple(
            Fit(
                start=first * self.block,
                end=end * self.block,
                depth=depth,
                share=unit / (end - first) ** power,
                role="model" if index == len(buckets) - 1 else "base" if depth == 0 else "link",
            )
            for index, (first, end, depth) in enumerate(buckets)
        )

    def window(self, time: int) -> tuple[int, int]:
        """Return the last `blocks` blocks."""
        return time - self.blocks * self.block, time

    def needs(self, after: int) -> int:
        """Return the oldest record that a fit after `after` reads: the next window's first, or one block later.

        Where r is odd only the latest block is fitted; everywhere else the window's oldest block is read too.
        """
        position = self.next_time(after) // self.block - self.blocks
        return (position + (position % _period(self.blocks)) % 2) * self.block

    def lifetime(self) -> Lifetime:
        """Return the worst record's total, exactly 1, by the sizes of the buckets that hold it."""
        worst, total = _followed(self.blocks, self.kind)
        sizes = Counter(
            end - first
            for position in range(max(0, worst - self.blocks + 1), worst + 1)
            for first, end, _ in _buckets(self.blocks, position)
            if first <= worst < end
        )
        parts = tuple(
            Part(
                what=f"{_times(count)} fitted in a bucket of {_plural(size)}",
                fits=count,
                share=count / (total * size ** self.kind.power()),
            )
            for size, count in sorted(sizes.items(), reverse=True)
        )
        return Lifetime(record=worst * self.block, parts=parts)

    def patterns(self) -> tuple[Pattern, ...]:
        """Return one pattern per size of bucket."""
        period = _period(self.blocks)
        big = self.blocks - period + 1
        sizes = [big, *(1 << level for level in reversed(range(period.bit_length() - 1)))]
        return tuple(
            Pattern(
                what=f"bucket of {_plural(size)}",
                when=(
                    f"every {_plural(period)} once the first window of {_plural(self.blocks)} is full, near the origin"
                    if index == 0
                    else f"within the chain, near the bucket of {_plural(sizes[index - 1])}"
                ),
                records=size * self.block,
                share=self.unit / size ** self.kind.power(),
                near_origin=index == 0,
            )
            for index, size in enumerate(sizes)
        )


def _period(blocks: int) -> int:
    """Return P = 2^(k-1), k = ⌊log2(W + 1)⌋."""
    return 1 << ((blocks + 1).bit_length() - 2)


def _buckets(blocks: int, position: int) -> list[tuple[int, int, int]]:
    """Return what is fitted when the window starts at block `position`: (first block, end block, depth), in order."""
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


@lru_cache(maxsize=256)
def _followed(blocks: int, kind: Kind) -> tuple[int, Fraction]:
    """Return (block, total) of the worst block, in units of e_0: see the module docstring."""
    power = kind.power()
    profile = Profile.of(
        (first, end, Fraction(1, (end - first) ** power))
        for position in range(blocks + _period(blocks) - 1)
        for first, end, _ in _buckets(blocks, position)
    )
    worst, _, total = max(profile.ranges(), key=lambda piece: piece[2])
    return worst, total


def _plural(blocks: int) -> str:
    return "1 block" if blocks == 1 else f"{blocks} blocks"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
