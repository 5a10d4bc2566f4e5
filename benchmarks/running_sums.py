"""Measure a step of running sums beside drawing its noise, and the size of its memory, early and late in a stream."""

from collections.abc import Callable
from functools import partial
from time import perf_counter

import numpy as np

from service.privacy.noise import running_sums
from service.privacy.noise.additive import Gaussian
from service.privacy.noise.correlated import Blt, Toeplitz, Tree
from service.privacy.noise.window_tree import WindowTree

DIMENSION = 7840
STEPS = (10, 1_000, 60_000)
FACTORS: dict[str, running_sums.Factor] = {
    "blt": Blt.decaying(0.97),
    "toeplitz": Toeplitz.for_ever(0.97),
    "tree": Tree(steps=2**16),
    "window_tree, block, W = 64": WindowTree(window=64, expiry="block"),
    "window_tree, leaf, W = 64": WindowTree(window=64, expiry="leaf"),
}
TURNS = 60


def seconds(what: Callable[[], object]) -> float:
    began = perf_counter()
    what()
    return perf_counter() - began


def main() -> None:
    """Print a line per factor: its remembered vectors, and the least time of a step in draws of a noise vector."""
    noise, values = Gaussian(scale=1.0, dimension=DIMENSION), np.zeros(DIMENSION)
    print("| noise |" + "".join(f" step {step:,}: vectors | draws |" for step in STEPS))
    print("|---|" + "---|---|" * len(STEPS))
    for name, factor in FACTORS.items():
        sums = running_sums.with_noise(factor, noise, 100.0)
        cells = []
        for step in STEPS:
            memory = tuple(np.zeros(DIMENSION) for _ in range(factor.remembers(step)))
            step_again = partial(sums.release, values, memory, step)
            times = [(seconds(step_again), seconds(noise.sample)) for _ in range(TURNS)]
            least, draw = (min(seconds) for seconds in zip(*times, strict=True))
            cells.append(f" {len(memory)} | {least / draw:.2f} |")
        print(f"| {name} |" + "".join(cells))


if __name__ == "__main__":
    main()
