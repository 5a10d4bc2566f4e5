"""Draws what a bound on a unit's records costs, from plans, and how many records it leaves out of an example."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, ScalarFormatter

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.streams.schema import StreamSchema

BATCH = 100
MOST_RECORDS = (1, 2, 4, 8, 16, 32, 64)
_LINES = (
    ("1 slot apart", 1, "#D55E00"),
    ("16 batches apart", 16 * BATCH, "#0072B2"),
    ("64 batches apart", 64 * BATCH, "#009E73"),
)
_MEDIAN_RECORDS = 6
_PERSONS = 1000


def noise(mechanism: dict[str, Any], unit: dict[str, int] | None) -> float:
    """Return the scale of a plan's noise at (1, 1e-6)."""
    stream = {"features": 8, "task": {"kind": "classification", "classes": 2}}
    settings = {
        "mechanism": mechanism,
        "learner": {"kind": "noisy_gradient_descent"},
        "privacy": {"epsilon": 1, "delta": 1e-6},
    }
    schema = StreamSchema.model_validate(stream if unit is None else stream | {"unit": unit})
    return float(build(schema, PublicationConfiguration.model_validate(settings)).plan()["fits"][0]["noise"]["scale"])


def counted(most: int) -> float:
    """Return the share of all records that count, where logarithms of persons' numbers of records are normal."""
    law = NormalDist(math.log(_MEDIAN_RECORDS), 1.0)
    numbers = [math.exp(law.inv_cdf((person + 0.5) / _PERSONS)) for person in range(_PERSONS)]
    return sum(min(most, number) for number in numbers) / sum(numbers)


def units() -> Figure:
    """Return the noise over m, beside the share of records that count."""
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    leader, window = {"kind": "online_leader", "batch": BATCH}, {"kind": "independent_batches", "batch": BATCH}
    alone = noise(leader, None)
    for label, separation, color in _LINES:
        bounds = [{"max_records": most, "min_separation": separation} for most in MOST_RECORDS]
        times = [noise(leader, each) / alone for each in bounds]
        left.plot(MOST_RECORDS, times, color=color, marker="o", markersize=3, label=f"online leader, {label}")
    alone = noise(window, None)
    times = [noise(window, {"max_records": most}) / alone for most in MOST_RECORDS]
    left.plot(MOST_RECORDS, times, color="#777777", linestyle="--", label="fits with noise of their own")
    left.set_title("Noise, in times that for one record", loc="left", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    right.plot(MOST_RECORDS, [counted(most) for most in MOST_RECORDS], color="#1b2733", marker="o", markersize=3)
    right.set_title(f"Records that count, if half have {_MEDIAN_RECORDS} or fewer", loc="left", fontsize=10)
    right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    right.set_ylim(0, 1)
    left.set_yscale("log", base=2)
    left.yaxis.set_major_formatter(ScalarFormatter())
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(MOST_RECORDS, [str(most) for most in MOST_RECORDS])
        axes.set_xlabel("max_records")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure
