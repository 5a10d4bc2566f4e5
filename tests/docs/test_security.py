"""Everything that SECURITY.md names exists: tests, settings, limits."""

import ast
import re
from pathlib import Path

import pytest

from service.settings import Settings
from tests.docs.pages import ROOT

TEXT = (ROOT / "SECURITY.md").read_text()
THREATS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in TEXT.split("\n## Threats\n")[1].split("\n## ")[0].splitlines()
    if line.startswith("| ")
][1:]


def _tests_in(path: Path, within: tuple[str, ...]) -> set[str]:
    """The names of a file's tests, as pytest writes them."""
    node = ast.parse(path.read_text())
    for name in within:
        node = next(each for each in node.body if isinstance(each, ast.ClassDef) and each.name == name)  # type: ignore[assignment]
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")}


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[^`]+)`", TEXT))))
def test_a_test_that_shows_it_exists(named):
    file, *within, name = named.split("::")
    assert name in _tests_in(ROOT / file, tuple(within))


@pytest.mark.parametrize("threat", THREATS, ids=lambda cells: cells[0])
def test_every_threat_has_a_test_or_says_that_it_has_none(threat):
    _, met, shown = threat
    assert met
    assert re.search(r"`tests/[^`]+::test_\w+`|`tests/[^`]+::Test\w+::test_\w+`", shown) or shown.startswith("none: ")


def test_every_setting_named_exists():
    named = set(re.findall(r"PERENNIAL_[A-Z_]+", TEXT))
    assert named
    assert named <= {f"PERENNIAL_{name.upper()}" for name in Settings.model_fields}
