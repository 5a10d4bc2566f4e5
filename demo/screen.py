"""Prints for the person at the screen; plain lines when the output is no terminal."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import webbrowser
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo.evaluation import EVERY
from demo.service import DemoError
from demo.weather import HELD_OUT_EVERY, HORIZON_YEARS, YEARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from demo.evaluation import Figure
    from demo.follow import Row

# Both fit a terminal of 80 columns.
_HEADER = (
    f"{'year':4} {'publication':14} {'ver':>3} {'records':>7} {'window':>11} "
    f"{'accuracy':>8} {'no noise':>8} {'yesterday':>9} {'ε spent':>7}"
)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Stop, and say why; what rich does instead, exiting on the spot, would hide it inside a task."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at the end
        raise DemoError("nobody reads the output any more; everything is stopped and removed")


class Screen:
    """Writes to standard output, line by line, so that a pipe sees rows as they come."""

    def __init__(self, console: Console | None = None) -> None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace", line_buffering=True)
        self._console = console or _Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = 100
        self._header_due = True

    def introduce(self, window: int, every: int) -> None:
        """Say what is going to happen."""
        self._console.print(
            f"[bold]Perennial[/bold]: {YEARS} years of a station's weather (NOAA, public domain), sent in time order "
            "over HTTP as if every day were secret. Two publications keep a model of 'does it rain on such a day?' up "
            "to date; each may cost a day at most ε = 1 for life. [bold]online-leader[/bold] is the mechanism that "
            "docs/choosing.md recommends: it reads each day once, and remembers. [bold]sliding-window[/bold] is paper "
            f"A's: it forgets all but the last {window:,} records. Both publish after every {every} records.\n"
            f"Accuracy: on public days that are never sent (every {HELD_OUT_EVERY}th), those of the {HORIZON_YEARS} "
            "years after a model's last record. 'No noise' (the same kind of model on the same records, without "
            "privacy) and 'yesterday' (it rains if it rained the day before) are computed here, from the public copy, "
            "not by the service.\n\nStarting Valkey, PostgreSQL, the API and a worker …",
        )

    def dashboard(self, address: str, key_file: Path) -> None:
        """Say where the live dashboard is, and open it where there is a display."""
        self._console.print(
            f"Live dashboard, for as long as this runs: [bold]{address}[/bold]\n"
            f"It asks for a key: {escape(str(key_file))}\n",
            soft_wrap=True,
        )
        if self._console.is_terminal and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(address)

    @contextlib.contextmanager
    def replay(self, records: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar; yields what to call with the number of records sent."""
        columns = (TextColumn("days sent"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task("", total=records)
            yield lambda sent: progress.update(task, completed=sent)

    def row(self, row: Row) -> None:
        """Show one release."""
        if self._header_due:
            self._console.print(f"[bold]{_HEADER}[/bold]")
            self._header_due = False
        window = f"{row.window[0]}–{row.window[1]}"
        self._console.print(
            f"{row.year:4.0f} {row.publication:14} {row.version:3d} {row.records:7d} {window:>11} "
            f"[bold]{row.accuracy:8.1%}[/bold] {row.without_noise:8.1%} {row.yesterday:9.1%} {row.spent:7.3f}"
        )

    def compare(self, figures: Sequence[Figure]) -> None:
        """Show what the service says of its models beside what public test days say."""
        table = Table(title="Right for how many days? The service, and public test days", title_justify="left")
        for heading in ("publication", "ver", "years"):
            table.add_column(heading)
        for heading in ("the service", "95 % interval", "public"):
            table.add_column(heading, justify="right")
        for figure in figures:
            years = f"{figure.years[0]:.0f}–{figure.years[1]:.0f}"
            says = f"{figure.accuracy:.0%}", f"{figure.low:.0%}–{figure.high:.0%}", f"{figure.public:.0%}"
            table.add_row(figure.publication, str(figure.version), years, *says)
        self._console.print()
        self._console.print(table)
        inside = sum(figure.low <= figure.public <= figure.high for figure in figures)
        self._console.print(
            f"The service counts days that no model reads, one in {EVERY}, with noise: ε = 1 for each of them. "
            f"{inside} of its {len(figures)} intervals hold the accuracy on public test days of the same years."
        )

    def conclude(self, rows: Sequence[Row], ledger: Mapping[str, Any], chart: Path, seconds: float) -> None:
        """Sum up all releases, what was spent, and where the chart is."""
        table = Table(title="Accuracy over all releases", title_justify="left")
        table.add_column("")
        for heading in ("median", "10th percentile", "90th percentile"):
            table.add_column(heading, justify="right")
        lines = summary(rows)
        for what, accuracies in lines.items():
            low, *_, high = statistics.quantiles(accuracies, n=10, method="inclusive")
            table.add_row(what, f"{statistics.median(accuracies):.1%}", f"{low:.1%}", f"{high:.1%}")
        self._console.print()
        self._console.print(table)
        self._console.print(lesson(lines))
        spent, reserved, budget = (ledger[what]["epsilon"] for what in ("spent", "reserved", "budget"))
        self._console.print(
            f"\nLedger: the worst record has spent ε = {spent:.3f} of {budget:g}; {reserved:g} are reserved for good.\n"
            f"Chart:  {escape(_short(chart))}\n"
            f"Everything is stopped and removed; that took {seconds:.0f} s.",
            soft_wrap=True,
        )


def summary(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return the accuracies of everything compared, over the releases."""
    lines = {}
    for name in dict.fromkeys(row.publication for row in rows):
        mine = [row for row in rows if row.publication == name]
        lines[f"{name}, ε = 1"] = [row.accuracy for row in mine]
        lines[f"{name}, no noise"] = [row.without_noise for row in mine]
    lines["same as yesterday"] = [row.yesterday for row in rows]
    lines["always dry"] = [row.dry for row in rows]
    return lines


def lesson(lines: Mapping[str, Sequence[float]]) -> str:
    """Return the summary of this run in plain words."""
    medians = {name: 100 * statistics.median(accuracies) for name, accuracies in lines.items()}
    rule = "same as yesterday" if medians["same as yesterday"] > medians["always dry"] else "always dry"
    sentences = [
        f"{name} is right on {medians[f'{name}, ε = 1']:.0f} of 100 days; without noise it would be "
        f"{medians[f'{name}, no noise']:.0f}."
        for name in ("online-leader", "sliding-window")
    ]
    return (
        f"In plain words (medians): {' '.join(sentences)} The better simple rule, '{rule}', is right on "
        f"{medians[rule]:.0f}. sliding-window pays for several fits of each day and forgets the rest, so its noise "
        "never shrinks; online-leader pays for each day once and averages, so it gets better as days come."
    )


def _short(path: Path) -> str:
    """Return the path relative to the working directory if it lies below it, else as it is."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
