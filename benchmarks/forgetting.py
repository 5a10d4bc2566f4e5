"""How well tasks are learnt one after another, and how well remembered, as paper D defines it (section 6).

a, (m, m): a[l, t] is the accuracy on the test records of task t after task l was learnt, both counted from 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]


def average_accuracy(a: Floats) -> Floats:
    """Return, (m,), the mean over tasks 0 … τ of a[τ, t], for every τ."""
    return np.array([a[last, : last + 1].mean() for last in range(len(a))])


def average_forgetting(a: Floats) -> Floats:
    """Return, (m - 1,), for every τ > 0 the mean over t < τ of max_(l < τ) a[l, t] - a[τ, t]: < 0 if it improves."""
    return np.array([(a[:last, :last].max(axis=0) - a[last, :last]).mean() for last in range(1, len(a))])


def p_value(one: Floats, other: Floats) -> float:
    """Return the p-value of a two-tailed paired t-test of two curves of at least two points.

    The paper does not say that it pairs; its figures (p < 3e-14 of 20 points 0.1 apart) come of pairing only. Points
    of a curve are not independent, so it is a description, not evidence; where both curves are the same it is 1.
    """
    if np.array_equal(one, other):
        return 1.0
    with np.errstate(divide="ignore"):
        return float(stats.ttest_rel(one, other).pvalue)
