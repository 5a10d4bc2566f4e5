"""Only a family's own folder or file knows its kind and its settings: everything else asks the registry."""

import ast
import re
from pathlib import Path

import pytest

from service.learners.registry import LEARNERS
from service.mechanisms.registry import MECHANISMS
from tests.docs.pages import ROOT

SERVICE = ROOT / "service"
SOURCES = {path.relative_to(SERVICE).as_posix(): path.read_text() for path in sorted(SERVICE.rglob("*.py"))}
PAGES = {path.name: path.read_text() for path in sorted((SERVICE / "dashboard" / "static").glob("*.js"))}
FAMILIES = [*MECHANISMS, *LEARNERS]


def room(family):
    """Return the beginnings of the paths that may know a family: its folder or file, and schedules that it alone has."""
    folder = Path(*family.settings.__module__.split(".")[1:])
    own = folder if family in list(LEARNERS) else folder.parent
    return (own.as_posix(), "schedules/") if own.name == "scheduled" else (own.as_posix(),)


def said(tree):
    """Yield the texts and names that decide something: no docstrings, no descriptions for people."""
    prose = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.add(node.value)
        elif isinstance(node, ast.keyword) and node.arg == "description":
            prose.update(ast.walk(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (each.name for each in node.names if each.asname is None)


@pytest.mark.parametrize("path", SOURCES)
def test_no_source_names_the_kind_or_the_settings_of_a_family_of_another_room(path):
    if path in ("mechanisms/registry.py", "learners/registry.py"):
        return
    words = {word for text in said(ast.parse(SOURCES[path])) for word in re.findall(r"\w+", text)}
    for family in FAMILIES:
        if not path.startswith(room(family)):
            assert not {family.kind, family.settings.__name__} & words


@pytest.mark.parametrize("page", PAGES)
def test_no_page_of_the_dashboard_decides_by_a_kind(page):
    """An example that people copy aside."""
    text = PAGES[page].replace('"mechanism": {"kind": "sliding_window", "block": 1000, "blocks": 4}', "")
    text = text.replace('"learner": {"kind": "output_perturbation"}', "")
    assert not {family.kind for family in FAMILIES} & set(re.findall(r"\w+", text))


def test_no_mechanism_imports_another_one():
    folders = {room(family)[0] for family in MECHANISMS}
    for path, source in SOURCES.items():
        own = [folder for folder in folders if path.startswith(folder)]
        for other in folders - set(own) if own else ():
            assert f"service.{other.replace('/', '.')}" not in source, path


def test_every_family_has_examples_of_its_kind():
    for family in FAMILIES:
        assert family.examples
        assert all(family.settings.model_validate(each).kind == family.kind for each in family.examples.values())


def test_whatever_is_offered_or_was_measured_has_a_place_of_its_own():
    lines = [line.place for family in MECHANISMS for line in family.measured]
    offers = [offer.place for family in MECHANISMS for offer in family.offers]
    assert len(set(lines)) == len(lines)
    assert len(set(offers)) == len(offers)
