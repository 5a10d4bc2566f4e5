"""Results of a paper's benchmark: a line of JSON for every run, from which the missing runs follow, and pictures."""

import argparse
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

Measure = Callable[[argparse.Namespace], None]
Cell = tuple[Any, ...]
"""what tells a run from all others"""


def lines(path: Path) -> list[dict[str, Any]]:
    """Yield all results, each with its `cell`."""
    if not path.exists():
        return []
    with _open(path, "rt") as file:
        return [json.loads(line) for line in file]


def done(path: Path) -> set[Cell]:
    """Return the cells that have a result."""
    return {tuple(line["cell"]) for line in lines(path)}


def append(path: Path, cell: Cell, **values: Any) -> None:
    """Add a run's line."""
    with _open(path, "at") as file:
        file.write(json.dumps({"cell": cell, **values}) + "\n")


def _open(path: Path, mode: str) -> IO[str]:
    """Open a file of results, which is compressed if its name ends with .xz."""
    opener: Any = lzma.open if path.suffix == ".xz" else Path.open
    return cast("IO[str]", opener(path, mode))


def options(parser: argparse.ArgumentParser, name: str) -> argparse.Namespace:
    """Parse the command line, with `--results`, `--table` and `--plots`."""
    parser.add_argument("--results", type=Path, default=Path(f"{name}.jsonl"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plots", type=Path)
    return parser.parse_args()


def run_or_show(
    chosen: argparse.Namespace, measure: Measure, table: Callable[[Path], None], plots: Callable[[Path, Path], None]
) -> None:
    """Run what is missing; or show what is there, as a table, and as pictures in a folder."""
    if chosen.table:
        table(chosen.results)
    if chosen.plots:
        plots(chosen.results, chosen.plots)
    if not (chosen.table or chosen.plots):
        measure(chosen)


def save(figure: Any, file: Path, salt: str) -> None:
    """Write a small SVG that is the same again for the same figure; its text stays text."""
    import matplotlib as mpl

    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    file.write_text(short(file.read_text()))


def short(svg: str) -> str:
    """Return the picture with coordinates to a tenth of a point, and without white space that nothing needs."""

    def tag(element: re.Match[str]) -> str:
        rounded = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.1f}", element[0])
        return re.sub(r' d="[^"]*"', lambda path: re.sub(r"\s*([MLCQz])\s*", r"\1", path[0]), rounded)

    return re.sub(r"\n\s+", "\n", re.sub("<[^>]*>", tag, svg))
