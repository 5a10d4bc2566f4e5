"""The description of a kind of learner. Each file here that makes models exports one `FAMILY`; `registry` lists all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from service.inputs.registry import Family, S

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.learning.linear import Linear, LinearModelLearner
    from service.learning.optimization.losses import Floats
    from service.learning.records import Records
    from service.privacy.currency import Currency


class HistogramLearner(Protocol):
    """Makes a histogram of categories of a data set, whatever was made before."""

    @property
    def kind(self) -> str: ...
    @property
    def cardinality(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def same_everywhere(self) -> bool:
        """Return whether a fit is perturbed alike near every centre, so that a plan can state it for all fits."""

    def describe(self) -> dict[str, Any]:
        """Return the learner's description as JSON, for plans and releases."""

    @property
    def numbers(self) -> int:
        """Return how many numbers a fit holds at once beside its records, at most."""

    @property
    def products(self) -> int:
        """Return how many products a fit computes beside those with its records, or takes as long for, at most."""

    def error_bound(self, scale: float) -> float:
        """Return how far off answers from a release whose noise has that scale are at most, with high probability."""

    def perturbation(self, currency: Currency, charge: float, records: int, center: Floats | None = None) -> Any:
        """Return how a fit of n = `records` slots spends at most `charge`."""

    def release(self, records: Records, n: int, center: Floats, perturbation: Any) -> Floats:
        """Return a histogram of n slots, float64 of `shape`, so perturbed: it may be released."""


@dataclass(frozen=True, kw_only=True)
class LearnerFamily(Family[S]):
    """The description of a kind of learner.

    `accuracy_setting` is the field that is refused where double precision is too coarse for a fit. `exact_with_delta`:
    with a delta its noise is Gaussian or of whole numbers, and so exact (`noise.sampler_distance`).
    """

    accuracy_setting: str
    exact_with_delta: bool = True
    has_weights: ClassVar[bool]
    """Whether noise is added to weights: then a delta makes it shorter where there are many."""


@dataclass(frozen=True, kw_only=True)
class LinearFamily(LearnerFamily[S]):
    """A kind of learner of linear models.

    `build` makes the learner from the stream's linear model, the settings and the kind of guarantee; it may raise
    Refused. `needs_delta`: why it has no pure guarantee; None: it has one. `regressions`: it takes the squared loss.
    """

    build: Callable[[Linear, S, Currency], LinearModelLearner]
    needs_delta: str | None = None
    regressions: bool = True
    has_weights: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class HistogramFamily(LearnerFamily[S]):
    """A kind of learner of histograms. `build` makes it from the number of categories and the settings."""

    build: Callable[[int, S], HistogramLearner]
    has_weights: ClassVar[bool] = False
