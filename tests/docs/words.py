"""Finds words that a newcomer can't read: rules 1 and 3 of the project's style, as far as a program can hold them.

- opening: a sentence of a docstring, a message or a page begins with What, Who, Whoever, That or Of. Questions may.
- stand-in: a variable, parameter, function or attribute is called told, found, kept, asked, said or about.
- unit: a constant that is a length of time names no unit.

`python -m tests.docs.words [FILE …]` prints what it finds, by default in the whole tree.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = "tests/docs/test_words.py"
FOLDERS = ("service", "client", "docs", "demo", "benchmarks", "migrations", "tests")
OPENINGS = re.compile(r"(?:What|Who|Whoever|That|Of)\b(?!')")
BEGINNINGS = re.compile(r"(?:\A(?:[-*|] )?|[.!?:]\s+|\n\s*\n|\n\s*[-*|] )\s*[\"'(*_`]*")
STAND_INS = {"told", "found", "kept", "asked", "said", "about"}
ANSWERS = {f"service/api/routes/{field}" for field in ("explorer.py:about", "explorer.py:found", "streams.py:kept")}
"""Fields of the HTTP interface, which have these names for ever."""
TIME_ARGUMENTS = {"timeout", "seconds", "timeout_seconds", "interval"}
UNITS = re.compile(r"SECONDS|MINUTES|HOURS|DAYS|YEARS|MICROSECONDS|MILLISECONDS|(?:^|_)(?:MS|NS|US)(?:_|$)")


class Finding(NamedTuple):
    """A place that breaks a rule."""

    rule: str
    path: str
    line: int
    text: str


def findings(path: Path) -> Iterator[Finding]:
    """Yield what a file of Python or Markdown has that the rules do not allow."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text()
    if path.suffix == ".md":
        for line, sentence in _sentences(_prose(text)):
            yield Finding("opening", name, line, sentence)
        return
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for line, sentence in _sentences(node.value):
                yield Finding("opening", name, node.lineno + line - 1, sentence)
        for line, named in _names(node):
            if named.lstrip("_") in STAND_INS and f"{name}:{named}" not in ANSWERS:
                yield Finding("stand-in", name, line, named)
        for line, constant in _times(node):
            if not UNITS.search(constant):
                yield Finding("unit", name, line, constant)


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence that begins with a word it should not, with the number of its line."""
    if not OPENINGS.search(text):
        return
    for match in BEGINNINGS.finditer(text):
        if OPENINGS.match(text, match.end()):
            sentence = re.split(r"(?<=[.!?])(?:\s|$)", text[match.end() :], maxsplit=1)[0]
            if not sentence.rstrip("*_").endswith("?"):
                yield text.count("\n", 0, match.end()) + 1, " ".join(sentence.split())[:100]


def _prose(text: str) -> str:
    """Return a page without its blocks of code and its headings; lines stay where they are."""
    fenced = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^#.*$", "", fenced, flags=re.MULTILINE)


def _names(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Name(id=name, ctx=ast.Store(), lineno=line):
            yield line, name
        case ast.arg(arg=name, lineno=line):
            yield line, name
        case ast.FunctionDef(name=name, lineno=line) | ast.AsyncFunctionDef(name=name, lineno=line):
            yield line, name
        case ast.Attribute(attr=name, ctx=ast.Store(), lineno=line):
            yield line, name


def _times(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield constants that are used as a length of time."""
    if not isinstance(node, ast.Call):
        return
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    times = [each.value for each in node.keywords if each.arg in TIME_ARGUMENTS]
    times += node.args[:1] if called == "sleep" else []
    for time in times:
        name = time.attr if isinstance(time, ast.Attribute) else getattr(time, "id", "")
        if name.isupper():
            yield time.lineno, name


def files() -> list[Path]:
    """Return every file of Python and Markdown of the project."""
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md"}]
    return sorted(ROOT.glob("*.md")) + sorted(path for path in inside if path != ROOT / EXAMPLES)


def main(names: Iterable[str]) -> int:
    """Print what is found; return the exit status."""
    paths = [Path(name).resolve() for name in names] or files()
    everything = [each for path in paths for each in findings(path)]
    for each in everything:
        print(f"{each.path}:{each.line}: {each.rule}: {each.text}")
    return 1 if everything else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
