"""Draws schedules: which records each fit reads, and what each record pays; from `service.schedules` alone."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from service.privacy.currency import Currency
from service.schedules.continual import Continual
from service.schedules.improving_black_box import ImprovingBlackBox
from service.schedules.independent_batches import IndependentBatches
from service.schedules.multi_resolution import MultiResolution
from service.schedules.scheduled_black_box import ScheduledBlackBox
from service.schedules.sliding_window import SlidingWindow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from service.schedules.schedule import Fit, Schedule

_PURE = Currency.PURE
SCHEDULES: dict[str, tuple[Schedule, int]] = {
    "continual": (Continual(currency=_PURE, base=8, update_every=2), 40),
    "sliding_window": (SlidingWindow(currency=_PURE, block=2, blocks=7), 40),
    "multi_resolution": (MultiResolution(currency=_PURE, base=2), 40),
    "independent_batches": (IndependentBatches(batch=4), 40),
    "scheduled_black_box": (ScheduledBlackBox(currency=_PURE, first=6, growth=Fraction("0.5")), 40),
    "improving_black_box": (ImprovingBlackBox(currency=_PURE, first=4, every=4, exponent=Decimal("0.25")), 40),
}
"""By kind: an example, and how many records are drawn."""
_COLORS = {"model": "#0072B2", "base": "#D55E00", "link": "#9aa5b1"}
_TITLES = {"model": "a model is released", "base": "a base for later fits", "link": "a link of a chain"}


def fits_until(schedule: Schedule, records: int) -> list[tuple[int, Fit]]:
    """Return each fit at a time ≤ records, with its time, in order."""
    timed_fits, time = [], 0
    while (time := schedule.next_time(time)) <= records:
        timed_fits += [(time, fit) for fit in schedule.fits(time)]
    return timed_fits


def paid(fits: list[tuple[int, Fit]], records: int) -> list[Fraction]:
    """Return the share of the budget that each record has paid after these fits."""
    total = [Fraction(0)] * records
    for _, fit in fits:
        for record in range(fit.start, min(fit.end, records)):
            total[record] += fit.share
    return total


def schedule(name: str) -> Figure:
    """Return the picture of one example: a line per fit, above the sum of shares of each record."""
    from matplotlib.figure import Figure  # here, because importing matplotlib takes most of a second

    example, records = SCHEDULES[name]
    fits = fits_until(example, records)
    figure = Figure(figsize=(7.2, 1.9 + 0.085 * len(fits)), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(max(1.0, 0.1 * len(fits)), 1))
    for row, (_, fit) in enumerate(fits):
        above.plot(
            [fit.start + 0.1, fit.end - 0.1],
            [row, row],
            color=_COLORS[fit.role],
            linewidth=1.2 + 3.5 * float(fit.share),
            solid_capstyle="butt",
        )
    for role in dict.fromkeys(fit.role for _, fit in fits):
        above.plot([], [], color=_COLORS[role], linewidth=3, label=_TITLES[role])
    above.legend(loc="upper right", bbox_to_anchor=(1, 1.02), frameon=False, fontsize=8)
    above.set_yticks([])
    above.invert_yaxis()
    above.set_ylabel("fits,\nfirst to last")
    below.bar(range(records), [float(each) for each in paid(fits, records)], width=0.8, align="edge", color="#0072B2")
    below.axhline(1, color="#1b2733", linestyle="--", linewidth=1)
    below.set_ylim(0, 1.35)
    below.set_ylabel("paid of the\nbudget so far")
    below.set_xlabel("record number")
    below.set_xlim(0, records)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    above.set_title(f"{name}: which records each fit reads (thicker: a larger share)", loc="left", fontsize=10)
    return figure
