"""Runs of any static private algorithm over all records so far: when they happen is for the subclass to say.

A run at time t reads records [0, t) and is charged share_from(t) - share_from(t'), t' being the time of the next run.
Whatever `share_from` is, as long as it is 1 at the first run and never rises: what the runs from t on charge adds up to
share_from(t) at most, by telescoping. So the first records, which every run reads, are charged exactly the budget, and
any later one less.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction

from service.privacy.currency import Currency
from service.schedules.schedule import Fit, Lifetime, Part, Pattern


@dataclass(frozen=True, kw_only=True)
class BlackBox(ABC):
    """Runs in the currency `kind`, the first over `first` records; with `warm_start` near the release before."""

    currency: Currency
    first: int
    warm_start: bool = False

    @abstractmethod
    def next_time(self, after: int) -> int:
        """Return the time of the first run > after."""

    @abstractmethod
    def share_from(self, time: int) -> Fraction:
        """Return the shares of the run at that time and of all later ones together: 1 at `first`, never rising."""

    @abstractmethod
    def most_fits(self) -> int:
        """Return how many runs there can be: each of them reads the first records."""

    @abstractmethod
    def runs(self) -> str:
        """Return which runs read a record, for people."""

    @abstractmethod
    def recurrence(self) -> str:
        """Return when runs happen and how their noise changes, for people."""

    def fits(self, time: int) -> tuple[Fit, ...]:
        """Return the run of that time, or nothing."""
        if time < self.first or self.next_time(time - 1) != time:
            return ()
        return (
            Fit(
                start=0,
                end=time,
                near=0 if self.warm_start and time > self.first else None,
                depth=0,
                share=self.share_from(time) - self.share_from(self.next_time(time)),
                role="model",
                window=(0, time),
            ),
        )

    def needs(self, after: int) -> int:  # noqa: ARG002
        """Return 0: every run reads everything."""
        return 0

    def lifetime(self) -> Lifetime:
        """Return what the first records are charged by the infinitely many runs: exactly 1."""
        return Lifetime(record=0, parts=(Part(what=self.runs(), fits=None, share=self.share_from(self.first)),))

    def patterns(self) -> tuple[Pattern, ...]:
        """Return the first run."""
        return (
            Pattern(
                what="run",
                when=self.recurrence(),
                records=self.first,
                share=self.fits(self.first)[0].share,
                near_origin=not self.warm_start,
            ),
        )

    @property
    def kept_near(self) -> str:
        """Return the words that say which earlier model a run is kept near, for a plan."""
        return ", near the release before" if self.warm_start else ""
