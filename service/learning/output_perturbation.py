"""Output perturbation: minimise the objective, then add noise to the minimiser.

How strong the pull α is where `score_noise` s says so; all of it public.
 - A minimiser moves by 2L/(αn). Noise for that has a spread q per coordinate for each unit of it: 1/√(2ρ), or √D/ε in
   pure currency. In the score of a row of norm R the noise has a spread of σ = R·q·2L/(αn): it falls as 1/α.
 - Where α is far above the curvature of the loss, the minimiser is c - (mean gradient)/α: its scores fall as 1/α too,
   and more pull gains nothing. Where α is far below, the scores stay, and less pull only adds noise. So α should be as
   small as the noise allows, and for a fit's own n and charge
       α = max(LEAST·β, 2L·R·q/(n·s)):
   noise of s logits. Scores of a useful model are a logit and more, so noise of SCORE_NOISE, the default, changes few
   of its labels, and accuracy hardly differs between half and one and a half times that (benchmarks/README.md).
 - LEAST keeps fits short that nearly need no noise: β, the smoothness of the loss, is at most 1/LEAST times α.
 - L of the squared loss falls as α grows, no faster than 1/√α. So each time that L is put into the formula, ln α comes
   at least twice as near to where it belongs, and SETTLED times are enough from anywhere; other losses need one.
The sensitivity is computed for the α that this gives, whatever it is: the guarantee does not depend on the rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Count, Positive, Steps
from service.inputs.refused import Refused
from service.learning.family import LinearFamily
from service.learning.linear import Linear, LinearLearner
from service.learning.noisy_gradient_descent import logit
from service.learning.optimization.descent import GradientDescent, PermutationSGD
from service.learning.optimization.solvers import Exact, exact_of_blocks
from service.learning.records import Records
from service.learning.samples import read_sample
from service.privacy.accounting.events import NoisySampledWeights, NoisyWeights
from service.privacy.currency import Currency
from service.privacy.noise import additive as noises
from service.privacy.sampling import epsilon_of_sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats
    from service.learning.optimization.solvers import Setting
    from service.learning.optimization.sums import Blocks
    from service.learning.records import PreparedRows, UnitShares
    from service.privacy.accounting.events import AddedNoise

SCORE_NOISE = 0.2
LEAST = 1e-4  # the least α, as a share of the loss's smoothness
SETTLED = 64


class OutputPerturbationLearner(LinearLearner):
    """Minimise (1/n)·Σ loss + (regularization/2)·‖w - c‖² near c, then add noise."""

    kind: Literal["output_perturbation"]
    solver: Literal["exact", "psgd", "gradient_descent"] = "exact"
    passes: Annotated[Steps | None, Field(description="psgd: how often every record is read; default 10")] = None
    batch: Annotated[Count | None, Field(description="psgd: most records a step reads; default 32")] = None
    steps: Annotated[Steps | None, Field(description="gradient_descent: how many steps; default 100")] = None
    sample: Count | None = Field(
        None,
        exclude_if=lambda sample: sample is None,
        description="h: a fit of a range of more slots draws h of them at random, in secret, and is made of these "
        "alone, which saves time and no budget. It needs delta = 0, and a stream without units",
    )
    score_noise: Positive | None = Field(
        None,
        exclude_if=lambda noise: noise is None,
        description="In the place of regularization: each fit takes the one with which noise has this spread in a "
        "score, in logits. Default 0.2; none where regularization is given, and in publications that were made before "
        "there was a score_noise",
    )

    def begun(self, *, of_fits: bool) -> Self:
        """Return the settings with today's defaults filled in, for a publication that begins now."""
        begun = super().begun(of_fits=of_fits)
        if not of_fits or self.score_noise is not None or "regularization" in self.model_fields_set:
            return begun
        return begun.model_copy(update={"score_noise": SCORE_NOISE})

    @model_serializer(mode="wrap")
    def _without_what_does_not_count(self, serialize: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def] # noqa: ANN202
        """Leave out the regularization where each fit has its own. (A return type would end up in OpenAPI.)"""
        content = serialize(self)
        if self.score_noise is not None:
            del content["regularization"]
        return content

    @model_validator(mode="after")
    def _one_pull(self) -> Self:
        if self.score_noise is not None and "regularization" in self.model_fields_set:
            raise PydanticCustomError("two_pulls", "give regularization or score_noise, which says the same: not both")
        return self

    @model_validator(mode="after")
    def _settings_of_the_solver(self) -> Self:
        for name, solver in (("passes", "psgd"), ("batch", "psgd"), ("steps", "gradient_descent")):
            if getattr(self, name) is not None and self.solver != solver:
                raise PydanticCustomError(
                    "other_solver", "{name} is a setting of solver {solver}", {"name": name, "solver": solver}
                )
        return self


class Solver(Protocol):
    """A solver whose result one record can move by a public distance at most."""

    @property
    def name(self) -> str: ...
    def describe(self) -> dict[str, Any]:
        """Return the solver and its sensitivity as a formula, for a plan."""

    def sensitivity(self, setting: Setting, records: int) -> float:
        """Return the L2 sensitivity of `solve` under R⊥, rounded up. Depends on public quantities only."""

    def solve(
        self,
        setting: Setting,
        x: PreparedRows,
        y: NDArray[np.generic],
        records: int,
        center: Floats,
        units: UnitShares | None = None,
    ) -> Floats:
        """Return a model of the setting's shape for rows of norm ≤ norm_bound, near `center`.

        units: of which units the rows are, at most `records` of them; None: each row is a record by itself.
        """


@dataclass(frozen=True, kw_only=True)
class NoisyFit(NoisyWeights):
    """The noise of a fit with a pull of its own."""

    regularization: float
    """α of the fit, for which the sensitivity is"""


@dataclass(frozen=True, kw_only=True)
class NoisySampledFit(NoisySampledWeights):
    """The noise of a fit of a secret sample, with a pull of its own."""

    regularization: float
    """α of the fit, for which the sensitivity is"""


@dataclass(frozen=True, kw_only=True)
class OutputPerturbation(Linear):
    """Fit near a released model, then add noise (paper A, Algorithms 1 and 3; paper-audit.md 1.1).

    Private: the records a fit reads. Neighbours: R⊥. The result of `fit` moves by at most `sensitivity` in L2 norm when
    one record is replaced by another or by none, whatever the other records are. The noise of `release` is calibrated
    to that sensitivity; what `fit` returns must never leave the process.

    Where records have units, n counts the units of the range by the public pattern, and a unit's loss is the mean of
    its records': Σ a_i·loss(w; z_i) over its k slots, a_i = 1/k rounded down, and nothing of an empty one. Such a sum
    is convex, its gradient is no longer than L and turns no faster than β, as one record's, since Σ a_i ≤ 1. So all of
    the above, and each solver's own statement, holds for replacing all records of one unit, present or not.

    The solver is `exact`, `psgd` or `gradient_descent`; each knows its own sensitivity. (A permutation that a solver
    draws is not a function of the records: for psgd the sensitivity is about two fits with the same one, `descent`.)

    With a `sample` of h, `release` draws h of a range's n > h slots, anew for each fit, and fits these
    (`privacy.sampling` has the proof). All of the above then holds for the h slots: the divisor is h, the sensitivity
    that of h, and the noise is for the ε_h with which all n slots lose no more than the charge. The proof needs pure ε,
    and a guarantee that holds for slots in any order. The exact minimiser, and the exact iterates of gradient descent,
    are the same in each order, and so the computed ones are within the sensitivity, which counts their rounding; psgd
    puts the slots into a random order itself.

    Where it differs from Algorithm 3: the mean is over the n slots the fit reads, not over b_0 (line 2 as printed
    would let a record's loss grow without end); the regulariser is (α/2)‖w - c‖², so that α is the strong convexity;
    it covers every coordinate, the intercept too.

    | here | paper A, Algorithms 1 and 3 |
    |---|---|
    | center | w_g; 0 or a public origin for a first fit |
    | regularization α | 2λ |
    | setting().lipschitz | L |
    | n | b_0 where it divides |
    | sensitivity | Δ_ε · ε |
    """

    kind: ClassVar[str] = "output_perturbation"
    solver: Solver = field(default_factory=Exact)
    sample: int | None = None
    """h; None: a fit is made of its whole range"""
    score_noise: float | None = None
    """s of the module docstring; None: α is `regularization`"""

    @property
    def same_everywhere(self) -> bool:
        """Return whether the noise is the same near every centre: not for losses that are steeper farther out."""
        return not self.setting().bounded

    def describe(self, origin: Floats) -> dict[str, Any]:
        """Return the loss's constants and the solver's formula."""
        if self.score_noise is None:
            least, pull = None, {"strong_convexity": self.regularization}
        else:
            least, pull = self._least, {"score_noise": self.score_noise, "least_strong_convexity": self._least}
        sample = {} if self.sample is None else {"sample": self.sample}
        return {"lipschitz": self._pulled(least, origin).lipschitz, **pull, **self.solver.describe(), **sample}

    def drawn_of(self, slots: int) -> int | None:
        """Return h, the size of the sample that a fit of that many slots is made of; None: no sample."""
        return self.sample if self.sample is not None and self.sample < slots else None

    def perturbation(
        self, currency: Currency, charge: float, records: int, center: Floats | None = None
    ) -> NoisyFit | NoisySampledFit:
        """Return noise for the weights of a fit of n = `records` slots, or of a sample of them, and the fit's pull."""
        drawn = self.drawn_of(records)
        if drawn is not None:
            charge, records = epsilon_of_sample(charge, drawn, records), drawn
        regularization = self.pull(currency, charge, records, center)
        sensitivity = self.sensitivity(records, center, regularization)
        noise = noises.calibrate(currency, sensitivity=sensitivity, charge=charge, dimension=self.dimension)
        if drawn is None:
            return NoisyFit(noise=noise, sensitivity=sensitivity, regularization=regularization)
        return NoisySampledFit(noise=noise, sensitivity=sensitivity, sample=drawn, regularization=regularization)

    def release(self, records: Records | Blocks, n: int, center: Floats, perturbation: AddedNoise) -> Floats:
        """Return `fit` with the pull that the noise is for, and noise: of all n slots, or of a sample drawn here."""
        if not isinstance(perturbation, NoisyFit | NoisySampledFit):
            raise TypeError("this learner needs a perturbation of its own")
        if self.sample is not None:
            records, n = read_sample(records, n, self.sample, self.features), self.drawn_of(n) or n
        if n != getattr(perturbation, "sample", n):
            raise ValueError("the noise is for a sample of another size")
        return noises.add(self.fit(records, n, center, perturbation.regularization), perturbation.noise)

    def pull(self, currency: Currency, charge: float, records: int, center: Floats | None = None) -> float:
        """Return α of a fit of n = `records` slots for that charge: see the module docstring. May raise Inaccurate."""
        if self.score_noise is None:
            return self.regularization
        spread = 1.0 / math.sqrt(2.0 * charge) if currency is Currency.ZCDP else math.sqrt(self.dimension) / charge
        per_slope = 2.0 * self.norm_bound * spread / (records * self.score_noise * logit(self))
        pull = self._least
        for _ in range(SETTLED):
            pull = max(self._least, per_slope * self._pulled(pull, center).lipschitz)
        return pull

    @property
    def _least(self) -> float:
        return LEAST * self.loss.smoothness(self.norm_bound)

    def _pulled(self, regularization: float | None, center: Floats | None) -> Setting:
        """Return the public setting of a fit with that α; None: `regularization`."""
        setting = self.setting(center)
        return setting if regularization is None else replace(setting, regularization=regularization)

    @property
    def takes_blocks(self) -> bool:
        """Return whether `release` takes blocks of records, which are never all in memory."""
        return isinstance(self.solver, Exact) or self.sample is not None

    def sensitivity(self, records: int, center: Floats | None = None, regularization: float | None = None) -> float:
        """Return how far one record moves a fit of n slots near `center`, rounded up; public. May raise Inaccurate.

        regularization: α of the fit; None: the learner's.
        For most losses it depends on the centre only where double precision does (see `solvers`): a farther centre
        costs accuracy. For `squared` it grows with the centre's norm.
        """
        return self.solver.sensitivity(self._pulled(regularization, center), records)

    def fit(self, records: Records | Blocks, n: int, center: Floats, regularization: float | None = None) -> Floats:
        """Return the solver's model near `center`, float64 of `shape`. NOT private before noise is added.

        The model of blocks has other bytes than that of the same records at once, and the same certificate.
        regularization: as for `sensitivity`.
        """
        if center.shape != self.shape:
            raise ValueError("the centre has another shape than the model")
        setting = self._pulled(regularization, center)
        if not isinstance(records, Records):
            return exact_of_blocks(setting, records, self.prepared, n, center)
        rows, entering = self.entering(records)
        return self.solver.solve(setting, rows, entering.y, n, center, entering.unit_shares())


def _build(linear: Linear, settings: OutputPerturbationLearner, currency: Currency) -> OutputPerturbation:
    if settings.sample is not None and currency is not Currency.PURE:
        raise Refused(
            "learner.sample",
            "what a sample costs is proved for pure epsilon alone: leave sample out, or set privacy.delta to 0",
        )
    solver = _solver(settings)
    return OutputPerturbation(**vars(linear), solver=solver, sample=settings.sample, score_noise=settings.score_noise)


def _solver(settings: OutputPerturbationLearner) -> Solver:
    if settings.solver == "psgd":
        return PermutationSGD(passes=settings.passes or 10, batch=settings.batch or 32)
    if settings.solver == "gradient_descent":
        return GradientDescent(steps=settings.steps or 100)
    return Exact()


EXAMPLE = {"kind": "output_perturbation"}
FAMILY = LinearFamily(
    settings=OutputPerturbationLearner,
    source="paper A, Algorithms 1 and 3",
    summary="on the fitted weights",
    examples={
        **{solver: EXAMPLE | {"solver": solver} for solver in ("exact", "psgd", "gradient_descent")},
        "exact, of a sample": EXAMPLE | {"solver": "exact", "sample": 6},
        "score_noise": EXAMPLE | {"solver": "exact", "score_noise": SCORE_NOISE},
    },
    build=_build,
    accuracy_setting="learner.regularization",
)
