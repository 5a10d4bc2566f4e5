"""Draws the pictures of README and docs/ into docs/images, from the code and from docs/images/rain.json.

Run as `python -m docs.pictures` (or `make docs`); a test fails if a picture is stale. With `--measure` it
writes rain.json anew first, with fresh noise, which takes a minute.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.ticker import FuncFormatter, PercentFormatter

from docs.schedule_pictures import SCHEDULES, schedule
from docs.unit_pictures import units
from service.explorer import comparison, datasets

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

IMAGES = Path(__file__).resolve().parent / "images"
RESULT = IMAGES / "rain.json"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "perennial",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10,
}
_BLUE, _GREEN, _GREY, _INK = "#0072B2", "#009E73", "#777777", "#1b2733"

EPSILON, DELTA = 1, 1e-6
RUNS = 10
COMPARISON: dict[str, Any] = {
    "dataset": "weather",
    "feature_map": {
        "kind": "standardize",
        "mean": [54, 44, 1017, 10, 8, 14, 64, 44],
        "scale": [20.0, 20.0, 8.4, 4.0, 4.5, 6.0, 22.0, 20.0],
    },
    "norm_bound": 3.0,
    "lines": [
        {
            "name": "rain",
            "mechanism": {"kind": "online_leader", "batch": 256},
            "learner": {"kind": "noisy_gradient_descent"},
            "delta": DELTA,
        }
    ],
    "epsilons": [EPSILON],
    "runs": RUNS,
}


def pictures() -> dict[str, str]:
    """Return the text of each picture, by the name of its file."""
    drawn: dict[str, Callable[[], Figure]] = {"flow.svg": flow, "result.svg": result, "units.svg": units}
    for name in SCHEDULES:
        drawn[f"schedule_{name}.svg"] = lambda name=name: schedule(name)  # type: ignore[misc]
    with mpl.rc_context(STYLE):
        return {name: _svg(draw()) for name, draw in drawn.items()}


def measure() -> dict[str, Any]:
    """Return the accuracy on held-out days over records, of each run with noise, and of the fit without noise."""
    request = comparison.Comparison.model_validate(COMPARISON)
    data = datasets.sample("weather")
    curves: dict[str, Any] = {"private": [], "without_noise": [], "always_dry": round(float((data.y == 0).mean()), 4)}
    for cell in comparison.cells(request):
        curve = comparison.run(request, cell, data)["curve"]
        curves["without_noise" if cell.epsilon is None else "private"].append(curve)
    return curves


def result() -> Figure:
    """Return accuracy with its band over all runs, above the privacy that is used."""
    curves = json.loads(RESULT.read_text())
    runs = np.array(curves["private"])
    records, accuracy = runs[0, :, 0], runs[:, :, 1]
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.1))
    plain = np.array(curves["without_noise"][0])
    above.plot(plain[:, 0], plain[:, 1], color=_GREEN, linestyle="--", label="without noise: not private")
    above.fill_between(records, accuracy.min(axis=0), accuracy.max(axis=0), color=_BLUE, alpha=0.25, linewidth=0)
    private = f"private, ε = {EPSILON} for life (median and range of {len(runs)} runs)"
    above.plot(records, np.median(accuracy, axis=0), color=_BLUE, linewidth=2, label=private)
    above.axhline(curves["always_dry"], color=_GREY, linestyle=":", label="always “dry”")
    above.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    above.set_ylabel("accuracy on\nheld-out days")
    above.set_ylim(bottom=curves["always_dry"] - 0.045)
    above.legend(loc="lower right", frameon=False, fontsize=9)
    below.step([0, *records], [0, *[EPSILON] * len(records)], where="post", color=_BLUE, linewidth=2)
    below.axhline(EPSILON, color=_INK, linestyle="--", linewidth=1)
    below.annotate("the most that any record may ever use", (records[-1], EPSILON), ha="right", va="bottom", fontsize=9)
    below.set_ylim(0, 1.6 * EPSILON)
    below.set_ylabel("ε used")
    below.set_xlabel("days (records) so far")
    below.xaxis.set_major_formatter(FuncFormatter(lambda days, _: f"{days:,.0f}"))
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    above.set_title("Does it rain? A private model after every 256 days", loc="left", fontsize=11)
    return figure


_STATIONS = (
    ("Producers", "POST records"),
    ("Log", "fsync, then 202"),
    ("Numbering", "segments"),
    ("Mechanism", "fit + noise"),
    ("Publishing", "charge + release"),
    ("Readers", "GET models, ledger"),
)


def flow() -> Figure:
    """Return what becomes of a record, from left to right, with the trust boundary."""
    figure = Figure(figsize=(9, 1.9))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, 9)
    axes.set_ylim(0, 1.9)
    axes.axis("off")
    axes.add_patch(Rectangle((0.06, 0.2), 7.4, 1.5, fill=False, linestyle="--", edgecolor=_GREY))
    axes.text(0.16, 1.52, "inside the trust boundary: holds records", color=_GREY, fontsize=9, va="center")
    axes.text(8.3, 1.52, "public", color=_GREY, fontsize=9, va="center", ha="center")
    for place, (title, text) in enumerate(_STATIONS):
        _station(axes, 0.2 + 1.47 * place, title, text)
    for place in range(len(_STATIONS) - 1):
        start = 0.2 + 1.47 * place + 1.27
        arrow = FancyArrowPatch((start, 0.8), (start + 0.2, 0.8), arrowstyle="-|>", mutation_scale=11, color=_INK)
        axes.add_patch(arrow)
    return figure


def _station(axes: Axes, left: float, title: str, text: str) -> None:
    box = FancyBboxPatch((left, 0.42), 1.26, 0.76, boxstyle="round,pad=0,rounding_size=0.08", facecolor="#e8f2f8")
    box.set_edgecolor(_BLUE)
    axes.add_patch(box)
    axes.text(left + 0.63, 0.93, title, ha="center", va="center", weight="bold", color=_INK)
    axes.text(left + 0.63, 0.65, text, ha="center", va="center", fontsize=8.5, color=_INK)


def _svg(figure: Figure) -> str:
    FigureCanvasSVG(figure)
    out = io.StringIO()
    figure.savefig(out, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def main() -> None:
    """Write the pictures; with `--measure` what `result` shows first."""
    if "--measure" in sys.argv:
        RESULT.write_text(json.dumps(measure()) + "\n")
    for name, text in pictures().items():
        (IMAGES / name).write_text(text)


if __name__ == "__main__":
    main()
