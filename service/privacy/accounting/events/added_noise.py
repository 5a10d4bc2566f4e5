"""Events in which noise was added to what the records give: to weights, to sums of gradients, to statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from service.privacy import sampling
from service.privacy.accounting.events.event import (
    Noise,
    PrivacyEvent,
    cost_of_noise,
    count,
    in_currency,
    noise_from_json,
    noise_to_json,
    positive,
)
from service.privacy.currency import Currency
from service.privacy.noise import running_sums, selection
from service.privacy.sensitivity import StatisticsWeights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from service.privacy.noise import correlated
    from service.privacy.noise.correlated import Correlated
    from service.privacy.noise.running_sums import Factor
    from service.privacy.noise.window_tree import Windowed


@dataclass(frozen=True, kw_only=True)
class AddedNoise(PrivacyEvent):
    """`noise` was added to values that one record moves by at most `sensitivity` in L2 norm, under R⊥."""

    noise: Noise
    sensitivity: float

    @property
    def draws(self) -> int:
        """Return 1 where the noise is nearly exact, else 0."""
        return int(self.noise.slack > 0.0)

    def dimension(self, shape: Sequence[int]) -> int:
        """Return one coordinate for each parameter."""
        return math.prod(shape)

    def to_json(self) -> dict[str, Any]:
        """Return the noise, its scale, the sensitivity and the number of coordinates."""
        return noise_to_json(self.noise, self.sensitivity) | {"added_to": self.added_to}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the event that JSON states."""
        return cls(**cls._fields(content))

    @classmethod
    def _fields(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        return {"noise": noise_from_json(content), "sensitivity": positive(content, "sensitivity")}

    def _cost(self, currency: Currency, records: int) -> Fraction:  # noqa: ARG002
        return cost_of_noise(currency, self.noise, self.sensitivity)


@dataclass(frozen=True, kw_only=True)
class NoisyWeights(AddedNoise):
    """`noise` was added to fitted weights."""

    added_to: ClassVar[str] = "weights"


@dataclass(frozen=True, kw_only=True)
class NoisySampledWeights(AddedNoise):
    """`noise` was added to weights that were fitted to a secret sample of the slots that are charged.

    One record moves the weights of a sample that it is in by at most `sensitivity`. The noise is that of pure ε.
    """

    added_to: ClassVar[str] = "sampled_weights"
    sample: int
    """h, how many of the slots were drawn, and divided by (`privacy.sampling`)"""

    def to_json(self) -> dict[str, Any]:
        """Return the noise and the size of the sample."""
        return super().to_json() | {"sample": self.sample}

    @classmethod
    def _fields(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        return super()._fields(content) | {"sample": count(content, "sample")}

    def _cost(self, currency: Currency, records: int) -> Fraction:
        of_sample = cost_of_noise(Currency.PURE, self.noise, self.sensitivity)
        return currency.worth(sampling.cost_of_sample(of_sample, self.sample, records))


@dataclass(frozen=True, kw_only=True)
class NoisyGradientSums(AddedNoise):
    """`noise` was added to each of `steps` sums, which one record moves by at most `sensitivity`."""

    added_to: ClassVar[str] = "gradient_sums"
    steps: int

    @property
    def draws(self) -> int:
        """Return `steps` where the noise is nearly exact, else 0."""
        return self.steps * super().draws

    def to_json(self) -> dict[str, Any]:
        """Return the noise and the number of steps."""
        return super().to_json() | {"steps": self.steps}

    @classmethod
    def _fields(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        return super()._fields(content) | {"steps": count(content, "steps")}

    def _cost(self, currency: Currency, records: int) -> Fraction:
        return self.steps * super()._cost(currency, records)


@dataclass(frozen=True, kw_only=True)
class NoisyDisjointGradientSums(AddedNoise):
    """`noise` was added to the sum of each batch, which one record of that batch moves by at most `sensitivity`."""

    added_to: ClassVar[str] = "disjoint_gradient_sums"


@dataclass(frozen=True, kw_only=True)
class NoisyRunningSums(AddedNoise):
    """`noise` is drawn at every step of a run; later steps cancel a part of it, given by `factor`."""

    added_to: ClassVar[str] = "running_sums"
    factor: Factor
    largest: float
    """a public bound on the norm of what the noise is added to"""

    @property
    def sums(self) -> Correlated | Windowed:
        """Return what releases the steps of the run."""
        return running_sums.with_noise(self.factor, self.noise, self.largest)

    def place(self, step: int) -> int:
        """Return the number of a step in its run."""
        return step if self.factor.steps is None else step % self.factor.steps

    @property
    def draws(self) -> int:
        """Return the draws of the record's own step and of all later ones that depend on it."""
        return super().draws * running_sums.moved_draws(self.factor)

    def to_json(self) -> dict[str, Any]:
        """Return the noise, the factor and the bound."""
        return super().to_json() | {"factor": self.factor.described(), "largest": self.largest}

    @classmethod
    def _fields(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        factor = running_sums.of(content["factor"])
        return super()._fields(content) | {"factor": factor, "largest": positive(content, "largest")}

    def _cost(self, currency: Currency, records: int) -> Fraction:  # noqa: ARG002
        return in_currency(currency, self.noise, self.sums.charge(self.sensitivity))


@dataclass(frozen=True, kw_only=True)
class NoisyStatistics(NoisyRunningSums):
    """`noise` is drawn for every block's statistics, which are multiplied by `weights` before."""

    added_to: ClassVar[str] = "statistics"
    factor: correlated.Factor
    weights: StatisticsWeights
    rows: int | None = None
    """of labels in the statistics, where what is released has another number of rows"""

    def dimension(self, shape: Sequence[int]) -> int:
        """Return the number of statistics: each second moment but the number of records, and each moment with a label.

        There are as many of these as rows, unless `rows` says otherwise: see `mechanisms.sufficient_statistics`.
        """
        rows, columns = shape
        labels = (self.rows or rows) * columns
        return columns * (columns + 1) // 2 - bool(self.weights.count) + labels

    def to_json(self) -> dict[str, Any]:
        """Return the noise, the factor, the bound, the weights and, if it differs, the number of rows."""
        rows = {} if self.rows is None else {"rows": self.rows}
        return super().to_json() | {"weights": self.weights.to_json()} | rows

    @classmethod
    def _fields(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        weights = StatisticsWeights(**{name: positive(content["weights"], name) for name in content["weights"]})
        rows = count(content, "rows") if "rows" in content else None
        return super()._fields(content) | {"weights": weights, "rows": rows}


@dataclass(frozen=True, kw_only=True)
class NoisySecondMoments(AddedNoise):
    """`noise` was added to a sum of a⊗a: to the triangle on and above its diagonal, with √2 off it."""

    added_to: ClassVar[str] = "second_moments"

    def dimension(self, shape: Sequence[int]) -> int:
        """Return the number of entries of the triangle."""
        columns = shape[-1]
        return columns * (columns + 1) // 2


@dataclass(frozen=True, kw_only=True)
class NoisySelectedGradients(AddedNoise):
    """`noise` was added to the sum of a batch's gradients; `selection` had decided which records are in the batch."""

    added_to: ClassVar[str] = "selected_gradients"
    selection: selection.Selection

    def to_json(self) -> dict[str, Any]:
        """Return the noise and the coin."""
        return super().to_json() | {"selection": self.selection.described()}

    @classmethod
    def _fields(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        coin = content["selection"]
        numbers = {name: positive(coin, name) for name in coin if name != "law"}
        return super()._fields(content) | {"selection": selection.of(dict(coin) | numbers)}

    def _cost(self, currency: Currency, records: int) -> Fraction:
        return currency.worth(self.selection.loss()) + super()._cost(currency, records)
