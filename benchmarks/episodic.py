"""The lines beside paper D's: A-GEM without privacy, and NaiveGaussian, with a network of one hidden layer.

Tasks are learnt in one pass each, over batches; of each task one batch of records is remembered, as they are, and steps
are projected by the gradient of a batch of these where they go against it (A-GEM: Chaudhry et al. 2019, equation 11).

NaiveGaussian (paper D, section 3: Desai et al. 2021) is A-GEM with DP-SGD: of every record's gradient at most `clip`
is taken, of a batch drawn by Poisson sampling, and Gaussian noise is added to the sum; of the task's records for g and
of all remembered ones for g_ref. All ε_D and ε_M add up over the tasks (its Theorem 1), and so do the δ: with m tasks,
known in advance, each of the 2m - 1 gets an equal part. The moments accountant is that of Mironov et al. 2019, eq. 3.
Neighbours: a record more or less in either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
ORDERS: tuple[int, ...] = (*range(2, 65), 80, 96, *(2**e for e in range(7, 15)))  # orders: a small ε needs large ones


@dataclass(frozen=True, eq=False)
class Network:
    """Rows of `features`, a hidden layer of ReLU and scores of `classes`; all parameters in one vector."""

    features: int
    hidden: int
    classes: int
    parameters: Floats

    @classmethod
    def fresh(cls, features: int, hidden: int, classes: int, random: np.random.Generator) -> Network:
        """Return a network with He's random initial weights."""
        first = random.normal(0, math.sqrt(2 / features), (features + 1) * hidden)
        second = random.normal(0, math.sqrt(1 / hidden), (hidden + 1) * classes)
        return cls(features, hidden, classes, np.concatenate((first, second)).astype(np.float32))

    def layers(self, vector: Floats) -> tuple[Floats, Floats]:
        """Return a vector of all parameters as (features + 1, hidden) and (hidden + 1, classes): biases last."""
        first = (self.features + 1) * self.hidden
        return vector[:first].reshape(-1, self.hidden), vector[first:].reshape(-1, self.classes)

    def predict(self, x: Floats) -> Labels:
        return np.asarray(self._forward(x)[1].argmax(axis=1), dtype=np.int64)

    def gradient(self, x: Floats, y: Labels, clip: float = math.inf) -> Floats:
        """Return the sum of the gradients of all records' cross-entropies, each cut to a length of `clip`."""
        hidden, scores = self._forward(x)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        after = odds / odds.sum(axis=1, keepdims=True)
        after[np.arange(len(y)), y] -= 1
        before = after @ self.layers(self.parameters)[1][:-1].T * (hidden > 0)
        if clip < math.inf:
            square = (_squares(x) + 1) * _squares(before) + (_squares(hidden) + 1) * _squares(after)
            shrinkage = np.minimum(1, clip / np.sqrt(np.maximum(square, 1e-30)))[:, None]
            after, before = after * shrinkage, before * shrinkage
        total = np.empty_like(self.parameters)
        first, second = self.layers(total)
        first[:-1], first[-1] = x.T @ before, before.sum(axis=0)
        second[:-1], second[-1] = hidden.T @ after, after.sum(axis=0)
        return total

    def moved(self, by: Floats) -> Network:
        return replace(self, parameters=self.parameters - by)

    def _forward(self, x: Floats) -> tuple[Floats, Floats]:
        first, second = self.layers(self.parameters)
        hidden = np.maximum(x @ first[:-1] + first[-1], 0)
        return hidden, hidden @ second[:-1] + second[-1]


def _squares(rows: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def projected(gradient: Floats, reference: Floats) -> Floats:
    """Return the gradient without its part against the reference gradient (A-GEM, equation 11)."""
    against, square = float(gradient @ reference), float(reference @ reference)
    return gradient - np.float32(against / square) * reference if against < 0 < square else gradient


Task = tuple[Floats, Labels]


@dataclass(frozen=True, kw_only=True)
class Episodic:
    """A-GEM: `batch` records a step, and so many are remembered of each task."""

    rate: float
    batch: int = 64
    memory: int = 256

    def learn(self, network: Network, tasks: Iterable[Task], random: np.random.Generator) -> Iterator[Network]:
        """Yield the network after every task."""
        remembered: list[Task] = []
        for x, y in tasks:
            order = random.permutation(len(y))
            older = _joined(remembered)
            for start in range(0, len(y) - self.batch + 1, self.batch):
                network = network.moved(
                    self.rate * self.step(network, (x, y), order[start:][: self.batch], older, random)
                )
            remembered.append((x[order[: self.memory]], y[order[: self.memory]]))
            yield network

    def step(
        self, network: Network, task: Task, which: Labels, older: Task | None, random: np.random.Generator
    ) -> Floats:
        """Return the mean gradient of these records, projected."""
        gradient = network.gradient(task[0][which], task[1][which]) / np.float32(len(which))
        if older is None:
            return gradient
        few = random.integers(len(older[1]), size=self.batch)
        return projected(gradient, network.gradient(older[0][few], older[1][few]))


def _joined(tasks: list[Task]) -> Task | None:
    return (np.concatenate([x for x, _ in tasks]), np.concatenate([y for _, y in tasks])) if tasks else None


@dataclass(frozen=True, kw_only=True)
class NaiveGaussian:
    """NaiveGaussian: noisy steps, (ε, δ) for all `tasks` together, `steps` in each task."""

    epsilon: float
    delta: float
    tasks: int
    steps: int
    rate: float
    clip: float = 0.01
    batch: int = 256
    memory: int = 256

    def learn(self, network: Network, tasks: Iterable[Task], random: np.random.Generator) -> Iterator[Network]:
        """Yield the network after every task."""
        remembered: list[Task] = []
        for x, y in tasks:
            older = _joined(remembered)
            for _ in range(self.steps):
                gradient = self._noisy(network, (x, y), random)
                if older is not None:
                    gradient = projected(gradient, self._noisy(network, older, random))
                network = network.moved(self.rate * gradient)
            sample = random.permutation(len(y))[: self.memory]
            remembered.append((x[sample], y[sample]))
            yield network

    def multiplier(self, records: int) -> float:
        """Return z, of the noise for that many records."""
        parts = 2 * self.tasks - 1
        share = min(1.0, self.batch / records)
        return noise_multiplier(share, self.steps, self.epsilon / parts, self.delta / parts)

    def _noisy(self, network: Network, task: Task, random: np.random.Generator) -> Floats:
        """Return a noisy mean gradient of a sample, in units of `clip`."""
        x, y = task
        share = min(1.0, self.batch / len(y))
        which = random.random(len(y)) < share
        total = network.gradient(x[which], y[which], self.clip) / np.float32(self.clip)
        noise = random.standard_normal(len(total), dtype=np.float32) * np.float32(self.multiplier(len(y)))
        return np.asarray((total + noise) / np.float32(share * len(y)))


def renyi(share: float, multiplier: float, order: int) -> float:
    """Return the Rényi divergence, of a whole order, of a Gaussian's sum over records each drawn with that chance."""
    k = np.arange(order + 1)
    ways = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
    chances = special.xlogy(k, share) + special.xlog1py(order - k, -share)
    return float(special.logsumexp(ways + chances + (k * k - k) / (2 * multiplier**2)) / (order - 1))


def spent(share: float, multiplier: float, steps: int, delta: float) -> float:
    """Return ε by the moments accountant."""
    return min(
        steps * renyi(share, multiplier, order)
        + math.log1p(-1 / order)
        - (math.log(delta) + math.log(order)) / (order - 1)
        for order in ORDERS
    )


@lru_cache(maxsize=64)
def noise_multiplier(share: float, steps: int, epsilon: float, delta: float) -> float:
    """Return the least z, within a thousandth, for which so many steps spend at most ε."""
    low, high = 0.1, 1.0
    while spent(share, high, steps, delta) > epsilon:
        low, high = high, 2 * high
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(share, middle, steps, delta) > epsilon else (low, middle)
    return high
