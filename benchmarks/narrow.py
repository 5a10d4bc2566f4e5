"""Measure fits of many records of few features, and window statistics of a block, by processor time on one thread.

OPENBLAS_NUM_THREADS=1 python -m benchmarks.narrow
"""

from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import numpy as np

from service.learning.optimization.losses import LOSSES
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.mechanisms.window_statistics.window_model import WindowModel
from service.privacy.currency import Currency

FEATURES, RECORDS, BLOCK = 32, 100_000, 2_000
CASES = (("logistic", 2), ("softmax", 3), ("softmax", 10), ("squared", 0))
REPEATS = 7


def least(work: Callable[[], object]) -> float:
    """Return the least seconds of processor time of some runs."""
    times = []
    for _ in range(REPEATS):
        began = process_time()
        work()
        times.append(process_time() - began)
    return min(times)


def main() -> None:
    """Print a row per loss, in Markdown."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((RECORDS, FEATURES)) / 8).astype(np.float32)
    print("| loss | exact, α = 0.1 | α = 0.001 | statistics of a block | its whole step, records a second |")
    print("|---|---|---|---|---|")
    for loss, classes in CASES:
        y = x[:, :classes].argmax(axis=1) if classes else x[:, 0].astype(float)
        if classes == 2:
            y = (x[:, 0] > 0).astype(int)
        public: dict[str, Any] = {
            "loss": LOSSES[loss],
            "intercept": True,
            "norm_bound": 1.0,
            "features": FEATURES,
            "classes": classes,
        }
        cells = []
        for alpha in (0.1, 0.001):
            learner = OutputPerturbation(regularization=alpha, **public)
            rows, labels = learner.prepared(Records(x=x, y=y))
            origin = np.zeros(learner.shape)
            setting = learner.setting(origin)
            seconds = least(partial(learner.solver.solve, setting, rows, labels, RECORDS, origin))
            cells.append(f"{seconds * 1e3:.1f} ms")
        model = WindowModel(regularization=0.1, blocks=7, **public)
        block = Records(x=x[:BLOCK], y=y[:BLOCK])
        noise = model.perturbation(Currency.ZCDP, 0.1, BLOCK)
        sums = least(partial(model.statistics, block, BLOCK))
        step = least(partial(model.advance, (), block, BLOCK, np.zeros(model.shape), noise, 0))
        print(
            f"| {loss}, {classes} | {' | '.join(cells)} | {BLOCK / sums:,.0f}/s | {BLOCK / step:,.0f}/s |", flush=True
        )


if __name__ == "__main__":
    main()
