"""The mutants of a file: mutmut's operators, applied one at a time.

mutmut's own runner leaves out what is decorated (cached functions, properties) and what stands outside of functions,
and there the constants of the proofs are. So only its operators are used.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALWAYS_NOTICED = {"isinstance", "len"}  # calls that raise with any other arguments
# Arguments of calls that make no difference: a check that no program of ours fails, and what only saves time or is a
# text. (Errors' texts are left out with their `raise`; other texts are what tests of golden files are for.)
UNSEEN = {("Field", "description"), ("zip", "strict"), ("astype", "copy")}


@dataclass(frozen=True)
class Mutant:
    """One change of one file. `lines`: from the first to the last line of the statement that it changes."""

    path: str
    function: str
    number: int  # among the mutants of this function
    lines: range
    module: cst.Module = field(repr=False)
    original: cst.CSTNode = field(repr=False)
    changed: cst.CSTNode = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.path}::{self.function}::{self.number}"

    @property
    def place(self) -> str:
        """The function, or outside of functions the name that the statement defines."""
        first = self.module.code.splitlines()[self.lines.start - 1]
        return re.split(r"\W", first)[0] if self.function == "<module>" else self.function

    @property
    def source(self) -> str:
        """The file with this change."""
        return self.module.deep_replace(self.original, self.changed).code

    @property
    def diff(self) -> str:
        """The lines that go and the lines that come, without indentation."""
        compared = difflib.ndiff(self.module.code.splitlines(), self.source.splitlines())
        return "\n".join(f"{line[0]} {line[2:].strip()}" for line in compared if line[0] in "-+")


def mutants(root: Path, path: str) -> list[Mutant]:
    """Return all mutants of a file, in its order."""
    wrapper = MetadataWrapper(cst.parse_module((root / path).read_text()), unsafe_skip_copy=True)
    visitor = _Visitor(path, wrapper.module)
    wrapper.visit(visitor)
    return visitor.mutants


class _Visitor(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, path: str, module: cst.Module) -> None:
        super().__init__()
        self.mutants: list[Mutant] = []
        self._path, self._module = path, module
        self._names: list[str] = []
        self._lines: list[range] = []
        self._numbers: dict[str, int] = {}
        self._unseen: set[cst.CSTNode] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _left_out(node) or node in self._unseen:
            return False
        self._unseen.update(child for child in node.children if _is_unseen(node, child))
        self._unseen.update(_lengths_left_open(node))
        if isinstance(node, cst.ClassDef | cst.FunctionDef):
            self._names.append(node.name.value)
        if isinstance(node, cst.BaseStatement):
            self._lines.append(self._of_statement(node))
        for changed in _changes(node):
            self._add(node, changed)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if _left_out(original_node):
            return
        if isinstance(original_node, cst.ClassDef | cst.FunctionDef):
            self._names.pop()
        if isinstance(original_node, cst.BaseStatement):
            self._lines.pop()

    def _add(self, node: cst.CSTNode, changed: cst.CSTNode) -> None:
        function = ".".join(self._names) or "<module>"
        number = self._numbers[function] = self._numbers.get(function, 0) + 1
        self.mutants.append(Mutant(self._path, function, number, self._lines[-1], self._module, node, changed))

    def _of_statement(self, node: cst.CSTNode) -> range:
        """The lines of a statement; of one with a body, those before the body."""
        place = self.get_metadata(PositionProvider, node)
        body = getattr(node, "body", None)
        if isinstance(body, cst.IndentedBlock):
            return range(place.start.line, self.get_metadata(PositionProvider, body.body[0]).start.line)
        return range(place.start.line, place.end.line + 1)


def _left_out(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Annotation | cst.Decorator | cst.Raise | cst.Import | cst.ImportFrom) or (
        isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in ALWAYS_NOTICED
    )


def _changes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            for changed in operator(node):
                if not (_changes_unseen(node, changed) or _names_no_type_for_doubles(node, changed)):
                    yield changed


def _is_unseen(call: cst.CSTNode, part: cst.CSTNode) -> bool:
    """Whether this part of a call is an argument of UNSEEN."""
    if not (isinstance(call, cst.Call) and isinstance(part, cst.Arg) and part.keyword is not None):
        return False
    function = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    return isinstance(function, cst.Name) and (function.value, part.keyword.value) in UNSEEN


def _lengths_left_open(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the -1 among the lengths of a reshape: numpy takes any negative number for it."""
    if not (isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "reshape"):
        return []
    return [arg.value for arg in node.args if isinstance(arg.value, cst.UnaryOperation)]


def _names_no_type_for_doubles(node: cst.CSTNode, changed: cst.CSTNode) -> bool:
    """Whether `astype(np.float64)` becomes `astype(None)`: numpy's own default is np.float64."""
    if not (isinstance(node, cst.Call) and isinstance(changed, cst.Call)):
        return False
    before, after = (cst.Module([]).code_for_node(each) for each in (node, changed))
    return before.endswith(".astype(np.float64)") and after == before.replace("astype(np.float64)", "astype(None)")


def _changes_unseen(node: cst.CSTNode, changed: cst.CSTNode) -> bool:
    """Whether all that differs is an argument of UNSEEN."""
    if not (isinstance(node, cst.Call) and isinstance(changed, cst.Call)):
        return False
    seen = [[id(arg.value) for arg in call.args if not _is_unseen(node, arg)] for call in (node, changed)]
    return seen[0] == seen[1] and len(seen[0]) < len(node.args) and node.func is changed.func
