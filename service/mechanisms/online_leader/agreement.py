"""Step lengths by the agreement of each gradient with the step before: `averaging` `tracking`.

A filter follows a moving target best where its innovations are white: successive ones are then uncorrelated (Kailath
1968). Here ĝ_t is the innovation. Where it points along the step before, that step was too short: the stream moves, or
has jumped. Where it points against it, steps go to and fro, and are too long. With u_t the step before (the mean
gradient ĝ_(t-1)/n, without momentum and pull), q_t the agreement and m_t what it multiplies, m_0 = 1,
    q_t = (<ĝ_t/n, u_t> + r·E‖z‖²/n²)/(‖ĝ_t/n‖·‖u_t‖), within ±1,   m_t = m_(t-1)·exp(RATE·q_t), within LEAST and MOST.
A step is √m_t times as long; an iterate's part in the average is k_t = max(4/(t + 5), min(1, m_t·max(4/(t + 5), k))).

r·E‖z‖² is by how much the noise of a step takes back that of the step before, on average (`taken_back`): with noise
alone q_t is 0 on average, and the smaller, the more weights there are. So noise leaves steps as they are.

Statement. m_t is a function of released estimates ĝ_0 … ĝ_t, of m_0, and of public numbers: of n, of the law of the
noise and of the factor. No record is looked at, and nothing secret of the noise (what is remembered of it enters no
m_t). So it is post-processing: neither the sensitivity, nor the noise, nor any charge depends on it.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from service.privacy.noise.correlated import Blt, Toeplitz

if TYPE_CHECKING:
    from service.learning.optimization.losses import Floats
    from service.privacy.noise.running_sums import Factor

RATE = 0.4
LEAST, MOST = 1.0 / 3.0, 2.0  # the least factor is farther from 1 than the largest, since a long step has long noise
_STEPS = 64  # steps after which the noise hardly depends on the length of the run


def followed(logarithm: float, mean: Floats, before: Floats, noise: float) -> float:
    """Return ln m_t.

    logarithm: ln m_(t-1); mean: ĝ_t/n; before: u_t; noise: r·E‖z‖²/n².
    """
    lengths = float(np.linalg.norm(mean)) * float(np.linalg.norm(before))
    if not lengths:
        return logarithm
    agreement = (float(np.vdot(mean, before)) + noise) / lengths
    return max(math.log(LEAST), min(math.log(MOST), logarithm + RATE * max(-1.0, min(1.0, agreement))))


@lru_cache(maxsize=64)
def taken_back(factor: Factor) -> float:
    """Return r = -E<n_t, n_(t-1)>/E‖z‖², n_t the noise of estimate t, z a fresh draw.

    In trees every second step takes back the one before.
    """
    if not isinstance(factor, Blt | Toeplitz):
        return 0.5
    noise, limit = [1.0], math.inf
    memory = factor.remember((), np.ones(1), 0, limit)
    for step in range(1, min(_STEPS, factor.steps or _STEPS)):
        estimate = np.ones(1) * -factor.carried(memory, step)
        memory = factor.remember(memory, estimate, step, limit)
        noise.append(float(estimate[0]))
    return -math.fsum(a * b for a, b in itertools.pairwise(noise))
