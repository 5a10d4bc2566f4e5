"""Rows are locked in few places, in one order: `service.store.locks` tells it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import service

ROOT = Path(service.__file__).parent
LOCK_ROWS = {
    "store/locks.py": "streams and publications",
    "store/leases.py": "leases",
    "store/labels.py": "a request for a label, passing by those that somebody has locked",
    "store/schema_version.py": "all leases, first thing in a migration",
    "store/newest.py": "a stream, passing by it if somebody has locked it",
}
LOCK_STREAMS = {"ledger/entry.py", "store/erasing.py", "store/numbering.py", "store/retention.py"}
SOURCES = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.py")}


def using(name: str) -> set[str]:
    """Return the modules that import what has this dotted name, or reach it through the module that holds it."""
    module, _, function = name.rpartition(".")
    names = {name, f"{module.rpartition('.')[2]}.{function}"}
    return {file for file, text in SOURCES.items() if not names.isdisjoint(named(text))}


def named(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def test_rows_are_locked_where_the_order_of_locks_is_known():
    asks = ("with_for_update", "FOR UPDATE", "FOR NO KEY UPDATE", "FOR SHARE", "LOCK TABLE")
    assert {file for file, text in SOURCES.items() if any(each in text for each in asks)} == LOCK_ROWS.keys()


def test_the_ledger_is_the_one_door_to_the_locks_of_streams_and_publications():
    assert using("service.store.locks") == LOCK_STREAMS


def test_only_the_end_of_a_publication_settles_what_stays_reserved():
    assert using("service.ledger.reservations.settle") == {"ledger/ending.py"}


def test_publications_start_and_end_through_the_ledger_alone():
    assert using("service.store.publications.create") == {"ledger/admission.py"}
    assert using("service.store.publications.mark_ended") == {"ledger/ending.py"}
