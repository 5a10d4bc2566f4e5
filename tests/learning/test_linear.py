"""Tests of what all learners of linear models do with records before a fit."""

from __future__ import annotations

import numpy as np
import pytest

from service.learning.linear import Linear
from service.learning.optimization.losses import LOSSES
from service.learning.records import Records
from service.mechanisms.timing import BYTES_AT_LEAST, bytes_at_once
from tests.held import most_held

N, D = 2000, 500


@pytest.mark.parametrize(
    "values", [(), (1e30,), (np.nan,), (1e30, np.nan)], ids=["plain", "long", "empty", "long and empty"]
)
def test_no_record_makes_a_fit_need_more_memory_than_its_plan_says(values):
    """Else a fit near a machine's limit is killed, and its publication halts, because of one record."""
    linear = Linear(loss=LOSSES["logistic"], regularization=0.1, intercept=True, norm_bound=1.0, features=D, classes=2)
    x = np.random.default_rng(1).normal(size=(N, D)).astype(np.float32)
    for row, value in enumerate(values):
        x[row, 0] = value
    records, before = Records(x=x, y=np.zeros(N, dtype=np.int32), slots=np.arange(N)), x.copy()
    assert x.nbytes + most_held(linear.entering, records) <= bytes_at_once(N, D) + BYTES_AT_LEAST
    rows, entering = linear.entering(records)
    assert np.array_equal(x, before, equal_nan=True)
    there = np.isfinite(x).all(axis=1)
    assert np.array_equal(entering.slots, np.flatnonzero(there))
    assert np.array_equal(rows.rows(), linear.rows(x[there])[0].rows())
