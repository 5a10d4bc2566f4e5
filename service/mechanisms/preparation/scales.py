"""From noisy counts to a scale for each feature. All of it is computed from what is released, so it costs nothing.

Noisy counts of a feature are projected to the nearest counts that are not negative and add up to n, the public number
of slots. Noise in the many empty cells then nearly vanishes. Within a cell values are taken to be spread evenly. With
q_p the p-quantile, a feature x becomes

    (x - q_50) / ((q_85 - q_15)/2), clipped to ±LIMIT,

which for a normal law has a standard deviation near 1. Where q_15 and q_85 are in one cell (a flag that is rarely set),
q_5 and q_95 take their place. Where these are in one cell too, the cells show no spread: the feature becomes 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from service.mechanisms.preparation.cells import CELLS, LOWER, UPPER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.learning.losses import Floats

LIMIT = 3.0
TAILS = (0.15, 0.05)
"""Below the lower quantile, and above the upper one, is such a share; the second where the first shows no spread."""


def scales(counts: NDArray[np.number], records: int) -> tuple[Floats, Floats]:
    """Return (center, factor) of each feature, both (d,), from noisy counts (d, CELLS) of n = `records` slots."""
    both = np.array([_scale(_projected(each, records)) for each in counts])
    return both[:, 0], both[:, 1]


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
