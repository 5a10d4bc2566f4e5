"""A publication's obligations are a typed record; a publication from before such records has the same."""

import ast
import importlib.util
import json
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from service.mechanisms.building import build
from service.mechanisms.timing import fit_cost, largest_cost
from service.privacy.accounting.composition import Slots
from service.privacy.accounting.obligations import (
    AtArrival,
    FitSize,
    Labelling,
    Obligations,
    OnOpening,
    WithEachRelease,
)
from service.streams.schema import StreamSchema
from tests.mechanisms.publications import ASKED, SAMPLE, configuration

ROOT = Path(__file__).parents[2]


@cache
def built(name):
    return build(StreamSchema.model_validate(ASKED[name][0]), configuration(name))


def stored(value):
    return json.loads(json.dumps(value))


@pytest.fixture(scope="module")
def migration():
    path = ROOT / "migrations/versions/0013_add_obligations.py"
    spec = importlib.util.spec_from_file_location("migration", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.more
@pytest.mark.parametrize("name", ASKED)
def test_obligations_are_read_as_they_were_stored(name):
    owed = built(name).obligations()
    again = Obligations.from_json(stored(owed.to_json()))
    assert again.to_json() == owed.to_json()
    assert again == owed
    assert largest_cost(owed.fit).seconds > 0
    assert largest_cost(owed.fit) == fit_cost(owed.fit, owed.fit.records, in_blocks=False)


def test_nothing_of_an_obligation_is_lost_when_it_is_stored():
    owed = Obligations(
        charging=WithEachRelease(),
        labelling=Labelling(seconds=5, lease_seconds=2),
        cells=4,
        ticks=False,
        slots=Slots.EVALUATION,
        fit=FitSize(**{each.name: number for number, each in enumerate(fields(FitSize), start=1)}),
        draws=3,
        unit={"max_records": 2, "min_separation": 1, "factor": "2"},
    )
    assert Obligations.from_json(stored(owed.to_json())) == owed


@pytest.mark.more
@pytest.mark.parametrize("name", [name for name in ASKED if name != SAMPLE and "steps" not in name])  # which came later
def test_the_migration_reads_the_same_from_a_plan(name, migration):
    mechanism = built(name)
    assert migration.of_plan(stored(mechanism.plan())) == stored(mechanism.obligations().to_json())


@pytest.mark.parametrize("name", ASKED)
def test_it_owes_what_its_mechanism_charges(name):
    _, _, mechanism, _ = ASKED[name]
    owed = built(name).obligations()
    kind = {"active_learning": AtArrival, "linear_queries": OnOpening}.get(mechanism["kind"], WithEachRelease)
    assert type(owed.charging) is kind
    assert owed.ticks is configuration(name).has_ticks
    assert (owed.cells is not None) is (kind is OnOpening)


@pytest.mark.parametrize("plan", [{}, {"another": 1}, {"fits": 5}, {"arrival": {}}, {"first_instance": {}}, [], None])
def test_the_migration_passes_over_a_plan_that_was_changed(plan, migration):
    obligations = Obligations.from_json(migration.of_plan(plan))
    assert (obligations.charging, obligations.labelling, obligations.cells) == (WithEachRelease(), None, None)


def test_obligations_of_another_version_are_not_guessed():
    owed = built("psgd").obligations().to_json()
    for wrong in ({"version": 2}, {"charging": {"when": "never"}}, {"charging": {"when": "arrival", "event": {}}}):
        with pytest.raises(ValueError, match=r"not known|not charged|lacks"):
            Obligations.from_json(owed | wrong)


PLANS = {"plan", "plans", "planned"}
READERS = {
    "service/api/routes/ledger.py",  # shows the share of a publication's lifetime
}


def reads(tree):
    """Lines that take something out of a plan, by a subscript, `get` or `in`."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=of) | ast.Attribute(value=of, attr="get"):
                compared = [of]
            case ast.Compare(ops=ops, comparators=comparators):
                compared = [of for op, of in zip(ops, comparators, strict=True) if isinstance(op, ast.In | ast.NotIn)]
            case _:
                compared = []
        for of in compared:
            if (of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", None)) in PLANS:
                yield node.lineno


def test_nothing_but_its_mechanism_reads_a_plan():
    """Reads of a plan would decide by a text for people: obligations say what a publication owes."""
    readers = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in ROOT.glob("service/**/*.py")
        if "mechanisms" not in path.parts and str(path.relative_to(ROOT)) not in READERS
        for line in reads(ast.parse(path.read_text()))
    }
    assert readers == set()


@pytest.mark.parametrize(
    "text", ['publication.plan["labels"]', '"arrival" in publication.plan', 'plan.get("fits")', '"a" not in planned']
)
def test_such_reads_would_be_seen(text):
    assert list(reads(ast.parse(text)))
