"""Schedule × learner × kind of guarantee: models fitted on a public schedule, each released with noise.

Statement. Private: every record of the stream. Neighbours: R⊥, one slot's record replaced or emptied. What is
released: every `Release` of the infinite run, noise and all. Over the whole run, whoever chooses the records
adaptively, one record loses at most `capacity`: an ε (kind PURE, spherical Laplace noise) or a ρ (ZCDP, Gaussian
noise), hence (ε, δ).

Why. A fit reads a range fixed by the schedule alone; its centre is an earlier release, never an exact minimiser, so
given the past its output depends on that range only. What is fitted moves by at most the sensitivity; the noise
scale is rounded up until sensitivity/scale (or sensitivity²/(2·scale²)) ≤ charge; the charge is share·capacity
rounded down; and the shares of the fits that read one record add up to at most 1 in exact arithmetic. The ledger
theorem (mechanisms.md L1) does the rest.

All times and records here are relative to the publication's start; the caller shifts them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from service.learning import feature_maps
from service.learning.learners import OutputPerturbation
from service.learning.losses import LOSSES, HuberHinge, Squared
from service.privacy.loss import Kind, round_down, round_up, zcdp_epsilon

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from service.learning.feature_maps import FeatureMap
    from service.learning.learners import Learner, Perturbation, Perturbed
    from service.learning.losses import Floats, Loss
    from service.learning.records import Records
    from service.mechanisms.configuration import Privacy
    from service.schedules.schedule import Pattern, Role, Schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A released model that later fits may start from."""

    version: int
    parameters: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """A piece of what a mechanism has to remember, written once: values as secret as the records, numbered by age."""

    number: int
    values: Floats


Kept = Model | Part


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """One noisy model. Everything in it is public; ranges are relative to the publication's start."""

    version: int
    role: Role
    time: int
    window: tuple[int, int]
    fit: tuple[int, int]
    parent: int | None
    parameters: Floats
    perturbation: Perturbation
    charge: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one time brought: releases in order, and the chain that the next step starts from, both or neither."""

    releases: tuple[Release, ...]
    chain: tuple[Kept, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearMechanism(ABC):
    """A publication of linear models, made at the times of a schedule."""

    kind: Kind
    capacity: Fraction
    """What one record may lose, in the currency `kind`."""
    privacy: Privacy
    schedule: Schedule
    learner: Perturbed
    origin: Floats
    feature_map: FeatureMap
    """What was done to the records before any fit reads them."""

    def next_time(self, after: int) -> int:
        """Return the first time > after at which something is released."""
        return self.schedule.next_time(after)

    def needs(self, after: int) -> int:
        """Return the oldest record that any step at a time > after may read."""
        return self.schedule.needs(after)

    def declassified(self, time: int) -> int:  # noqa: ARG002 - of most mechanisms, never any
        """Return how many records, the first ones, the release at `time`, or one before it, no longer protects at all.

        time: 0, or one at which something is released. What those records lose is unbounded. It never falls.
        """
        return 0

    def terms(self, time: int) -> dict[str, Any] | None:  # noqa: ARG002 - of most, every step stands for itself
        """Return what the step at `time` must have in common with the one before it, as JSON; None: nothing.

        What a record was charged covers later steps only while they go on as was reckoned with then. Whoever keeps
        what a step left keeps these beside it, and lets no other version of this code go on where it says otherwise.
        """
        return None

    @abstractmethod
    def step(self, time: int, chain: Sequence[Kept], next_version: int, read: Callable[[int, int], Records]) -> Step:
        """Make and release what there is for `time`, in order.

        chain: what the step before returned, () at the start. next_version: of the first release made here.
        read(start, end): the records still present in a range. Raises Inaccurate where double precision cannot
        certify a fit, from public quantities alone. A step is run once: what it returns is published or lost, never
        drawn again.
        """

    def plan(self) -> dict[str, Any]:
        """Return what this publication does to a record and to its models, as JSON: for a person to judge."""
        learner = self.learner
        rows, columns = learner.shape
        lifetime = self.schedule.lifetime()
        return {
            "kind": self.kind.value,
            "guarantee": {
                "neighbours": "one record replaced by any other, or erased",
                "epsilon": _number(self.privacy.epsilon),
                "delta": _number(self.privacy.delta),
                "capacity": float(self.capacity),
                "currency": "epsilon" if self.kind is Kind.PURE else "rho",
            },
            "first_releases": self._first_times(),
            "model": {
                "loss": learner.loss.name,
                **learner.loss.settings(),
                "shape": [rows, columns],
                "dimension": learner.dimension,
                "norm_bound": learner.norm_bound,
                "learner": learner.kind,
                **learner.describe(self.origin),
            },
            "fits": self._fits(),
            "lifetime": {
                "record": lifetime.record,
                **self._loss(lifetime.share),
                "share": str(lifetime.share),
                **({} if lifetime.note is None else {"note": lifetime.note}),
                "parts": [
                    {"what": part.what, "fits": part.fits, "share": str(part.share), **self._loss(part.share)}
                    for part in lifetime.parts
                ],
            },
        }

    def model_description(self) -> dict[str, Any]:
        """Return all it takes to compute a prediction from released parameters, as JSON."""
        learner = self.learner
        rows, columns = learner.shape
        return {
            "kind": "linear",
            "loss": learner.loss.name,
            **learner.loss.settings(),
            "classes": learner.classes or None,
            "features": self.feature_map.input_features,
            "intercept": learner.intercept,
            "norm_bound": learner.norm_bound,
            "feature_map": self.feature_map.description,
            "shape": [rows, columns],
            "dimension": learner.dimension,
            "coordinates": "features, then intercept" if learner.intercept else "features",
        }

    def _first_times(self) -> list[int]:
        times = [0]
        for _ in range(8):
            times.append(self.next_time(times[-1]))
        return times[1:]

    def _charge(self, share: Fraction) -> float:
        return round_down(share * self.capacity)

    def _loss(self, share: Fraction) -> dict[str, float]:
        """Return a share of the capacity in its currency, rounded up, and for ρ the ε that it implies at δ."""
        amount = round_up(share * self.capacity)
        if self.kind is Kind.PURE:
            return {"epsilon": amount}
        delta = round_down(Fraction(self.privacy.delta))
        return {"rho": amount, "epsilon": zcdp_epsilon(amount, delta)}

    def _fits(self) -> list[dict[str, Any]]:
        """Return the kinds of fits as JSON."""
        return [self._pattern(pattern) for pattern in self.schedule.patterns()]

    def _pattern(self, pattern: Pattern) -> dict[str, Any]:
        """Return a kind of fit as JSON. Where a fit is perturbed according to the model it starts from, and that is
        still to be released, nobody can know how yet: at least as near a model of zeros.
        """
        known = pattern.near_origin or self.learner.same_everywhere
        charge = self._charge(pattern.share)
        perturbation = self.learner.perturbation(self.kind, charge, pattern.records, self.origin if known else None)
        noise = noise_told(perturbation)
        sensitivity, scale = noise.pop("sensitivity"), noise["scale"]
        if not known:
            noise |= {"scale": None, "expected_norm": None}
        return {
            "what": pattern.what,
            "when": pattern.when,
            "records": pattern.records,
            "share": str(pattern.share),
            "charge": charge,
            "sensitivity": sensitivity if known else None,
            "noise": noise,
            **({} if known else {"at_least": {"sensitivity": sensitivity, "scale": scale, "why": _GROWS}}),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Scheduled(LinearMechanism):
    """A publication that fits models on a schedule, each from nothing but its records and an earlier release."""

    learner: Learner

    def step(self, time: int, chain: Sequence[Kept], next_version: int, read: Callable[[int, int], Records]) -> Step:
        """Fit and release what the schedule has for `time`, in order."""
        models = [each for each in chain if isinstance(each, Model)]
        releases: list[Release] = []
        for fit in self.schedule.fits(time):
            if len(models) < max(fit.depth, 0 if fit.near is None else fit.near + 1):
                raise ValueError("the chain is too short for this time: steps were left out")
            parent = None if fit.near is None else models[fit.near]
            center = parent.parameters if parent else self.origin
            records = fit.end - fit.start
            charge = self._charge(fit.share)
            perturbation = self.learner.perturbation(self.kind, charge, records, center)
            parameters = self.learner.release(read(fit.start, fit.end), records, center, perturbation)
            model = Model(version=next_version + len(releases), parameters=parameters)
            models[fit.depth :] = [model]
            releases.append(
                Release(
                    version=model.version,
                    role=fit.role,
                    time=time,
                    window=fit.window,
                    fit=(fit.start, fit.end),
                    parent=parent.version if parent else None,
                    parameters=model.parameters,
                    perturbation=perturbation,
                    charge=charge,
                )
            )
        return Step(releases=tuple(releases), chain=tuple(models))


def noise_told(perturbation: Perturbation) -> dict[str, Any]:
    """Return a perturbation as a plan tells it."""
    noise = perturbation.noise
    return perturbation.described() | {"expected_norm": noise.expected_norm(), "slack": noise.slack}


_GROWS = (
    "the sensitivity is proportional to norm_bound·‖c‖ + bound, c being the released model that the fit is kept near; "
    "these are the figures for c = 0"
)


def predict(description: Mapping[str, Any], parameters: Floats, x: NDArray[Any]) -> tuple[NDArray[np.generic], Floats]:
    """Return (labels, scores) for x of shape (m, features).

    | loss | labels (m,) | scores |
    |---|---|---|
    | logistic, softmax | the likeliest class | (m, classes): the probability of each class |
    | huber_hinge | the class of the largest margin | (m, classes): the margin of each class |
    | squared | the predicted y, clipped to ±bound | (m, 1): the predicted y as it is |

    description: a `model_description`. The record map of training is applied first: the feature map, clipping to the
    norm bound, then the intercept. Scores of a record that the feature map takes out of the range of float32 are NaN.
    Post-processing of a release: it costs nothing.
    """
    feature_map = feature_maps.build(description["feature_map"], description["features"])
    loss: Loss = LOSSES[description["loss"]]
    if isinstance(loss, HuberHinge):
        loss = HuberHinge(width=description["huber_width"])
    elif isinstance(loss, Squared):
        loss = Squared(bound=description["bound"])
    learner = OutputPerturbation(
        loss=loss,
        regularization=1.0,
        intercept=description["intercept"],
        norm_bound=description["norm_bound"],
        features=feature_map.features,
        classes=description["classes"] or 0,
    )
    mapped = feature_map(x)
    labels, scores = learner.predict(np.asarray(parameters, dtype=np.float64).reshape(learner.shape), mapped)
    return labels, np.where(np.isfinite(mapped).all(axis=1)[:, None], scores, np.nan)


def _number(value: Any) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)
