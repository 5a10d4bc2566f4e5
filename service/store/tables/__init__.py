"""The tables of PostgreSQL. Migrations make these tables; a test keeps the two equal.

Ranges of records are half-open, [start, stop); numbers are absolute (a stream's first record is 0).
`stop` is what the API calls `end`, a reserved word in SQL.
"""

from service.store.tables.access import keys, sessions
from service.store.tables.base import metadata
from service.store.tables.charging import (
    charges,
    evaluation_kept,
    evaluation_outlines,
    kept_reservations,
    outlines,
    spent,
)
from service.store.tables.exploring import datasets, explorations, findings
from service.store.tables.leasing import leases
from service.store.tables.publishing import (
    attempts,
    label_requests,
    memories,
    parked,
    parts,
    publications,
    releases,
    shown,
    waits,
)
from service.store.tables.recording import (
    dead_letters,
    entries,
    erasures,
    resumptions,
    segments,
    streams,
    unit_secrets,
    units,
)
from service.store.tables.versions import served_schemas

APPEND_ONLY = (charges, releases)
"""Rows of these are written once: triggers refuse anybody else's change, and the service's role has no right to any."""

READ_ONLY = (served_schemas,)
"""Migrations alone write these."""

__all__ = [
    "APPEND_ONLY",
    "READ_ONLY",
    "attempts",
    "charges",
    "datasets",
    "dead_letters",
    "entries",
    "erasures",
    "evaluation_kept",
    "evaluation_outlines",
    "explorations",
    "findings",
    "kept_reservations",
    "keys",
    "label_requests",
    "leases",
    "memories",
    "metadata",
    "outlines",
    "parked",
    "parts",
    "publications",
    "releases",
    "resumptions",
    "segments",
    "served_schemas",
    "sessions",
    "shown",
    "spent",
    "streams",
    "unit_secrets",
    "units",
    "waits",
]
