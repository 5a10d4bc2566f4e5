"""Each citation of docs/paper-audit.md names a heading of that page, by the heading's first word."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, page

LABEL = r"[A-Z]?\d+(?:\.\d+)*(?!\w)"
HEADINGS = {
    heading.rstrip(".") for heading in re.findall(rf"^#+ ({LABEL}\.?) ", page("paper-audit.md"), flags=re.MULTILINE)
}
FOLDERS = ("service", "benchmarks", "tests", "docs")
NOT_CITING = {"docs/paper-audit.md", "docs/README.md", "tests/docs/test_paper_audit.py"}
AS_A_FILE = re.compile(r'[("/]paper-audit\.md[)"#]')


def citing() -> list[Path]:
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md"))
    files = [path for path in paths if path.relative_to(ROOT).as_posix() not in NOT_CITING]
    return [path for path in files if "paper-audit.md" in path.read_text()]


def citations(text: str) -> list[tuple[str, ...]]:
    """Return the labels of each citation, whose line breaks and comment signs count as spaces; () without a label."""
    flat = re.sub(r"\s+(?:# )?", " ", AS_A_FILE.sub("", text))
    following = re.compile(rf"paper-audit\.md(?: ({LABEL}(?:(?:,| and| to) {LABEL})*))?")
    return [tuple(re.findall(LABEL, match[1] or "")) for match in following.finditer(flat)]


@pytest.mark.parametrize("path", citing(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_citation_names_a_heading(path):
    for labels in citations(path.read_text()):
        assert labels, "say which heading of paper-audit.md is meant, by its first word"
        assert set(labels) <= HEADINGS
