"""Only a family's own folder or file knows its kind and its settings: everything else asks the registry."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from docs.http_reference import openapi as document
from service.learning.registry import LEARNERS
from service.mechanisms.measured import LINES, OFFERS
from service.mechanisms.registry import MECHANISMS
from tests.docs.pages import ROOT

SERVICE = ROOT / "service"
SOURCES = {path.relative_to(SERVICE).as_posix(): path.read_text() for path in sorted(SERVICE.rglob("*.py"))}
PAGES = {path.name: path.read_text() for path in sorted((SERVICE / "dashboard" / "static").glob("*.js"))}
FAMILIES = [*MECHANISMS, *LEARNERS]


def room(family):
    """Return how the paths begin that may know a family: its folder or file, and the schedules of `scheduled`."""
    folder = Path(*family.settings.__module__.split(".")[1:])
    own = folder if family in list(LEARNERS) else folder.parent
    return (own.as_posix(), "schedules/") if own.name == "scheduled" else (own.as_posix(),)


def known_by_two_lines(family):
    """Return whether the registry imports the family and lists it, and does nothing else with it."""
    lines = SOURCES["mechanisms/registry.py"].splitlines()
    return room(family)[0].endswith(family.kind) and sum(family.kind in line for line in lines) == 2


def texts(tree):
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


COMMON = {"evaluation"}
"""Kinds that are also what streams, the ledger and releases call something of theirs."""


@pytest.mark.more
@pytest.mark.parametrize("path", SOURCES)
def test_no_source_names_the_kind_or_the_settings_of_a_family_of_another_room(path):
    if path in ("mechanisms/registry.py", "learning/registry.py", "explorer/advice.py"):
        return
    words = {word for text in texts(ast.parse(SOURCES[path])) for word in re.findall(r"\w+", text)}
    for family in FAMILIES:
        if not path.startswith(room(family)):
            assert not ({family.kind, family.settings.__name__} - COMMON) & words


@pytest.mark.parametrize("path", [path for path in SOURCES if not path.startswith(("mechanisms/", "figures/"))])
def test_no_source_outside_imports_the_folder_of_a_mechanism(path):
    folders = {room(family)[0].replace("/", ".") for family in MECHANISMS}
    assert not [folder for folder in folders if f"service.{folder}" in SOURCES[path]]


@pytest.mark.parametrize("page", PAGES)
def test_no_page_of_the_dashboard_decides_by_a_kind(page):
    """Examples that people copy aside: they are text."""
    text = re.sub(r'"(mechanism|learner)": \{"kind": "\w+"[^}]*\}', "", PAGES[page])
    assert not ({family.kind for family in FAMILIES} - COMMON) & set(re.findall(r"\w+", text))


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


REMOVABLE = [family.kind for family in MECHANISMS if family.takes and known_by_two_lines(family)]


@pytest.mark.more
@pytest.mark.parametrize(
    "families",
    [REMOVABLE, *(pytest.param([kind], marks=pytest.mark.long) for kind in REMOVABLE)],
    ids=" ".join,
)
def test_families_are_taken_out_with_their_folders_and_their_lines_of_the_registry(families, tmp_path):
    """Nothing else of the service knows them: without both the document is that of all others.

    All are taken out at once: no mechanism imports another one.
    """
    shutil.copytree(SERVICE, tmp_path / "service", ignore=shutil.ignore_patterns("samples"))
    for family in families:
        shutil.rmtree(tmp_path / "service" / "mechanisms" / family)
    registry = tmp_path / "service" / "mechanisms" / "registry.py"
    lines = registry.read_text().splitlines(keepends=True)
    others = [line for line in lines if not any(family in line for family in families)]
    assert len(lines) - len(others) == 2 * len(families)
    registry.write_text("".join(others))
    code = "import json, sys; from service.api.app import create_app; from service.settings import Settings; "
    code += "json.dump(create_app(Settings(_env_file=None)).openapi()['components']['schemas'], sys.stdout)"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    without, whole = json.loads(ended.stdout), document()["components"]["schemas"]
    names = {each.settings.__name__ for each in MECHANISMS}
    assert names - set(without) == {MECHANISMS[family].settings.__name__ for family in families}
    offered = json.dumps(without["PlanRequest"]["properties"]["mechanism"])
    assert not any(family in offered for family in families)
    assert all(without[name] == whole[name] for name in names & set(without))


@pytest.mark.parametrize("family", list(MECHANISMS), ids=lambda family: family.kind)
def test_a_mechanism_has_a_page_and_a_folder_of_tests(family):
    assert (ROOT / "docs" / "mechanisms" / f"{family.kind}.md").exists()
    assert list((ROOT / "tests" / room(family)[0]).glob("test_*.py"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_the_table_of_all_names_where_a_family_comes_from_and_what_it_is_for(family):
    assert f"| {family.source} | {family.summary} |" in (ROOT / "docs" / "README.md").read_text()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.kind)
def test_the_setting_that_is_refused_for_want_of_accuracy_is_there(family):
    refused = [family.accuracy_setting] if family.accuracy_setting else []
    fields = {"mechanism": [family.settings], "learner": [each.settings for each in LEARNERS]}
    for place, name in (each.split(".") for each in refused):
        assert any(name in settings.model_fields for settings in fields[place])


@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: offer.name)
def test_the_settings_that_the_explorer_offers_are_valid(offer):
    assert LEARNERS[offer.learner]
    for settings in ({}, *offer.candidates.values()):
        MECHANISMS[offer.mechanism["kind"]].settings.model_validate(offer.settings(1000) | settings)


@pytest.mark.parametrize("line", [line for line in LINES if line.mechanism], ids=lambda line: line.title)
def test_a_measured_line_names_settings_of_its_mechanism(line):
    assert LEARNERS[line.learner]
    assert set(line.mechanism) <= set(MECHANISMS[line.mechanism["kind"]].settings.model_fields)


def test_what_releases_no_model_at_public_times_is_not_evaluated():
    linear = SimpleNamespace(encoder=None)
    refused = {family.kind for family in MECHANISMS if family.not_evaluated(linear) is not None}
    assert refused == {"evaluation", "preparation", "linear_queries", "active_learning"}
