"""A stream's budget: what all its publications may cost any one record, and in which currency they add up.

`basic`: (ε, δ) add up (`composition`). `zcdp`: ρ add up, within what implies (ε, δ) (`zcdp_budget`).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any

from service.privacy.accounting.composition import Component, PrivacyLoss, Slots, ZcdpComponent
from service.privacy.accounting.zcdp_budget import capacity_of, in_rho
from service.privacy.currency import Currency, capacity, round_down, round_up, zcdp_epsilon, zcdp_rho
from service.privacy.noise.sampler_distance import LARGEST_DELTA

_DOWN = Context(prec=15, rounding=ROUND_FLOOR)  # significant digits of an ε or δ in a request
_LEAST_EPSILON = Decimal("1e-9")


class Accounting(StrEnum):
    """The composition of a stream's publications: of (ε, δ), or of ρ."""

    BASIC = "basic"
    ZCDP = "zcdp"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The (ε, δ) that no record may exceed, and its accounting. Methods raise ValueError for `zcdp` with δ ≤ 2^-60."""

    epsilon: Decimal
    delta: Decimal
    accounting: Accounting = Accounting.BASIC

    @property
    def in_rho(self) -> bool:
        """Return whether the budget is held in ρ."""
        return self.accounting is Accounting.ZCDP

    @property
    def limit(self) -> PrivacyLoss:
        """Return the most that may be reserved on any record."""
        if self.in_rho:
            return PrivacyLoss(rho=capacity_of(self.epsilon, self.delta))
        return PrivacyLoss.of(self.epsilon, self.delta)

    def to_json(self) -> dict[str, Any]:
        """Return its JSON, with the accounting only if that is not `basic`."""
        content: dict[str, Any] = {"epsilon": float(self.epsilon), "delta": float(self.delta)}
        return content | {"accounting": "zcdp", "rho": round_down(self.limit.rho)} if self.in_rho else content

    def implied(self, loss: PrivacyLoss) -> PrivacyLoss:
        """Return the (ε, δ) of a loss on the stream, rounded up."""
        if not loss.rho:
            return loss
        return PrivacyLoss(epsilon=Fraction(_implied(round_up(loss.rho), self._delta)), delta=Fraction(self.delta))

    def shown(self, loss: PrivacyLoss, alone: PrivacyLoss | None = None) -> dict[str, float]:
        """Return a loss as numbers to read, rounded up; of a ρ also the (ε, δ) that it implies.

        alone: of one publication's loss, the (ε, δ) by itself (`Component.alone`), which may be less.
        """
        shown = (self.implied(loss) if alone is None else alone).shown()
        return shown | {"rho": round_up(loss.rho)} if self.in_rho else shown

    def shown_down(self, loss: PrivacyLoss) -> dict[str, float]:
        """Return the remaining budget as numbers to read, rounded down; for a ρ also an (ε, δ) that fits."""
        if not self.in_rho:
            return loss.shown_down()
        rho = round_down(loss.rho)
        if not rho:
            return {"epsilon": 0.0, "delta": 0.0, "rho": 0.0}
        fits = PrivacyLoss.of(epsilon_within(rho, self.delta), self.delta)
        return fits.shown_down() | {"rho": rho}

    @property
    def _delta(self) -> float:
        return round_down(Fraction(self.delta) - LARGEST_DELTA)


def cap(accounting: str, epsilon: Decimal, delta: Decimal, *, units: bool = False) -> PrivacyLoss:
    """Return what a publication that promises (epsilon, delta) reserves on every record from its first on.

    units: whether its stream has units.
    """
    if accounting == Accounting.ZCDP:
        return PrivacyLoss(rho=in_rho(*capacity(epsilon, delta), units=units))
    return PrivacyLoss.of(epsilon, delta)


def component(
    accounting: str,
    *,
    identity: int,
    epsilon: Decimal,
    delta: Decimal,
    currency: str,
    start: int,
    running: bool,
    unit_factor: str | None = None,
    slots: Slots = Slots.TRAINING,
) -> Component:
    """Return the component of a publication that promises (epsilon, delta); unit_factor: None without units."""
    units = unit_factor is not None
    settings: dict[str, Any] = {
        "id": identity,
        "currency": Currency(currency),
        "cap": cap(accounting, epsilon, delta, units=units),
        "start": start,
        "running": running,
        "factor": Fraction(unit_factor or 1),
        "units": units,
        "slots": slots,
    }
    if accounting == Accounting.ZCDP:
        return ZcdpComponent(**settings, promise=PrivacyLoss.of(epsilon, delta))
    return Component(**settings)


@lru_cache(maxsize=4096)
def epsilon_within(rho: float, delta: Decimal) -> Decimal:
    """Return nearly the largest ε, of at most 15 digits, for which (ε, delta) needs at most `rho` > 0.

    0 if even 10^-9 takes more.
    """
    at = round_down(Fraction(delta))
    epsilon, off = Decimal(zcdp_epsilon(rho, at)), Decimal(2) ** -50
    while (rounded := _DOWN.plus(epsilon)) >= _LEAST_EPSILON:
        if zcdp_rho(round_down(Fraction(rounded)), at) <= rho:
            return rounded
        epsilon *= 1 - off
        off *= 2
    return Decimal(0)


@lru_cache(maxsize=4096)
def _implied(rho: float, delta: float) -> float:
    return zcdp_epsilon(rho, delta)
