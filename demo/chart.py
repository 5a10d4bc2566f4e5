"""Draws what was published: accuracy over time, and what it cost."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from demo import evaluation
    from demo.follow import Row

# Okabe and Ito's colours, which the colour-blind can tell apart; line styles and markers tell the lines apart too.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
_PURPLE = "#CC79A7"
_TITLES = {"online-leader": "online leader: recommended", "sliding-window": "sliding window: paper A"}


def figure(rows: Sequence[Row], judged: Sequence[evaluation.Figure] = ()) -> Figure:
    """Return the chart: one column per publication, accuracy above, ε spent below."""
    drawn = Figure(figsize=(11, 6.6), layout="constrained")
    FigureCanvasSVG(drawn)
    names = list(dict.fromkeys(row.publication for row in rows))
    axes = drawn.subplots(2, len(names), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1))
    for column, name in enumerate(names):
        mine = [row for row in rows if row.publication == name]
        _accuracy(axes[0][column], mine)
        _judged(axes[0][column], [publication for publication in judged if publication.publication == name])
        _spent(axes[1][column], mine)
        axes[0][column].set_title(_TITLES.get(name, name))
    axes[0][0].set_ylabel("accuracy on held-out days,\nthe two years after each release")
    axes[1][0].set_ylabel("ε spent by the\nworst record")
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    drawn.suptitle(
        "Does it rain on such a day? Private models of 50 years of weather, each at total ε = 1", weight="bold"
    )
    return drawn


def draw(rows: Sequence[Row], file: Path, judged: Sequence[evaluation.Figure] = ()) -> None:
    """Write the chart as SVG. The file appears whole or not at all."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with mpl.rc_context({"svg.hashsalt": "perennial"}):
            figure(rows, judged).savefig(
                unfinished, format="svg", metadata={"Title": "Perennial: releases", "Date": None}
            )
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _accuracy(axes: Axes, rows: Sequence[Row]) -> None:
    years = [row.year for row in rows]
    axes.plot(years, [row.dry for row in rows], color=_GREY, linestyle=":", label="always dry")
    axes.plot(years, [row.yesterday for row in rows], color=_ORANGE, linestyle="-.", label="same as yesterday")
    axes.plot(years, [row.without_noise for row in rows], color=_GREEN, linestyle="--", label="no noise (not private)")
    axes.plot(
        years,
        [row.accuracy for row in rows],
        color=_BLUE,
        marker="o",
        markersize=4,
        linewidth=2,
        label="private, ε = 1",
    )
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(alpha=0.3)


def _judged(axes: Axes, figures: Sequence[evaluation.Figure]) -> None:
    if figures:
        axes.errorbar(
            [sum(figure.years) / 2 for figure in figures],
            [figure.accuracy for figure in figures],
            yerr=[
                [figure.accuracy - figure.low for figure in figures],
                [figure.high - figure.accuracy for figure in figures],
            ],
            color=_PURPLE,
            linestyle="none",
            marker="D",
            markersize=5,
            capsize=3,
            label="what the service says, 95 %",
        )


def _spent(axes: Axes, rows: Sequence[Row]) -> None:
    axes.step([row.year for row in rows], [row.spent for row in rows], where="post", color=_BLUE, linewidth=2)
    axes.axhline(1.0, color="black", linewidth=1, linestyle="--")
    axes.annotate(
        "budget", (1.0, 1.0), xycoords=("axes fraction", "data"), xytext=(-4, 3), textcoords="offset points", ha="right"
    )
    axes.set_ylim(0.0, 1.3)
    axes.set_xlabel("year (about)")
    axes.grid(alpha=0.3)
