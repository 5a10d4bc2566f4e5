"""Scales of features from noisy counts: post-processing of released counts, which costs nothing.

Noisy counts of a feature are projected to the nearest counts that are not negative and add up to n, the public number
of slots. Noise in the many empty cells then nearly vanishes. Within a cell values are taken to be spread evenly. With
q_p the p-quantile, a feature x becomes

    (x - q_50) / ((q_85 - q_15)/2), clipped to ±LIMIT,

which for a normal law has a standard deviation near 1. Where q_15 and q_85 are in one cell (a flag that is rarely set),
q_5 and q_95 take their place. Where these are in one cell too, the cells show no spread.

Rule 1, of preparations that began before there was another: a feature without spread becomes 0.

Rule 2. Counts outside of the first and the last cell that has more than CERTAIN standard deviations of noise are left
out before they are projected: the tails of 161 noisy cells would be long. A feature without spread is divided by half
the width of its cell, from the cell's middle; in the cell of 0, where flags are that are hardly ever set, it stays as
it is. Then all features are multiplied by one gain, so that Σ E[z²] = FULL²·d as the counts have it. Rows of length √d
leave no part of the norm unused, for which the noise is: without the gain, covtype's 44 flags and 10 numbers have a
length of √d/2. CERTAIN and FULL were found on noaa_weather, elec2 and covtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from service.mechanisms.limits import FULL
from service.mechanisms.preparation.cells import CELLS, LOWER, UPPER, ZERO

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats

LIMIT = 3.0
TAILS = (0.15, 0.05)
"""Below the lower quantile, and above the upper one, is such a share; the second where the first shows no spread."""
CERTAIN = 3.0  # standard deviations
LARGEST_GAIN = 10.0


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """x → clip((x - center)·factor, ±limit); center and factor are of each feature, (d,)."""

    center: Floats
    factor: Floats
    limit: float


def scales(counts: NDArray[np.number], records: int) -> tuple[Floats, Floats]:
    """Return (center, factor) of each feature by rule 1, both (d,).

    counts: noisy, (d, CELLS), of n = `records` slots.
    """
    both = np.array([_scale(_projected(row, records)) for row in counts])
    return both[:, 0], both[:, 1]


def full_scales(counts: NDArray[np.number], records: int, deviation: float) -> Scaling:
    """Return the scaling by rule 2 from noisy counts (d, CELLS) of n = `records` slots.

    deviation: the standard deviation of the noise in a count.
    """
    shares = [_believed(row, records, deviation) for row in counts]
    both = np.array([_widened(row) for row in shares])
    center, factor = both[:, 0], both[:, 1]
    gain = _gain(np.array(shares) / records, center[:, None], factor[:, None])
    return Scaling(center=center, factor=factor * gain, limit=LIMIT * gain)


def _believed(counts: NDArray[np.number], records: int, deviation: float) -> Floats:
    certain = np.flatnonzero(counts > CERTAIN * deviation)
    first, last = (certain[0], certain[-1]) if len(certain) else (int(np.argmax(counts)),) * 2
    believed = np.zeros(CELLS)
    believed[first : last + 1] = _projected(counts[first : last + 1], records)
    return believed


def _widened(counts: Floats) -> tuple[float, float]:
    center, factor = _scale(counts)
    if factor:
        return center, factor
    _, cell = _quantile(counts, 0.5)
    if cell == ZERO:
        return 0.0, 1.0
    return float(LOWER[cell] + UPPER[cell]) / 2.0, 2.0 / float(UPPER[cell] - LOWER[cell])


def _gain(shares: Floats, center: Floats, factor: Floats) -> float:
    middles = np.clip(((LOWER + UPPER) / 2.0 - center) * factor, -LIMIT, LIMIT)
    square = float((shares * middles**2).sum())
    wanted = FULL * math.sqrt(len(shares))
    return min(LARGEST_GAIN, wanted / math.sqrt(square)) if square > 0.0 else 1.0


def _scale(counts: Floats) -> tuple[float, float]:
    center, _ = _quantile(counts, 0.5)
    for tail in TAILS:
        low, first = _quantile(counts, tail)
        high, last = _quantile(counts, 1.0 - tail)
        if first < last:
            return center, 2.0 / (high - low)
    return center, 0.0


def _quantile(counts: Floats, share: float) -> tuple[float, int]:
    """Return a quantile and the cell that it is in."""
    reached = np.cumsum(counts)
    wanted = share * reached[-1]
    cell = min(int(np.searchsorted(reached, wanted)), CELLS - 1)
    part = (wanted - (reached[cell] - counts[cell])) / counts[cell] if counts[cell] else 0.0
    return float(LOWER[cell] + (UPPER[cell] - LOWER[cell]) * part), cell


def _projected(counts: NDArray[np.number], total: float) -> Floats:
    """Return the nearest vector that is not negative and adds up to `total` > 0 (Duchi et al. 2008, Figure 1)."""
    falling = np.sort(counts)[::-1].astype(np.float64)
    above = (np.cumsum(falling) - total) / np.arange(1, len(falling) + 1)
    threshold = above[np.flatnonzero(falling > above)[-1]]
    return np.asarray(np.maximum(counts - threshold, 0.0))
