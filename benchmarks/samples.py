"""How much time a secret sample saves a fit, and how accurate its models are.

    PERENNIAL_DATA_DIR=… OPENBLAS_NUM_THREADS=1 python -m benchmarks.samples [--runs 3]

Forest cover (7 classes, 54 columns scaled by public constants): models of 10⁶ records, which are 500,000 twice in a
random order, or of a sample of them; at pure ε; their accuracy on the other 81,012. Times are processor time of one
fit, records in memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.streams import covtype
from service.learning.optimization.descent import PermutationSGD
from service.learning.optimization.losses import LOSSES
from service.learning.optimization.solvers import Exact
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.learning.samples import read_sample
from service.privacy.currency import Currency
from service.privacy.noise import additive as noises

if TYPE_CHECKING:
    from service.learning.optimization.losses import Floats

TRAINED, RECORDS, EPSILONS = 500_000, 1_000_000, (0.01, 0.1, 1.0)
SAMPLES = (None, 100_000, 10_000)


def learner(sample: int | None, solver: Exact | PermutationSGD) -> OutputPerturbation:
    """Return the learner of a fit of all records, or of that many."""
    return OutputPerturbation(
        loss=LOSSES["softmax"],
        regularization=0.01,
        intercept=True,
        intercept_scale=0.3,
        norm_bound=4.0,
        features=54,
        classes=7,
        solver=solver,
        sample=sample,
    )


def fitted(one: OutputPerturbation, records: Records) -> tuple[Floats, float]:
    """Return a model without noise, and its seconds of processor time."""
    began = time.process_time()
    entering = records if one.sample is None else read_sample(records, RECORDS, one.sample, one.features)
    model = one.fit(entering, one.sample or RECORDS, np.zeros(one.shape))
    return model, time.process_time() - began


def main() -> None:
    """Print a line for each solver and sample, in Markdown."""
    parser = argparse.ArgumentParser(description="Fits of secret samples beside fits of all records.")
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    _, x, y = covtype()
    order = np.random.default_rng(0).permutation(len(y))
    trained, left = order[:TRAINED], order[TRAINED:]
    twice = np.concatenate((trained, trained))
    records = Records(x=np.asarray(x[twice], dtype=np.float32), y=y[twice])
    print(f"| solver | sample | seconds | {' | '.join(f'ε = {epsilon:g}' for epsilon in EPSILONS)} |")
    print(f"|---|---|---|{'---|' * len(EPSILONS)}", flush=True)
    for solver in (Exact(), PermutationSGD(passes=2, batch=32)):
        for sample in SAMPLES:
            one = learner(sample, solver)
            made = [fitted(one, records) for _ in range(runs if sample else 1)]
            cells = []
            for epsilon in EPSILONS:
                noise = one.perturbation(Currency.PURE, epsilon, RECORDS).noise
                released = [noises.add(model, noise) for model, _ in made for _ in range(runs)]
                right = [float((one.predict(model, x[left])[0] == y[left]).mean()) for model in released]
                cells.append(f"{statistics.mean(right):.3f} (noise {noise.expected_norm():.2g})")
            took = statistics.median(seconds for _, seconds in made)
            print(f"| {solver.name} | {sample or 'none'} | {took:.2f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
