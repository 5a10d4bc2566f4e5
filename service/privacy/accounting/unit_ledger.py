"""A reference model of a stream's ledger: how much each unit has spent, and which publications may start.

It is slow, pure and as short as the law; tests compare it with histories of an operator who starts and stops at random.
A stream without units is the case of m = 1 and g = 1: every record is a unit.

Setting. A stream has units (`groups`) and a budget (ε, δ). Publication j promises (ε_j, δ_j) to a unit. It charges slot
i ρ_(j,i) or ε_(j,i), at most `slot_capacity` over its life: ρ(ε_j, δ_j)/g_j or ε_j/m.

Statement. No unit loses more than the budget, if publications start only where these ledgers admit them. This holds
for every choice of starts and stops, also one that depends on all that was published.

Basic accounting (`BasicLedger`). (ε_j, δ_j) counts on every slot from the first one that publication j may read on, for
ever. Only a publication that ends before it has charged anything gives it back. Σ_j (ε_j, δ_j) ≤ (ε, δ) on every slot.
 Why. Let S be a unit's counting slots. Publication j loses S at most (ε_j, δ_j), as a whole (`groups`). Whatever has
 charged a slot of S counts on the last slot of S, so the sum there is at least what S has lost, by basic composition.
 Why not slot by slot, as for records: one unit's slots may lie in ranges of *different* publications. With m = 5 and a
 budget of (1, 1e-6), one slot in a Gaussian publication that is stopped, and four in a pure one that starts behind it,
 would lose δ = 5.9e-4 at ε = 1.

zCDP accounting (`ZcdpLedger`). Slot i counts Σ_j g_j·ρ_(j,i) of charges, where a pure charge ε_(j,i) is ε_(j,i)²/2
(`pure_rho`); a running publication counts ρ(ε_j, δ_j), or ε_j²/2, on every slot from its first. It is at most ρ_B.
 Why. S loses at most Σ_j (g_j/m)·Σ_S ρ_(j,i) = (1/m)·Σ_(i in S) (count of slot i) ≤ (|S|/m)·ρ_B ≤ ρ_B, and each
 summand is known before its step (`zcdp_budget`). All that is not charged comes back slot by slot.
 A running publication can charge a slot no more than counts: g_j·ρ(ε_j, δ_j)/g_j, or g_j·(ε_j/m)²/2 ≤ ε_j²/2,
 since g_j ≤ m².
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, Self

from service.privacy.accounting.charges_by_record import ChargesByRecord
from service.privacy.accounting.composition import PrivacyLoss
from service.privacy.accounting.groups import UnitBound, slot_capacity
from service.privacy.accounting.zcdp_budget import capacity_of, pure_rho
from service.privacy.currency import Currency, capacity, round_down, round_up, zcdp_epsilon

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from decimal import Decimal

_ZERO = Fraction(0)


class NoRoom(ValueError):
    """A publication for which the budget has no room, or a charge that its publication may not make."""


class SlotCharge(NamedTuple):
    """The ε or ρ that a step takes from every slot of [start, end)."""

    start: int
    end: int
    amount: Fraction


@dataclass(frozen=True, kw_only=True)
class UnitPublication:
    """A publication's promise to a unit, and the charges that it has made."""

    epsilon: Decimal
    delta: Decimal
    factor: Fraction = Fraction(1)
    """g of its noise, in ρ"""
    start: int = 0
    """the first slot that it may read"""
    charges: tuple[SlotCharge, ...] = ()
    running: bool = True

    @property
    def kind(self) -> Currency:
        return Currency.ZCDP if self.delta else Currency.PURE

    @property
    def loss(self) -> PrivacyLoss:
        return PrivacyLoss.of(self.epsilon, self.delta)

    def charged(self, slots: Iterable[int]) -> Fraction:
        """Return the sum of the publication's charges on the slots S."""
        profile = ChargesByRecord.of(self.charges)
        return sum((profile.at(slot) for slot in slots), start=_ZERO)


@dataclass(frozen=True, kw_only=True)
class _Ledger:
    """The publications of a stream, by number, and how they are charged and stopped."""

    epsilon: Decimal
    delta: Decimal
    bound: UnitBound | None = None
    """None: the stream has no units."""
    publications: tuple[UnitPublication, ...] = ()

    @property
    def records(self) -> int:
        """Return m, how many records of a unit count; 1 without units."""
        return self.bound.max_records if self.bound else 1

    def slot_capacity(self, publication: UnitPublication) -> Fraction:
        """Return what a slot may be charged by a publication over its life."""
        one = self.bound or UnitBound(max_records=1)
        return slot_capacity(publication.epsilon, publication.delta, bound=one, factor=publication.factor)[1]

    def charge(self, number: int, charge: SlotCharge) -> Self:
        """Return the ledger with one more charge. Refused if the publication is stopped, or would pass a slot's cap."""
        publication = self.publications[number]
        charges = (*publication.charges, charge)
        if not publication.running or charge.start < publication.start:
            raise NoRoom("a publication charges only while it runs, and only slots from its first on")
        if ChargesByRecord.of(charges).maximum() > self.slot_capacity(publication):
            raise NoRoom("the charge would pass what the publication may charge a slot")
        return self._with(number, replace(publication, charges=charges))

    def stop(self, number: int) -> Self:
        """Return the ledger after publication `number` has ended."""
        return self._with(number, replace(self.publications[number], running=False))

    def _with(self, number: int, publication: UnitPublication) -> Self:
        before, after = self.publications[:number], self.publications[number + 1 :]
        return replace(self, publications=(*before, publication, *after))


@dataclass(frozen=True, kw_only=True)
class BasicLedger(_Ledger):
    """The ledger of a stream with units whose (ε, δ) add up. A stream without units returns more: see `component`."""

    def start(self, publication: UnitPublication) -> BasicLedger:
        """Return the ledger with one more publication. Refused if the budget has no room for it."""
        after = replace(self, publications=(*self.publications, publication))
        if not after.worst_from(publication.start).within(PrivacyLoss.of(self.epsilon, self.delta)):
            raise NoRoom("the budget has no room for the publication")
        return after

    def worst_from(self, slot: int) -> PrivacyLoss:
        """Return the largest ε and the largest δ that count on any slot from this one on."""
        counted = [
            (start, end, publication.loss) for publication in self.publications for start, end in _whole(publication)
        ]
        return PrivacyLoss(
            epsilon=ChargesByRecord.of((start, end, loss.epsilon) for start, end, loss in counted).maximum(slot),
            delta=ChargesByRecord.of((start, end, loss.delta) for start, end, loss in counted).maximum(slot),
        )

    def spent(self, slots: Collection[int]) -> PrivacyLoss:
        """Return what a unit with these counting slots has lost so far: a sum over publications, for reading."""
        return sum(
            (self._lost(publication, publication.charged(slots)) for publication in self.publications),
            start=PrivacyLoss(),
        )

    def _lost(self, publication: UnitPublication, charged: Fraction) -> PrivacyLoss:
        if publication.kind is Currency.PURE or not charged:
            return PrivacyLoss(epsilon=charged)
        rho = publication.factor * charged / self.records
        epsilon = Fraction(zcdp_epsilon(round_up(rho), round_down(publication.loss.delta)))
        return PrivacyLoss(epsilon=min(epsilon, publication.loss.epsilon), delta=publication.loss.delta)


def _whole(publication: UnitPublication) -> Iterator[tuple[int, int | None]]:
    """Yield the ranges of slots on which a publication counts its whole (ε, δ)."""
    if publication.running or publication.charges:
        yield publication.start, None


@dataclass(frozen=True, kw_only=True)
class ZcdpLedger(_Ledger):
    """The ledger of a stream whose budget is held in ρ, with units or without."""

    @property
    def capacity(self) -> Fraction:
        """Return ρ_B, the budget as a ρ."""
        return capacity_of(self.epsilon, self.delta)

    def start(self, publication: UnitPublication) -> ZcdpLedger:
        """Return the ledger with one more publication. Refused if the budget has no room for it."""
        after = replace(self, publications=(*self.publications, publication))
        if after.worst_from(publication.start) > self.capacity:
            raise NoRoom("the budget has no room for the publication")
        return after

    def worst_from(self, slot: int) -> Fraction:
        """Return the most that counts on any slot from this one on, in ρ."""
        return ChargesByRecord.of(
            piece for publication in self.publications for piece in self._counted(publication)
        ).maximum(slot)

    def spent(self, slots: Collection[int]) -> Fraction:
        """Return a ρ that bounds what a unit with these counting slots has lost so far."""
        counted = self.spent_by_slot()
        return sum((counted.at(slot) for slot in slots), start=_ZERO) / self.records

    def spent_by_slot(self) -> ChargesByRecord:
        """Return what charges count on every slot: what a unit has lost whose m slots are all charged so."""
        return ChargesByRecord.of(piece for publication in self.publications for piece in self._charged(publication))

    def _counted(self, publication: UnitPublication) -> Iterator[tuple[int, int | None, Fraction]]:
        if publication.running:
            kind, whole = capacity(publication.epsilon, publication.delta)
            yield publication.start, None, self._in_rho(kind, whole)
        else:
            yield from self._charged(publication)

    def _charged(self, publication: UnitPublication) -> Iterator[tuple[int, int | None, Fraction]]:
        for start, end, amount in ChargesByRecord.of(publication.charges).ranges():
            yield start, end, publication.factor * self._in_rho(publication.kind, amount)

    def _in_rho(self, currency: Currency, amount: Fraction) -> Fraction:
        return pure_rho(amount, units=self.bound is not None) if currency is Currency.PURE else amount
