"""How much noise the sum of a window's statistics has."""

import numpy as np
import pytest

from service.learning.optimization.losses import LOSSES
from service.mechanisms.sufficient_statistics import spreads
from service.mechanisms.window_statistics.window_model import WindowModel
from service.privacy.currency import Currency
from service.privacy.noise.correlated import Blt, Toeplitz


def learner(blocks):
    settings = {"regularization": 0.1, "intercept": True, "norm_bound": 1.0, "features": 3, "classes": 2}
    return WindowModel(loss=LOSSES["logistic"], blocks=blocks, **settings)


@pytest.mark.parametrize("blocks", [1, 2, 7, 30])
@pytest.mark.parametrize("kind", list(Currency))
def test_the_noise_of_a_window_is_that_of_explicit_linear_algebra(kind, blocks):
    one = learner(blocks)
    factor, steps = one.factor(kind), 3 * blocks
    if kind is Currency.PURE or blocks == 1:
        assert factor == Toeplitz(bands=1, decay=1.0)
        column = np.eye(steps)[0]
    else:
        assert isinstance(factor, Blt)
        decays, scales = np.array(factor.decays), np.array(factor.scales)
        column = np.array([1.0, *(decays ** np.arange(steps - 1.0)[:, None] @ scales)])
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    matrix = np.where(lags >= 0, column[np.abs(lags)], 0.0)
    window = (lags >= 0) & (lags < blocks)
    explicit = np.linalg.norm(window @ np.linalg.inv(matrix), axis=1)
    np.testing.assert_allclose(spreads(factor, blocks)[:steps], explicit, rtol=1e-9)


def test_taking_noise_back_is_worth_what_is_told():
    """Noise of a window's sum times ‖c‖, against √W of independent noise (docs/mechanisms/window_statistics.md)."""
    for blocks, printed in ((2, 1.33), (7, 1.90), (32, 2.60), (1024, 4.18)):
        factor = learner(blocks).factor(Currency.ZCDP)
        cost = float(factor.column.square) ** 0.5 * spreads(factor, blocks)[-1]
        assert cost == pytest.approx(printed, abs=0.006)
