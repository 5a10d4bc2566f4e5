"""Public ticks: when what was fitted appears.

How long a fit takes tells of its records. So a release does not appear when its fit is ready, but at a public tick: the
first multiple of its publication's `publish_delay` T (of PostgreSQL's Unix time) that is at least T after the last
record that it needed was numbered. A finished step is parked until then: no charge, no number, no notification. At the
tick, not before, one transaction charges, numbers and releases what is parked, on a stream in the order (tick, time at
which it was due, publication). So ids are in the order of their times, and the chain of charges has no holes.

A fit that is ready later appears at a later tick: a release that is j ticks late tells about log2(j + 1) bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from service.ledger import Entry, StreamLedger, open_free_ledgers, open_ledger
from service.ledger.errors import OverBudget
from service.publishing.commit import check, commit, halt, seconds_to_write
from service.publishing.prepared import PendingStep, packed, unpacked
from service.store import parked
from service.store.database import read_together, within
from service.store.parked import Parked, Waiting
from service.store.publications import Publication
from service.store.step_records import Values
from service.store.streams import Stream

MAX_AT_ONCE = 64  # steps in one transaction


def park(
    connection: Connection, publication: Publication, step: PendingStep, lineage: str, known: Mapping[int, Values]
) -> None:
    """Store a step that follows on what is parked of a publication already, until its tick.

    The caller holds an entry of the ledger.

    Args:
        publication: as it is after the steps that are parked already.
        lineage: the digest of the state that the step leaves.
        known: parts that are stored already.
    """
    tick, due_at = parked.tick_of(connection, publication, publication.due)
    parked.put(
        connection,
        Parked(
            publication_id=publication.id,
            position=publication.position,
            version=publication.version,
            stream_id=publication.stream_id,
            tick=tick,
            due_at=due_at,
            following_due=None if step.halts is not None else step.due,
            lineage=lineage,
            content=packed(step, known),
        ),
    )


def open_ticks(connection: Connection, streams: Sequence[int]) -> list[tuple[StreamLedger, list[Waiting]]]:
    """Return the ledgers of streams, each with its parked steps whose tick has come, for as long as they may take.

    For one stream it waits until it gets the lock; several streams come without those that another transaction locks.
    """
    if not (waiting := parked.due(connection, streams, limit=MAX_AT_ONCE)):
        return []
    size = sum(each.size for each in waiting)
    seconds = seconds_to_write(size)
    if len(streams) == 1:
        ledgers = [open_ledger(connection, *streams, seconds=seconds)]
    else:
        read_together(connection, *within(connection, seconds))
        ledgers = open_free_ledgers(connection, streams)
    waiting = parked.due(connection, [each.stream.id for each in ledgers], limit=MAX_AT_ONCE)
    while sum(each.size for each in waiting) > size:  # more of them came meanwhile; the next transaction's
        waiting.pop()
    return [(ledger, [each for each in waiting if each.stream_id == ledger.stream.id]) for ledger in ledgers]


def publish(ledger: StreamLedger, waiting: list[Waiting]) -> list[Publication]:
    """Publish parked steps in their order; return the publications as they are left.

    Raises:
        LedgerBroken: the ledger is not as it was left; then nothing of it may be committed.
    """
    done = []
    for each in waiting:
        entry = ledger.entry(each.publication_id)
        publication = entry.publication
        if publication.state != "running":  # a step of it halted it just now, and what was parked after that is gone
            continue
        if (publication.position, publication.version) != (each.position, each.version):
            continue  # the one before it has not come
        check(entry)
        taken = parked.take(entry.connection, each)
        moved, stream = _published(entry, unpacked(taken.content), taken)
        ledger = replace(ledger, stream=stream)
        done.append(moved)
    return done


def _published(entry: Entry, step: PendingStep, taken: Parked) -> tuple[Publication, Stream]:
    try:
        return commit(entry, step, taken.tick)
    except OverBudget as refusal:
        return halt(entry, str(refusal)), entry.stream
