"""Bugs that others shipped or the papers invite, each with the test that must catch it.

`pytest --planted` plants one after the other in a fresh process (`pytest --plant NAME`) and wants the named test to
fail there, and to pass without. A plant replaces what it names in the running program, before anything uses it.
"""

from tests.guarantees.planted import (
    access,
    answering,
    api,
    bounds,
    client,
    dashboard,
    embedded,
    evaluation,
    fits,
    learning,
    ledger,
    log,
    mechanisms,
    moving,
    preparation,
    privacy,
    record,
    sealing,
    seen,
    store,
    unconfirmed,
    unit_audits,
    units,
    verifying,
    worker,
)
from tests.guarantees.planted.bug import BUGS

__all__ = [
    "BUGS",
    "access",
    "answering",
    "api",
    "bounds",
    "client",
    "dashboard",
    "embedded",
    "evaluation",
    "fits",
    "learning",
    "ledger",
    "log",
    "mechanisms",
    "moving",
    "preparation",
    "privacy",
    "record",
    "sealing",
    "seen",
    "store",
    "unconfirmed",
    "unit_audits",
    "units",
    "verifying",
    "worker",
]
