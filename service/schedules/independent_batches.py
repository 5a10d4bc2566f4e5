"""Independent batches: each record is in one fit, for its whole budget (the baseline of paper A's experiments).

Batch q is records [q·n, (q + 1)·n). It is fitted once, when it is complete: near the origin, or with `warm_start` near
the release before it. It is public already, so it costs nothing to start from; a model then carries on what earlier
batches taught it. Every record of every batch is charged exactly the whole budget, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from service.schedules.schedule import Fit, Lifetime, Part, Pattern


@dataclass(frozen=True, kw_only=True)
class IndependentBatches:
    """Fit a model per batch of `batch` records, once each.

    >>> schedule = IndependentBatches(batch=100)
    >>> [schedule.next_time(after) for after in (0, 99, 100)]
    [100, 100, 200]
    >>> [(fit.start, fit.end, str(fit.share)) for fit in schedule.fits(200)]
    [(100, 200, '1')]
    """

    batch: int
    warm_start: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError("independent batches need batch >= 1")

    def next_time(self, after: int) -> int:
        """Return the next end of a batch."""
        return (after // self.batch + 1) * self.batch

    def fits(self, time: int) -> tuple[Fit, ...]:
        """Return the fit of the batch that ends there, if one does."""
        if time < self.batch or time % self.batch:
            return ()
        start = time - self.batch
        near = 0 if self.warm_start and start else None
        return (Fit(start=start, end=time, near=near, depth=0, share=Fraction(1), role="model", window=(start, time)),)

    def needs(self, after: int) -> int:
        """Return the first record of the batch that is not complete."""
        return after // self.batch * self.batch

    def lifetime(self) -> Lifetime:
        """Return what every record costs: its one fit."""
        return Lifetime(record=0, parts=(Part(what="the fit of its batch", fits=1, share=Fraction(1)),))

    def most_fits(self) -> int:
        """Return 1: a record is in one batch."""
        return 1

    def patterns(self) -> tuple[Pattern, ...]:
        """Return the fit of a batch."""
        near = "near the release before, the first near the origin" if self.warm_start else "near the origin"
        return (
            Pattern(
                what="batch",
                when=f"every {self.batch} records, over the last {self.batch}, {near}",
                records=self.batch,
                share=Fraction(1),
                near_origin=not self.warm_start,
            ),
        )
