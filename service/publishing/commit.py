"""One step of a publication, written down: charges, releases, what the next step starts from and how far it is.

All in the transaction of an entry of the ledger, under its locks, so that it happens whole or not at all.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Connection

from service.ledger import Entry, charging
from service.ledger.errors import LedgerBroken
from service.mechanisms.mechanism import Mechanism
from service.publishing.prepared import PendingStep
from service.store import charges, labels, parts, publications, releases, streams
from service.store.database import pipelined
from service.store.publications import Publication
from service.store.step_records import SavedState, remembered
from service.store.streams import Stream

_log = structlog.get_logger(__name__)

# Whoever hangs longer in the middle of a commit has its transaction undone, for others to go on.
SECONDS_TO_COMMIT = 5.0
LEAST_BYTES_PER_SECOND = 1e7  # that a transaction writes
FINISHED = "it has released all that it releases"


def seconds_to_write(size: int) -> float:
    """How long the transaction of a step may take that leaves so many bytes."""
    return SECONDS_TO_COMMIT + size / LEAST_BYTES_PER_SECOND


def of_another_guarantee(publication: Publication, mechanism: Mechanism) -> bool:
    """Whether its configuration promises something else than was reserved for it.

    Noise and charges follow from the one, what other publications may still have from the other.
    """
    configured = (mechanism.currency, mechanism.privacy.epsilon, mechanism.privacy.delta)
    return configured != (publication.kind, publication.epsilon, publication.delta)


def charges_otherwise(publication: Publication, mechanism: Mechanism) -> bool:
    """Return whether its mechanism would charge records at another moment than its obligations say, or other slots."""
    owes = publication.owes
    return type(mechanism.charging) is not type(owes.charging) or mechanism.reads_slots is not owes.slots


def remembers(publication: Publication, mechanism: Mechanism, memory: SavedState) -> bool:
    """Whether what its earlier steps left is there as they left it, and the next would go on with the same noise."""
    terms = mechanism.terms(publication.due - publication.start)
    return memory.digest == remembered(memory.parts, terms).digest


def check(entry: Entry) -> None:
    """Check that nothing is known against publishing.

    Raises:
        LedgerBroken: something is.
    """
    if entry.stream.distrusted is not None:
        raise LedgerBroken(entry.stream.distrusted)
    if not publications.is_untampered(entry.publication):
        raise LedgerBroken(f"publication {entry.publication.name}: it is not as it was left")


def commit(entry: Entry, step: PendingStep, at: datetime | None = None) -> tuple[Publication, Stream]:
    """Charge and release a step, and move the publication on; return it and the stream as they are left.

    at: the tick at which a step that waited is published, its releases' and charges' time; None: now.

    Raises:
        LedgerBroken: the ledger is not as it was left.
        OverBudget: a record would pay more than the publication may charge any; nothing is written.
    """
    connection, publication, stream = entry.connection, entry.publication, entry.stream
    charged = entry.charge(step.charges, step.most, at) if step.charges else None
    paid = _payments(connection, publication, step, [] if charged is None else charged.charges)
    at = at or (charging.now(connection) if charged is None else charged.at)
    if step.releases and publication.asks_people:
        labels.forget(connection, publication.id)  # what was asked for has been learnt from
    if step.asks:
        charge = stream.charges + len(step.charges)
        labels.ask(connection, publication, step.asks, step.empty, seconds=_asked_for(publication), charge=charge)
    parts.keep(connection, publication.id, step.left)
    moved = step.moved(publication)
    with pipelined(connection):
        if charged is not None:
            stream = charging.append(connection, charged)
            moved = replace(moved, worst_record=charged.counted.worst_record, worst_amount=charged.counted.worst_amount)
        if step.releases:
            digest = releases.append(connection, publication, stream, step.releases, paid, at)
            stream = replace(stream, releases=stream.releases + len(step.releases), newest_release=digest)
            moved = replace(moved, digest=digest)
        if charged is not None or step.releases:
            streams.move(connection, stream)
        moved = publications.move(connection, moved)
    left = replace(entry, publication=moved)
    if step.halts is not None:
        moved = halt(left, step.halts)
    elif step.finishes:
        moved = left.end("stopped", FINISHED)
    return moved, stream


def halt(entry: Entry, reason: str) -> Publication:
    """End a publication that can't go on, loudly, and return it."""
    _log.error("publication_halted", publication=entry.publication.name, reason=reason)
    return entry.end("halted", reason)


def _asked_for(publication: Publication) -> int:
    """For how many seconds people are asked for a label."""
    labelling = publication.owes.labelling
    if labelling is None:
        raise LedgerBroken(f"publication {publication.name}: it asks for labels that it may not ask for")
    return labelling.seconds


def _payments(
    connection: Connection, publication: Publication, step: PendingStep, made: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The charge that pays for each release: its own, of those; or that with which the last of its records arrived.

    Raises:
        LedgerBroken: there is none.
    """
    payments, own = [], iter(made)
    for each, at_arrival in zip(step.releases, step.at_arrival, strict=True):
        if not at_arrival:
            payments.append(next(own))
            continue
        paid = made[-1] if made else charges.newest(connection, publication)
        last = each.fit[1]
        if paid is None or not charges.intact(paid) or (paid["version"], paid["end"]) != (None, last):
            raise LedgerBroken(f"publication {publication.name}: the records of version {each.version} have not paid")
        payments.append(paid)
    return payments
