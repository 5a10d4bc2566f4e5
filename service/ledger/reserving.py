"""Which publications reserve all that they promise."""

from decimal import Decimal
from typing import Protocol

from service.privacy.accounting.budget import Accounting
from service.privacy.accounting.composition import Slots


class Reserving(Protocol):
    """The reserve of a publication, and from which record on."""

    @property
    def visible_state(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def epsilon(self) -> Decimal: ...
    @property
    def delta(self) -> Decimal: ...
    @property
    def accounting(self) -> str: ...
    @property
    def worst_amount(self) -> Decimal: ...
    @property
    def slots(self) -> Slots: ...
    @property
    def unit_factor(self) -> str | None: ...


class Charging(Reserving, Protocol):
    """A publication with its currency, and with the most that its confirmed charges cost any record."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def visible_worst_amount(self) -> Decimal: ...


def reserves_wholly(publication: Reserving) -> bool:
    """Return whether a publication reserves its whole cap on every record from its start on: until its end is shown.

    On a stream with units it does so for ever once it has charged anything: the records of one unit may be charged by
    different publications, each of which may have cost the unit all that it promised (`unit_ledger`). Not so where the
    budget is held in ρ: there charges of slots add up to what their unit lost.
    """
    sums = publication.unit_factor is None or publication.accounting == Accounting.ZCDP
    charged = not sums and publication.worst_amount > 0
    return publication.visible_state == "running" or charged
