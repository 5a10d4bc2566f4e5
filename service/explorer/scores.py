"""Scores of predicted classes, as in the table of a comparison (paper E, section 6).

With two classes, class 1 is positive. With more, precision, recall, specificity and F1 are means over the classes,
each of them taken as positive once; a class that is never predicted, or never there, counts 0 where it has no figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCORES = ("accuracy", "precision", "recall", "specificity", "f1", "mcc")


def score(truth: NDArray[np.integer], predicted: NDArray[np.generic], classes: int) -> dict[str, float]:
    """Return each of `SCORES` for two arrays (m,) of classes, m ≥ 1."""
    table = np.zeros((classes, classes))
    np.add.at(table, (truth, predicted.astype(np.int64)), 1.0)
    right, true, predictions, total = np.diag(table), table.sum(axis=1), table.sum(axis=0), table.sum()
    positive = [1] if classes == 2 else range(classes)
    precision, recall = _ratio(right, predictions)[positive], _ratio(right, true)[positive]
    negative = _ratio(total - true - predictions + right, total - true)[positive]
    f1 = _ratio(2 * right, true + predictions)[positive]
    scores = (right.sum() / total, precision.mean(), recall.mean(), negative.mean(), f1.mean(), _mcc(table))
    return {name: round(float(value), 6) for name, value in zip(SCORES, scores, strict=True)}


def _mcc(table: NDArray[np.float64]) -> float:
    """Return Matthews' correlation coefficient, of many classes Gorodkin's R_K (2004); 0 where it has none."""
    right, true, predictions, total = np.trace(table), table.sum(axis=1), table.sum(axis=0), table.sum()
    spread = (total**2 - predictions @ predictions) * (total**2 - true @ true)
    return float((right * total - true @ predictions) / np.sqrt(spread)) if spread > 0 else 0.0


def _ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
