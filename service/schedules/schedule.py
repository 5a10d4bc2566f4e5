"""The interface of a schedule: which records to fit when, near which earlier model, for which share of the budget.

Everything here is a pure function of how many records there are, counted from the start of the publication. Records are
numbered from 0; a time t means that records [0, t) have arrived; ranges are half-open. (Papers number records from 1
and write closed intervals, which counts a record too many at each edge: paper-audit.md 1.1.)

A schedule keeps a chain of models. A fit is kept near one of them or near the origin, then forgets the chain from its
own place on and takes that place.

A share is the exact fraction of the publication's budget per record that a fit charges to every record it reads. Over
the infinite stream no record's shares add up to more than 1: that is proved in each schedule by following records
through it. At equal noise a fit of m times as many records costs 1/m of the share in pure ε and 1/m² in ρ
(`Currency.power`).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol

Role = Literal["model", "base", "link"]
MAX_RECORDS = 2**63
"""More records than a stream can ever have: PostgreSQL numbers them with 64 bits."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fit records [start, end) for `share` of the budget of each of them, and put the model in the chain.

    near: the place in the chain, as it is before this fit, of the model to stay near; None: the origin. depth: the
    place that the model takes; whatever was there and after it is forgotten. window: what records it stands for.
    """

    start: int
    end: int
    near: int | None
    depth: int
    share: Fraction
    role: Role
    window: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some of the fits that read the worst record: how many (None: infinitely many) and their shares' sum."""

    what: str
    fits: int | None
    share: Fraction


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """The record that the whole infinite schedule charges most, and how that adds up: to 1, or `note` says why not."""

    record: int
    parts: tuple[Part, ...]
    note: str | None = None

    @property
    def share(self) -> Fraction:
        """Return the exact sum."""
        return sum((part.share for part in self.parts), start=Fraction(0))


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A recurring kind of fit, in words: what, when, how many records at first, and for which share.

    `near_origin`: it is always fitted near the origin, never near an earlier model.
    """

    what: str
    when: str
    records: int
    share: Fraction
    near_origin: bool


class Schedule(Protocol):
    """Every method is a pure function whose cost does not grow with the time asked about."""

    def next_time(self, after: int) -> int:
        """Return the first time > after at which something is fitted."""

    def fits(self, time: int) -> tuple[Fit, ...]:
        """Return the fits due at that time, in order; () if none is."""

    def needs(self, after: int) -> int:
        """Return the oldest record that any fit at a time > after may read."""

    def lifetime(self) -> Lifetime:
        """Return the worst record's total, at most 1; less only where the shares asked for are not the largest."""

    def most_fits(self) -> int:
        """Return how many fits read one record at most, while there are no more than `MAX_RECORDS` records."""

    def patterns(self) -> tuple[Pattern, ...]:
        """Return the kinds of fits, the largest first."""
