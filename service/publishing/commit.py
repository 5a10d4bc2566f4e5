"""One step of a publication, written down: charges, releases, what the next step starts from and how far it is.

All in the caller's transaction, under the locks of publication and stream, so that it happens whole or not at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from service.mechanisms.mechanism import Mechanism, Model, Part, Step
from service.store import labels, ledger, parts, publications, releases
from service.store.database import pipelined
from service.store.ledger import LedgerBroken, NewCharge
from service.store.parts import Memory, Values
from service.store.publications import Publication
from service.store.releases import NewRelease
from service.store.streams import Stream

# Whoever hangs longer in the middle of a commit has its transaction undone, for others to go on.
SECONDS_TO_COMMIT = 5.0
LEAST_BYTES_PER_SECOND = 1e7  # that a transaction writes


def seconds_to_write(size: int) -> float:
    """How long the transaction of a step may take that leaves so many bytes."""
    return SECONDS_TO_COMMIT + size / LEAST_BYTES_PER_SECOND


def written(step: Step) -> int:
    """How many bytes a step leaves."""
    return sum(each.parameters.nbytes for each in step.releases) + sum(values.nbytes for values in kept(step).values())


def kept(step: Step) -> Mapping[int, Values]:
    """The parts that a step leaves, by their numbers."""
    return {each.number: each.values for each in step.chain if isinstance(each, Part)}


def of_another_guarantee(publication: Publication, mechanism: Mechanism) -> bool:
    """Whether its configuration promises something else than was reserved for it.

    Noise and charges follow from the one, what other publications may still have from the other.
    """
    asked = (mechanism.kind, mechanism.privacy.epsilon, mechanism.privacy.delta)
    return asked != (publication.kind, publication.epsilon, publication.delta)


def remembers(publication: Publication, mechanism: Mechanism, memory: Memory) -> bool:
    """Whether what its earlier steps left is there as they left it, and the next would go on with the same noise."""
    terms = mechanism.terms(publication.due - publication.start)
    return memory.digest == parts.remembered(memory.parts, terms).digest


def check(publication: Publication, stream: Stream) -> None:
    """That nothing is known against publishing; both are locked.

    Raises:
        LedgerBroken: something is.
    """
    if stream.distrusted is not None:
        raise LedgerBroken(stream.distrusted)
    if not publications.as_left(publication):
        raise LedgerBroken(f"publication {publication.name}: it is not as it was left")


def commit(
    connection: Connection, publication: Publication, stream: Stream, mechanism: Mechanism, step: Step, position: int
) -> Publication:
    """Charges and releases what a step made, and moves the publication to `position`; returns it as it is left.

    Raises:
        LedgerBroken: the ledger is not as it was left.
        OverBudget: a record would pay more than the publication may charge any.
    """
    start = publication.start
    charges = [
        NewCharge(start=start + each.fit[0], stop=start + each.fit[1], version=each.version, amount=each.charge)
        for each in step.releases
        if not each.at_arrival
    ] + [
        NewCharge(start=start + each.start, stop=start + each.stop, version=None, amount=each.amount)
        for each in step.charges
    ]
    charged = ledger.charge(connection, stream, publication, mechanism.capacity, charges) if charges else None
    paid = _payments(connection, publication, step, [] if charged is None else charged.charges)
    at = ledger.now(connection) if charged is None else charged.at
    model = mechanism.model_description()
    released = [
        NewRelease(
            version=each.version,
            time=start + each.time,
            role=each.role,
            window=(start + each.window[0], start + each.window[1]),
            fit=(start + each.fit[0], start + each.fit[1]),
            parent=each.parent,
            parameters=each.parameters,
            model=model if each.model is None else each.model,
            noise=each.perturbation.described(),
        )
        for each in step.releases
    ]
    position = position if step.reached is None else step.reached
    following = position if step.awaits else mechanism.next_time(position)
    if released and publication.asks_people:
        labels.forget(connection, publication.id)  # what was asked for has been learnt from
    if step.asks:
        told = [start + each for each in step.asks]
        labels.ask(connection, publication, told, seconds=publication.plan["labels"]["seconds"])
    parts.keep(connection, publication.id, parts.remembered(kept(step), mechanism.terms(following)))
    moved = replace(
        publication,
        position=position,
        due=start + following,
        chain=[each.version for each in step.chain if isinstance(each, Model)],
    )
    with pipelined(connection):
        if charged is not None:
            ledger.append(connection, charged)
            moved = replace(moved, worst_record=charged.counted.worst_record, worst_amount=charged.counted.worst_amount)
        if released:
            moved = replace(
                moved,
                version=released[-1].version,
                latest=max((each.version for each in released if each.role == "model"), default=moved.latest),
                digest=releases.append(connection, publication, released, paid, at),
            )
        return publications.move(connection, moved)


def _payments(
    connection: Connection, publication: Publication, step: Step, charges: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The charge that pays for each release: its own, of those; or that with which the last of its records arrived.

    Raises:
        LedgerBroken: there is none.
    """
    found, own = [], iter(charges)
    for each in step.releases:
        if not each.at_arrival:
            found.append(next(own))
            continue
        paid = charges[-1] if charges else ledger.newest(connection, publication)
        last = publication.start + each.fit[1]
        if paid is None or not ledger.intact(paid) or (paid["version"], paid["end"]) != (None, last):
            raise LedgerBroken(f"publication {publication.name}: the records of version {each.version} have not paid")
        found.append(paid)
    return found
