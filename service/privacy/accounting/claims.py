"""What a release costs, recomputed from nothing but what it says about its noise, by whoever does not believe a ledger.

| added_to | what was released | its cost |
|---|---|---|
| weights | values and noise | the noise's charge for the values' sensitivity |
| gradient_sums | `steps` sums of gradients, each with noise of its own | `steps` times the same |
| disjoint_gradient_sums | such sums of batches, each of which has other records | the noise's charge, once |
| running_sums | an estimate at every step, with noise that later steps take back | of a whole run's noise |
| statistics | the same, of each block's statistics | of a whole run's noise |
| selected_gradients | a sum over the selected records, with noise | of the coin that selects, and of the noise |
| objective | the minimiser of a randomly tilted objective, and noise | of the tilt, the curvature and the noise |
| candidates | one of many, the likelier the less it is off | of selecting it, for errors that a record moves by 1/n |
| query | one count, whatever follows from it | the noise's charge for a count that a record moves by `sensitivity` |
| evaluation_counts | whole numbers with noise | the noise's charge for the counts that a record changes |

A noise's charge is an ε (spherical Laplace) or a ρ (Gaussian), see `noise`. An ε counts ε²/2 where a publication's
currency is ρ; a ρ is worth nothing where it is ε.

A query is hard because an instance of the sparse vector technique found it so, which is charged by itself, without a
version, to each record that was there while it was open: `opening` recomputes that.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from service.privacy.loss import Kind, round_up
from service.privacy.noise import counts, numeric_sparse, running_sums, selection
from service.privacy.noise.additive import Gaussian, SphericalLaplace
from service.privacy.noise.exponential import Selection
from service.privacy.noise.sparse_vector import STEPS, Instance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROUNDED = 1 + Fraction(1, 2**45)  # covers what rounding does in log1p


def cost(kind: Kind, noise: Mapping[str, Any], *, records: int) -> Fraction:
    """Return what a release costs each of the n = `records` records that it read, in a publication's currency `kind`.

    noise: as a release states it, see `Perturbation.described`. ValueError if it states nothing that has such a cost.
    """
    try:
        return _cost(kind, noise, _count({"records": records}, "records"))
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"the noise lacks something, or something is of another type: {problem}") from None
    except OverflowError:
        raise ValueError("the noise costs more than any charge") from None


def dimension(noise: Mapping[str, Any], shape: Sequence[int]) -> int:
    """Return how many coordinates the noise of a release needs, whose parameters are of that shape.

    One for each of them; but for statistics, one for each second moment but the number of records, and each moment
    with a label, of which there are as many as rows unless `rows` says otherwise: see `mechanisms.moments`.
    """
    if noise["added_to"] == "query":
        return 1
    if noise["added_to"] != "statistics":
        return math.prod(shape)
    rows, columns = shape
    if "rows" in noise:
        rows = _count(noise, "rows")
    return columns * (columns + 1) // 2 - ("count" in noise["weights"]) + rows * columns


def opening(kind: Kind, instance: Mapping[str, Any]) -> Fraction:
    """Return what an instance of the sparse vector technique costs each record that is there while it is open.

    instance: as a release, or a plan, states it. ValueError as for `cost`.
    """
    try:
        found = Instance(opened=_count(instance, "opened"), scale=_positive(instance, "scale"))
    except (KeyError, TypeError) as problem:
        raise ValueError(f"the instance lacks something, or something is of another type: {problem}") from None
    return numeric_sparse.cost_of_opening(kind, found)


def curvature(*, rank: int, steepness: float, records: int, regularization: float) -> float:
    """Return what the curvature of a tilted objective costs, an ε: rank·ln(1 + steepness/(rank·n·Λ)), rounded up.

    Statement (paper-audit.md 5.2). Let A ⪰ nΛ·I, and H, H' ⪰ 0 of at most that rank and with traces of at
    most that steepness. Then |ln det(A + H) - ln det(A + H')| is at most this.

    Why. ln det(A + H') ≥ ln det A, and det(A + H)/det A = det(I + A^(-1/2)·H·A^(-1/2)) = Π (1 + h_i), where the at most
    `rank` positive h_i add up to tr(A⁻¹H) ≤ tr(H)/(nΛ); for a given sum the product is largest where all are equal.
    """
    ratio = round_up(Fraction(steepness) / (rank * records * Fraction(regularization)))
    return round_up(rank * Fraction(math.log1p(ratio)) * _ROUNDED)


def total(kind: Kind, epsilon: Fraction) -> Fraction:
    """Return what ε of pure loss is worth in a currency: ε²/2 of ρ."""
    return epsilon if kind is Kind.PURE else epsilon**2 / 2


def _cost(kind: Kind, noise: Mapping[str, Any], records: int) -> Fraction:  # noqa: PLR0911 - one for each place
    match noise["added_to"]:
        case "weights" | "disjoint_gradient_sums":
            return _charge(kind, noise)
        case "candidates":
            return _selected(kind, noise, records)
        case "query":
            return _measured(kind, noise)
        case counts.ADDED_TO:
            return _evaluated(kind, noise)
        case "gradient_sums":
            return _count(noise, "steps") * _charge(kind, noise)
        case "running_sums" | "statistics":
            return _run(kind, noise)
        case "selected_gradients":
            return total(kind, _coin(noise["selection"])) + _charge(kind, noise)
        case "objective":
            curved = noise["curvature"]
            parts = (
                _charge(Kind.PURE, noise),
                Fraction(
                    curvature(
                        rank=_count(curved, "rank"),
                        steepness=_positive(curved, "steepness"),
                        records=records,
                        regularization=_positive(noise, "regularization"),
                    )
                ),
                _charge(Kind.PURE, noise["output"]),
            )
            return total(kind, sum(parts, start=Fraction(0)))
        case other:
            raise ValueError(f"noise cannot be added to {other}")


def _charge(kind: Kind, noise: Mapping[str, Any]) -> Fraction:
    law = _law(kind, noise)
    charge = Fraction(law.charge(_positive(noise, "sensitivity")))
    return total(kind, charge) if isinstance(law, SphericalLaplace) else charge


def _selected(kind: Kind, noise: Mapping[str, Any], records: int) -> Fraction:
    sensitivity, scale = _positive(noise, "sensitivity"), _positive(noise, "scale")
    if noise["distribution"] != Selection.distribution or Fraction(sensitivity) * records < 1:
        raise ValueError("a candidate is selected by the exponential mechanism, for errors that a record moves by 1/n")
    return Fraction(Selection(kind=kind, scale=scale, dimension=_count(noise, "dimension")).charge(sensitivity))


def _measured(kind: Kind, noise: Mapping[str, Any]) -> Fraction:
    """Return the cost of a count, in whole steps of which a record weighs at most STEPS."""
    if noise["distribution"] != numeric_sparse.DISTRIBUTIONS[kind] or noise["sensitivity"] != STEPS:
        raise ValueError("a measured query has another noise, or another sensitivity, in this currency")
    return numeric_sparse.cost(kind, _positive(noise, "scale"))


def _evaluated(kind: Kind, noise: Mapping[str, Any]) -> Fraction:
    """Return the cost of noisy counts."""
    change = counts.Change(counts=_count(noise["change"], "counts"), largest=_count(noise["change"], "largest"))
    return counts.cost(kind, noise, scale=_positive(noise, "scale"), change=change)


def _coin(told: Mapping[str, Any]) -> Fraction:
    return selection.of(dict(told) | {name: _positive(told, name) for name in told if name != "law"}).loss()


def _run(kind: Kind, noise: Mapping[str, Any]) -> Fraction:
    law = _law(kind, noise)
    run = running_sums.with_noise(running_sums.of(noise["factor"]), law, _positive(noise, "largest"))
    charge = Fraction(run.charge(_positive(noise, "sensitivity")))
    return total(kind, charge) if isinstance(law, SphericalLaplace) else charge


def _law(kind: Kind, noise: Mapping[str, Any]) -> SphericalLaplace | Gaussian:
    scale, dimension = _positive(noise, "scale"), _count(noise, "dimension")
    if noise["distribution"] == SphericalLaplace.distribution:
        return SphericalLaplace(scale=scale, dimension=dimension)
    if noise["distribution"] == Gaussian.distribution and kind is Kind.ZCDP:
        return Gaussian(scale=scale, dimension=dimension)
    raise ValueError(f"noise of distribution {noise['distribution']} has no cost in this currency")


def _positive(told: Mapping[str, Any], name: str) -> float:
    """Return a positive finite number: with any other the formulas could be made to say anything, also nothing."""
    value = told[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"the noise needs a positive finite {name}")
    return value


def _count(told: Mapping[str, Any], name: str) -> int:
    value = told[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"the noise needs a whole number of {name}, at least 1")
    return value
