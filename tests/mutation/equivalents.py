"""Mutants that change nothing that anybody could see, each with the reason."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.mutation.mutants import Mutant

LIST = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True)
class Equivalents:
    """The list: a reason by file, function and difference."""

    reasons: dict[tuple[str, str, str], str]

    @classmethod
    def read(cls, root: Path) -> Equivalents:
        """Read the list. ValueError if it names code that is there no more: then nobody has looked at what is."""
        reasons = {}
        for path, functions in tomllib.loads(LIST.read_text()).items():
            there = {line.strip() for line in (root / path).read_text().splitlines()}
            for function, entries in functions.items():
                for entry in entries:
                    if gone := {line[2:] for line in entry["diff"].splitlines() if line[0] == "-"} - there:
                        raise ValueError(f"{LIST.name}: {path} has no such lines: {sorted(gone)}")
                    reasons[path, function, entry["diff"].strip()] = entry["why"]
        return cls(reasons)

    def __contains__(self, mutant: Mutant) -> bool:
        return (mutant.path, mutant.function, mutant.diff) in self.reasons
