"""Public cells of the real line: 0, and each sign times half-octaves of |x| from 2^-20 to 2^20.

Cell 80 holds 0 and all |x| < 2^-20. Cell 81 + k holds 2^(-20 + k/2) ≤ x < 2^(-20 + (k + 1)/2), k = 0 … 79; cell 160
holds all larger x too. Cell 79 - k is the mirror image of cell 81 + k. The edges are fixed for ever and depend on no
record, so each finite number is in exactly one cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HALF_OCTAVES = 80
CELLS = 2 * HALF_OCTAVES + 1
ZERO = HALF_OCTAVES
COUNTED_AT_ONCE = 2**20  # numbers; some temporaries have 8 bytes for each
_EDGES = 2.0 ** (np.arange(-HALF_OCTAVES // 2, HALF_OCTAVES // 2 + 1) / 2)
LOWER = np.concatenate([-_EDGES[:0:-1], [0.0], _EDGES[:-1]])
UPPER = np.concatenate([-_EDGES[-2::-1], [0.0], _EDGES[1:]])


def cells_of(x: NDArray[np.floating]) -> NDArray[np.intp]:
    """Return the cell of each finite number, an array of the shape of x."""
    half_octave = np.searchsorted(_EDGES, np.abs(x.astype(np.float64)), side="right")
    return np.asarray(ZERO + np.sign(x).astype(np.intp) * np.minimum(half_octave, HALF_OCTAVES))


def counts_of(x: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return how many of the numbers in each column are in each cell, (d, CELLS), for x of shape (m, d).

    A row that is not finite counts nowhere.
    """
    finite, features = x[np.isfinite(x).all(axis=1)], x.shape[1]
    counts = np.zeros(features * CELLS, dtype=np.int64)
    at_once = max(1, COUNTED_AT_ONCE // features)
    for start in range(0, len(finite), at_once):
        places = np.arange(features) * CELLS + cells_of(finite[start : start + at_once])
        counts += np.bincount(places.ravel(), minlength=len(counts))
    return counts.reshape(features, CELLS)
