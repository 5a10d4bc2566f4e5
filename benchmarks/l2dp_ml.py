"""Paper D's Algorithms 1 and 2 (L2DP-ML) as printed. NOT private, whatever they claim: `paper_d_attack` shows it.

Noise is drawn once, for all records, steps and tasks (lines 1 and 2): x̄ = x + χ₁/λ, h = θ₁ᵀx̄ clipped to ±1, h̄ = h +
2χ₂/λ, and χ₃ beside the sums of the output layer. A step's gradients are sums over a batch of λ records (text below
eq. 13, eq. 12):
    ∇θ₁ = Σ (½ - x̄)⊗h̄,    ∇W_k = Σ h̄·(½ - y_k + ¼⟨h̄, W_k⟩) + χ₃,
and from the second task on their projection by those of a batch of the memory (line 15), always, as printed.
Algorithm 1 is Algorithm 2 with one batch a task, λ = |D|: one step a task, and the memory holds whole data sets.

Where the paper is silent: the network behind the autoencoder is the smallest there can be, its output layer; start
and rates are arguments. Not followed: the signs of eq. 9 and 12, with which W would go to infinity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Records x, (λ, d) in [-1, 1], and their labels y, (λ,)."""

    x: Floats
    y: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Parameters:
    """θ₁, (d, |h₁|), and W, (K, |h₁|); or a gradient of them."""

    encoder: Floats
    weights: Floats

    def plus(self, factor: float, other: Parameters) -> Parameters:
        return Parameters(encoder=self.encoder + factor * other.encoder, weights=self.weights + factor * other.weights)

    def dot(self, other: Parameters) -> float:
        return float(np.vdot(self.encoder, other.encoder) + np.vdot(self.weights, other.weights))


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise:
    """χ₁/λ of the inputs, 2χ₂/λ of the hidden layer and χ₃ of the sums: one draw of each, for ever."""

    inputs: Floats
    hidden: Floats
    sums: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Printed:
    """The algorithm; `size` is λ, `epsilon` the whole ε₁ + ε₁/γ_x + ε₁/γ + ε₂ that Theorem 2 claims, with ε₂ = ε₁."""

    start: Parameters
    size: int
    epsilon: float
    rate: float

    def first_epsilon(self) -> float:
        """Return ε₁ = ε₂; γ_x = Δ_R/λ, γ = 2Δ_R/(λ·‖θ₁‖₁,₁)."""
        longest = float(np.abs(self.start.encoder).sum(axis=0).max())
        return self.epsilon / (2 + self.size * (1 + longest / 2) / self._sensitivity)

    def draw(self, random: np.random.Generator) -> Noise:
        """Return the noise of lines 1 and 2."""
        epsilon = self.first_epsilon()
        features, hidden = self.start.encoder.shape
        return Noise(
            inputs=random.laplace(0, self._sensitivity / epsilon / self.size, (features,)),
            hidden=2 * random.laplace(0, self._sensitivity / epsilon / self.size, (hidden,)),
            sums=random.laplace(0, 2 * hidden / epsilon, (hidden,)),
        )

    def gradient(self, at: Parameters, batch: Batch, noise: Noise) -> Parameters:
        """Return ∇(R̄ + L̄) of a batch."""
        x = batch.x + noise.inputs
        hidden = np.clip(x @ at.encoder, -1, 1) + noise.hidden
        own = batch.y[:, None] == np.arange(len(at.weights))
        return Parameters(
            encoder=(0.5 - x).T @ hidden,
            weights=(0.5 - own + hidden @ at.weights.T / 4).T @ hidden + noise.sums,
        )

    def learn(
        self, tasks: Sequence[Sequence[Batch]], noise: Noise, random: np.random.Generator, epochs: int = 1
    ) -> Iterator[Parameters]:
        """Release the parameters after every task. tasks: their batches, of λ records each."""
        at, memory = self.start, list[Batch]()
        for batches in tasks:
            for _ in range(epochs):
                for batch in batches:
                    gradient = self.gradient(at, batch, noise)
                    if memory:
                        reference = self.gradient(at, memory[int(random.integers(len(memory)))], noise)
                        gradient = gradient.plus(-gradient.dot(reference) / reference.dot(reference), reference)
                    at = at.plus(-self.rate, gradient)
            memory.append(batches[int(random.integers(len(batches)))])
            yield at

    @property
    def _sensitivity(self) -> float:
        """Return Δ_R = d(|h₁| + 2), as printed."""
        features, hidden = self.start.encoder.shape
        return float(features * (hidden + 2))
