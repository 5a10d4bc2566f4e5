"""The cost of all records of one unit (a person, a device) together: the group factor of a publication.

Setting. A stream with units says whose every record is, and bounds how many *count*: at most m slots of a unit, each at
least s slots after the one before (`UnitBound`). Which slots belong to one unit is the pattern; it is public.

Neighbours (U⊥): two streams of one pattern, equal but in the counting slots of ONE unit, each of which holds any other
record or none. At most m slots differ, because which slots count depends on the pattern alone.

Statement. Let a publication charge every slot as it does for R⊥ (`loss`), and let S be counting slots of one unit, ε_i
or ρ_i the whole charge of slot i. Everything that the publication releases costs the unit at most
 - pure: Σ_S ε_i of ε;
 - zCDP: (g/m)·Σ_S ρ_i of ρ, where g = m·max_(p ≤ m) T(p)/p and T(p) is the most that p slots cost together, as a
   multiple of one slot's charge.
So slots that are charged at most ε/m, or ρ/g, keep every unit within ε or ρ, whatever its pattern and whenever the
publication stops. T(m) in the place of g would not do: with T = 1, 4, 9, 16, 17 (m = 5, c = 4 below) a publication that
is stopped after four slots would have cost 16/17, and leave the fifth slot a whole share of another publication.

| noise | T(p) |
|---|---|
| `independent`: of every fit or batch by itself | ⌊p/c⌋·c² + (p mod c)², c = ⌈B/s⌉; with one contribution p |
| `carried` on to later batches (`carried_groups`) | what the factor's shifted columns add up to |
| `shared`: one noise for all slots, or trees that double for ever | p² |

B is the most slots that a fit or batch reads; one noise charges all its slots the same. *One contribution*: a fit or
batch makes of all records of a unit the mean of what they would contribute, so that the unit moves its sum as far as
one record can. (Objective perturbation is another matter: its curvature has the rank of all of them.)

Why.
 - Chains. Let the p slots of S differ. Change one after the other: p + 1 streams, of which neighbours are R⊥. On every
   transcript each step's loss adds along the chain: pure ε_i add up. Where a step of a chain moves what noise is added
   to by Δ·v_i, all steps move it by at most ‖Σ v_i‖·Δ. And for a release r that is ρ_(r,i)-zCDP in slot i, whatever its
   noise, D_a(P, R) ≤ ka/(ka - 1)·D_((ka-1)/(k-1))(P, Q) + D_(ka)(Q, R) for all k > 1 (Hölder) at the best k makes it
   (Σ_i √ρ_(r,i))²-zCDP in all of them (Bun and Steinke 2016, section 5).
 - Independent noise. Releases add, each given all before it. A release that reads k of the slots costs k² of its
   charge ρ_r, and k ≤ c since c·s ≥ B: k²·ρ_r ≤ c·(k·ρ_r), and k·ρ_r is what it charges S. Summed up: c·Σ_S ρ_i,
   however fits overlap. If no two fits share a slot, the most for p slots is T(p), full batches and a rest, because
   Σ k_b² is convex; it is attained where batches are B long. With one contribution a release costs S its ρ_r once, and
   charges it k·ρ_r ≥ ρ_r.
 - Shared noise. k = p: p²·ρ_r, attained by p records that move the same way.
 - Many noises. If each noise r costs S at most (g_r/m)·Σ_S ρ_(r,i), all of them cost at most max_r g_r/m·Σ_S ρ_i, also
   where a slot is charged by some and its unit's other slots by others: g of a publication is the largest of its
   noises' (lifelong's pass and its carried tasks, for instance).
 - Stops. Whatever was charged until then is such a sum over the slots charged, p of them: T(p)·ρ ≤ (g/m)·p·ρ. Step by
   step the loss is known before the step's noise is drawn, so `zcdp_budget`'s filter holds for it.
 - Pure charges in ρ. A release of pure loss ε_r counts as ρ_r = ε_r²/2: k slots make it k·ε_r, k²·ρ_r. Where pure noise
   is carried on, step t of p slots is (C·k)_t·Δ/scale, together Σ_t half its square = T(p)·(‖c‖₂·Δ/scale)²/2 ≤
   T(p)·ε²/2, as ‖c‖₂ ≤ ‖c‖₁. So the same T(p) and g hold.

The sampler's slack (`sampler_distance`) counts the draws that any of the m slots can move: m times one slot's.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from service.privacy.currency import Currency, capacity

if TYPE_CHECKING:
    from decimal import Decimal

MAX_RECORDS = 2**16

Costs = dict[int, Fraction]
"""T(p), exact or rounded up, for the p at which T(p)/p may be largest, and for m, the largest of them."""


@dataclass(frozen=True, kw_only=True)
class UnitBound:
    """The bound on one unit's counting slots: their number, and their least distance. Public, fixed with the stream."""

    max_records: int
    """m, at most `MAX_RECORDS`"""
    min_separation: int = 1
    """s: slot i counts only if the last counting slot of its unit is i - s or before"""

    def __post_init__(self) -> None:
        if not 1 <= self.max_records <= MAX_RECORDS:
            raise ValueError(f"max_records is {self.max_records}, but must be from 1 to {MAX_RECORDS}")
        if self.min_separation < 1:
            raise ValueError(f"min_separation is {self.min_separation}, but must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The distribution of one unit's slots over fits or batches."""

    bound: UnitBound
    batch: int
    """B, the most slots that one fit or batch reads"""
    one_contribution: bool = True
    """Whether all records of a unit in a batch move its sum as far as one record can"""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}, but must be at least 1")

    def contributions(self, batches: int = 1) -> int:
        """Return the most contributions of a unit to so many neighbouring batches: c for one of them."""
        slots = -(-batches * self.batch // self.bound.min_separation)
        return min(self.bound.max_records, slots, batches if self.one_contribution else slots)

    def batches_apart(self, steps: int) -> int:
        """Return the least number of batches from a counting slot to the counting slot `steps` ≥ 1 later of its unit.

        For slots of which no two share a batch. They are `steps`·s slots apart, and a batch has at most B: ⌊steps·s/B⌋.
        """
        return max(steps, steps * self.bound.min_separation // self.batch)


def independent(batching: Batching) -> Costs:
    """Return T of noise that each fit or batch has of its own: T(p)/p is largest where batches are full, at c."""
    most = batching.contributions()
    return {p: Fraction(p // most * most**2 + (p % most) ** 2) for p in (most, batching.bound.max_records)}


def shared(bound: UnitBound) -> Costs:
    """Return T of one noise that all slots share: m² is enough whatever the noise. T(p)/p = p is largest at m."""
    return {bound.max_records: Fraction(bound.max_records**2)}


def group_factor(costs: Costs) -> Fraction:
    """Return g, the factor of a Gaussian publication whose noise has T = `costs`; of a pure one it is m."""
    return max(costs) * max(cost / slots for slots, cost in costs.items())


def slot_capacity(epsilon: Decimal, delta: Decimal, *, bound: UnitBound, factor: Fraction) -> tuple[Currency, Fraction]:
    """Return what one slot may be charged by a publication that promises a unit (epsilon, delta), and the currency.

    It is exact: round it down for a charge. factor: g of the publication's noise; pure charges are at most ε/m whatever
    the noise.
    """
    kind, whole = capacity(epsilon, delta)
    return kind, whole / (bound.max_records if kind is Currency.PURE else factor)
