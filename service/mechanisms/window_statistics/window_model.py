"""The model of the last W blocks, solved from their noisy statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from service.mechanisms.sufficient_statistics import Statistics, deviation, spreads
from service.privacy.currency import Currency
from service.privacy.noise.correlated import Blt

if TYPE_CHECKING:
    from service.learning.optimization.losses import Floats
    from service.learning.records import Records
    from service.privacy.accounting.events import NoisyStatistics
    from service.privacy.noise.correlated import Factor

State = tuple["Floats", ...]
"""The estimates of the last blocks, W - 1 at most, oldest first; then what `correlated` remembers, which is secret."""


@dataclass(frozen=True, kw_only=True)
class WindowModel(Statistics):
    """A model of the last W blocks, and candidates of the same estimates. `blocks` is W."""

    blocks: int
    candidates: tuple[WindowModel, ...] = ()
    """Models of at most W blocks each, with other pulls."""

    @property
    def most_remembered(self) -> int:
        """Return how many numbers a step leaves for the next one, at most."""
        return (self.blocks + self.factor(Currency.ZCDP).remembers(1)) * (self.entries + 1)

    @property
    def solutions(self) -> int:
        """Return how many models a step solves for."""
        return 1 + len(self.candidates)

    def factor(self, currency: Currency) -> Factor:
        """Return how later blocks cancel earlier noise: nearly the best for sums of W blocks; in pure ε not at all."""
        if currency is Currency.PURE or self.blocks == 1:
            return super().factor(currency)
        return Blt.decaying(1.0 - 1.0 / self.blocks)

    def pull(self, perturbation: NoisyStatistics, slots: int, step: int) -> float:
        """Return α after block number `step`, the window having so many slots."""
        noise = deviation(perturbation.noise) * _spread(perturbation.factor, self.blocks, step)
        return self.strength(noise / perturbation.weights.second, slots)

    def remembers(self, perturbation: NoisyStatistics, step: int) -> int:
        """Return the number of arrays in the state before that step."""
        return min(step, self.blocks - 1) + perturbation.factor.remembers(perturbation.place(step))

    def advance(
        self, state: State, records: Records, n: int, origin: Floats, perturbation: NoisyStatistics, step: int
    ) -> tuple[State, tuple[Floats, ...]]:
        """Return the state after block number `step`, the model of the window that ends with it, and the candidates'.

        The models may be released for the records' charge. records: those present among the n slots of the block. State
        and release are kept together or lost together.
        """
        older = min(step, self.blocks - 1)
        estimate, memory = perturbation.sums.release(
            self.statistics(records, n), state[older:], perturbation.place(step)
        )
        if (
            records.units is not None
        ):  # the number of units is stored with the estimate, since it differs between blocks
            estimate = np.append(estimate, records.units)
        window = (*state[:older], estimate)
        models = tuple(candidate.model(window, n, origin, perturbation, step) for candidate in (self, *self.candidates))
        return (*window[len(window) - min(len(window), self.blocks - 1) :], *memory), models

    def model(self, estimates: State, n: int, origin: Floats, perturbation: NoisyStatistics, step: int) -> Floats:
        """Return the model of the last W estimates, of which that of block number `step` is the newest.

        Post-processing: it reads no record. n: slots of a block; estimates of units end with their number instead.
        """
        window = estimates[-self.blocks :]
        total = np.sum(window, axis=0)
        slots = n * len(window) if len(total) == self.entries else max(1, int(total[-1]))
        return self.solve(total[: self.entries], slots, self.pull(perturbation, slots, step), origin)


def _spread(factor: Factor, blocks: int, step: int) -> float:
    known = spreads(factor, blocks)
    return known[min(step, len(known) - 1)]
