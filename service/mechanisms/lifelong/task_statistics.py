"""A model of tasks that come one after another, from private statistics that are remembered instead of records.

Statement. Private: the records, each of which is in one batch of a task. Neighbours: R⊥. Each batch's statistics
of `mechanisms.sufficient_statistics` are released once, with noise of their own, for the records' whole charge, and the
records are not read again. Everything else here is computed from such estimates and public numbers: any number of
steps, tasks and releases costs nothing more. (L2DP-C, which paper-audit.md 4.2 puts in the place of paper D's L2DP-ML.)

Memory. Losses below are linear in the statistics, so a task is remembered by the sum of its batches'
estimates, and a sum of tasks by the sum of these: the mean of their losses is the loss of that sum. Without `memory`
one array holds all tasks there ever were. With a `memory` of m tasks it is a fair sample of those that are complete,
by Vitter's Algorithm R with public draws (`remembered`), so that which tasks are in it follows from the number of tasks
alone. A task under way is always there.

Model. With M and V the estimates of the means of φ⊗φ and v⊗φ over some slots, M without its negative
eigenvalues, N = M + (α/h)·1, φ = a record's row of length ≤ 1 with its constant, and (g, h) of `Statistics.expansion`,
an autoencoder θ (p × r) and a classifier W (rows × r) of its codes θᵀφ have the losses
    R(θ) = tr N - 2·tr θᵀNθ + tr θᵀNθθᵀθ,   the mean of ‖φ - θθᵀφ‖², and as if noise of α/h were in φ,
    L(θ, W) = (h/2)·tr WθᵀMθWᵀ - gh·tr WθᵀVᵀ + (α/2)·‖W‖²,
the second-order expansion at zero of the mean of the losses of Wθᵀφ. The release is Wθᵀ, a linear model of φ.
(Without that α/h in N, θ could grow for ever where M is nothing but noise, and W with it. On MNIST's
digits, two after two, a pull on Wθᵀ and codes made orthogonal after every step forgot two and ten times as much: what
losses have in common hides where they conflict.)

 - `joint`: the minimisers, of all that is remembered: θ has the r eigenvectors of M with the largest eigenvalues
   (Eckart and Young), which are all of them unless `hidden` says how many, and W is solved for.
 - `agem`: (θ, W) is carried on from release to release by `epochs` steps after every batch, along
       g = ∇(R + L) of the task under way, and where g·g_ref < 0 and ‖g_ref‖ > 0 along
       g - (g·g_ref/‖g_ref‖²)·g_ref,   g_ref = ∇(R + L) of all older tasks remembered (A-GEM, Chaudhry et al. 2019);
   the first θ is that of `joint`, the first W zero. A step is as long as an eighth of 1/(the largest eigenvalue).

`heads`: with one per task, a release has for every task remembered a model of its own, solved from its statistics and
pulled towards the model that `shared` would be, or towards the origin (`near`), and a row of scores by which a record's
task is told: least squares on codes of the tasks, for which the first moments of each task are all it takes. Both are
linear in φ.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from service.mechanisms.sufficient_statistics import Statistics, deviation, spread
from service.privacy.currency import Currency
from service.privacy.noise.correlated import Blt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from service.learning.optimization.losses import Floats
    from service.learning.records import Records
    from service.privacy.accounting.events import NoisyStatistics
    from service.privacy.noise.correlated import Factor

DECAY = 0.97  # decay of the noise's factor where only the sum of all batches counts
HIDDEN = 64  # the default of r, the codes, for `agem`
STEPS = 100
_SIZES = 2  # each remembered sum ends with two numbers: its slots (or units) and its batches

State = tuple["Floats", ...]
"""The memory of older tasks, oldest first, then of the task under way, then θ and W of `agem`; where only the sum of
all batches counts, that sum, then the memory of `correlated`. As secret as the records."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a batch, counted from 0: its number, its task, its number in the task, and its records."""

    number: int
    task: int
    batch: int
    batches: int
    start: int
    end: int

    @property
    def last(self) -> bool:
        """Return whether its task ends with it."""
        return self.batch == self.batches - 1


class _Means(NamedTuple):
    """M, V and α/h."""

    second: Floats
    labels: Floats
    pulled: float


@dataclass(frozen=True, kw_only=True)
class TaskStatistics(Statistics):
    """The learner of the module docstring."""

    training: Literal["joint", "agem"] = "joint"
    heads: Literal["shared", "per_task"] = "shared"
    near: Literal["shared", "origin"] = "shared"
    memory: int | None = None
    hidden: int | None = None
    epochs: tuple[int, ...] = (STEPS,)
    """of each of the first tasks, the last one of all that follow"""

    def __post_init__(self) -> None:
        if self.heads == "per_task" and not (self.memory and self.intercept and self.training == "joint"):
            raise ValueError("heads of tasks need a memory, an intercept and joint training")

    def describe(self, origin: Floats) -> dict[str, Any]:
        """Return the statistics and the training as JSON, for a plan."""
        learned = {"training": self.training, "heads": self.heads, "hidden": self.codes}
        return super().describe(origin) | learned

    @property
    def adds_up(self) -> bool:
        """Return whether all that is ever used of the estimates is the sum of all."""
        return self.training == "joint" and self.heads == "shared" and self.memory is None

    @property
    def codes(self) -> int:
        """Return r, the number of codes of the autoencoder."""
        columns = self.shape[1]
        return min(columns, self.hidden or (HIDDEN if self.training == "agem" else columns))

    @property
    def most_remembered(self) -> int:
        """Return how many numbers a step leaves for the next one, at most."""
        more = self.factor(Currency.ZCDP).remembers(1) if self.adds_up else (self.memory or 1)
        model = sum(self.shape) * self.codes if self.training == "agem" else 0
        return (1 + more) * (self.entries + _SIZES) + model

    @property
    def solutions(self) -> int:
        """Return how many matrices a step decomposes, or as much other work: one per task, and for models and scores.

        A step of `agem` multiplies matrices of two sums by r codes, twice.
        """
        if self.training == "agem":
            return 5 + -(-4 * max(self.epochs) * self.codes // self.shape[1])
        return (self.memory or 1) + 3 if self.heads == "per_task" else 1

    def factor(self, currency: Currency) -> Factor:
        """Return how later batches cancel earlier noise: as for running sums where only the sum counts, else not."""
        return Blt.decaying(DECAY) if self.adds_up and currency is Currency.ZCDP else super().factor(currency)

    def perturbation(
        self, currency: Currency, charge: float, records: int, center: Floats | None = None
    ) -> NoisyStatistics:
        """Return how a batch of n = `records` slots spends at most `charge`. Public. May raise Inaccurate."""
        noisy = super().perturbation(currency, charge, records, center)
        return replace(noisy, rows=self.shape[0]) if self.heads == "per_task" else noisy

    def remembers(self, perturbation: NoisyStatistics, place: Place) -> int:
        """Return the number of arrays in the state before that batch."""
        if self.adds_up:
            return min(place.number, 1) + perturbation.factor.remembers(perturbation.place(place.number))
        older = min(place.task, self.memory or 1)
        return older + min(place.batch, 1) + (2 if self.training == "agem" and place.number else 0)

    def advance(
        self, state: State, records: Records, n: int, origin: Floats, perturbation: NoisyStatistics, place: Place
    ) -> tuple[State, Floats]:
        """Return the state after that batch, and a model that may be released for the records' charge.

        records: those present among the n slots of the batch. State and release are kept together or lost together.
        With units, the number of units takes the place of n in all that is learnt.
        """
        known = min(place.number, 1) if self.adds_up else 0
        estimate, noises = perturbation.sums.release(
            self.statistics(records, n), state[known:] if self.adds_up else (), perturbation.place(place.number)
        )
        latest = np.concatenate((estimate, (float(n if records.units is None else records.units), 1.0)))
        if self.adds_up:
            total = sum(state[:known], start=latest)
            return (total, *noises), self._joint(total, origin, perturbation)
        tasks, model = (state[:-2], state[-2:]) if self.training == "agem" and place.number else (state, ())
        older, begun = (tasks[:-1], tasks[-1:]) if place.batch else (tasks, ())
        latest = sum(begun, start=latest)
        if self.training == "agem":
            model = self._descend(model, older, latest, self._epochs(place.task), perturbation)
            released = model[1] @ model[0].T / self.norm_bound * self.turned
        elif self.heads == "per_task":
            released = self._per_task((*older, latest), origin, perturbation)
        else:
            released = self._joint(sum(older, start=latest), origin, perturbation)
        return (*self._memory(older, latest, place), *model), released

    def pull(self, perturbation: NoisyStatistics, slots: int, batches: int) -> float:
        """Return α for the sum of that many batches, with that many slots together."""
        noise = deviation(perturbation.noise) * spread(perturbation.factor, batches) / perturbation.weights.second
        return self.strength(noise, slots)

    def _joint(self, total: Floats, origin: Floats, perturbation: NoisyStatistics) -> Floats:
        """Return the model of all that is added up in `total`."""
        slots, batches = _sizes(total)
        ridge = self.pull(perturbation, slots, batches)
        return self.solve(total[:-_SIZES], slots, ridge, origin, rank=self.codes)

    def _per_task(self, tasks: Sequence[Floats], origin: Floats, perturbation: NoisyStatistics) -> Floats:
        """Return the tasks' models, one below the other, and below them each task's scores: see the module."""
        total = sum(tasks[1:], start=tasks[0])
        center = self._joint(total, origin, perturbation) if self.near == "shared" else origin
        models = [self._joint(task, center, perturbation) for task in tasks]
        slots, batches = _sizes(total)
        second, _ = self.sums(total[:-_SIZES], slots)
        firsts = np.array([self.sums(task[:-_SIZES], _sizes(task)[0])[0][-1] for task in tasks])
        codes = firsts - firsts.mean(axis=0)
        scores = self.minimiser(second, codes, slots, self.pull(perturbation, slots, batches), 0.0 * codes, self.codes)
        return np.vstack((*models, scores))

    def _memory(self, older: Sequence[Floats], latest: Floats, place: Place) -> Sequence[Floats]:
        """Return the remembered sums of tasks, the latest last."""
        if not place.last or not older:
            return (*older, latest)
        if self.memory is None:
            return (sum(older, start=latest),)
        if len(older) < self.memory:
            return (*older, latest)
        left = forgotten(place.task)
        return tuple(older) if left >= self.memory else (*older[:left], *older[left + 1 :], latest)

    def _descend(
        self, model: State, older: Sequence[Floats], latest: Floats, epochs: int, perturbation: NoisyStatistics
    ) -> State:
        """Return (θ, W) after that many steps along the losses of the latest task, not against those of older ones."""
        means = self._means(latest, perturbation)
        remembered = self._means(sum(older[1:], start=older[0]), perturbation) if older else None
        if model:
            encoder, classifier = model
        else:
            _, vectors = np.linalg.eigh(means.second)
            encoder, classifier = vectors[:, -self.codes :], np.zeros((self.shape[0], self.codes))
        _, curvature = self.expansion
        steepest = max(_longest(step.second) + step.pulled for step in (means, remembered) if step is not None)
        for _ in range(epochs):
            gradient = self.gradient(encoder, classifier, means)
            longest, widest = _longest(encoder.T @ encoder), _longest(classifier @ classifier.T)
            rates = (
                0.5 / (steepest * (8.0 * max(1.0, longest) + curvature * widest)),
                0.5 / (curvature * steepest * max(1.0, longest)),
            )
            if remembered is not None:
                gradient = projected(gradient, self.gradient(encoder, classifier, remembered), rates)
            encoder = encoder - rates[0] * gradient[0]
            classifier = classifier - rates[1] * gradient[1]
        return encoder, classifier

    def gradient(self, encoder: Floats, classifier: Floats, means: _Means) -> tuple[Floats, Floats]:
        """Return ∇(R + L) by θ and by W."""
        gain, curvature = self.expansion
        second, labels, pulled = means
        moved = second @ encoder
        raised = moved + pulled * encoder
        reconstructed = 2.0 * (raised @ (encoder.T @ encoder) + encoder @ (encoder.T @ raised)) - 4.0 * raised
        by_score = curvature * (classifier @ moved.T - gain * labels)
        return reconstructed + by_score.T @ classifier, by_score @ encoder + curvature * pulled * classifier

    def _means(self, total: Floats, perturbation: NoisyStatistics) -> _Means:
        slots, batches = _sizes(total)
        second, labels = self.sums(total[:-_SIZES], slots)
        values, vectors = np.linalg.eigh(second)
        unit = self.unit / self.norm_bound
        _, curvature = self.expansion
        pulled = self.pull(perturbation, slots, batches) / (self.norm_bound**2 * curvature)
        return _Means(
            second=(vectors * np.maximum(values, 0.0)) @ vectors.T * (unit**2 / slots),
            labels=labels * (unit / slots),
            pulled=pulled,
        )

    def _epochs(self, task: int) -> int:
        return self.epochs[min(task, len(self.epochs) - 1)]


def projected(
    gradient: tuple[Floats, Floats], reference: tuple[Floats, Floats], rates: tuple[float, float]
) -> tuple[Floats, Floats]:
    """Return the gradient without its part against the reference gradient (A-GEM, equation 11).

    Inner products are those of the parameters divided by the roots of their rates, in which a step is as long for all.
    (The paper's line 11 always projects, and divides by zero where the reference is zero: paper-audit.md 4.)
    """

    def inner(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> float:
        return sum(rate * float(np.vdot(a, b)) for rate, a, b in zip(rates, one, other, strict=True))

    against, square = inner(gradient, reference), inner(reference, reference)
    if not (against < 0.0 < square):
        return gradient
    first, second = (own - against / square * other for own, other in zip(gradient, reference, strict=True))
    return first, second


def forgotten(task: int) -> int:
    """Return which of a full memory makes room for that task, counted from 0, the oldest one first; none if too large.

    A number below task + 1, by the bytes of SHAKE-128("perennial lifelong TASK"), TASK in decimal: public, and as
    good as drawn evenly, so that a memory is a fair sample of all tasks so far (Vitter 1985, Algorithm R).
    """
    drawn = hashlib.shake_128(f"perennial lifelong {task}".encode()).digest(16)
    return int.from_bytes(drawn, "little") % (task + 1)


def _longest(matrix: Floats) -> float:
    """Return the largest eigenvalue of a symmetric matrix."""
    return float(np.linalg.eigvalsh(matrix)[-1])


def _sizes(total: Floats) -> tuple[int, int]:
    """Return how many slots (or units), at least 1, and how many batches a remembered sum is of."""
    slots, batches = total[-_SIZES:]
    return max(1, int(slots)), int(batches)
