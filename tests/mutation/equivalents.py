"""Mutants that change nothing that anybody could see, each with the reason."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mutation.mutants import Mutant

LIST = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True)
class Equivalents:
    """The list: a reason by file, function and difference; for any value of a constant, by the constant's name."""

    reasons: dict[tuple[str, str, str], str]

    @classmethod
    def read(cls, root: Path) -> Equivalents:
        """Read the list. ValueError if it names code that is there no more: then nobody has looked at what is."""
        reasons = {}
        for path, functions in tomllib.loads(LIST.read_text()).items():
            there = {line.strip() for line in (root / path).read_text().splitlines()}
            for function, entries in functions.items():
                for entry in entries:
                    if gone := set(_lines_of(entry, there)) - there:
                        raise ValueError(f"{LIST.name}: {path} has no such lines: {sorted(gone)}")
                    for change in [entry["diff"].strip()] if "diff" in entry else entry["constants"]:
                        reasons[path, function, change] = entry["why"]
        return cls(reasons)

    def __contains__(self, mutant: Mutant) -> bool:
        changes = {mutant.diff, *re.findall(r"\A- (\w+) = ", mutant.diff)}
        return any((mutant.path, mutant.function, change) in self.reasons for change in changes)


def _lines_of(entry: dict[str, Any], there: set[str]) -> Iterator[str]:
    """Yield the lines that an entry is about; of a constant that is not among those `there`, its name."""
    if "diff" in entry:
        yield from (line[2:] for line in entry["diff"].splitlines() if line[0] == "-")
        return
    for name in entry["constants"]:
        yield next((line for line in there if line.startswith(f"{name} = ")), name)
