"""A publication or a stream that ends, halts or loses records leaves all that is written down of others."""
# ruff: noqa: F811 - a fixture is another file's

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest
from sqlalchemy import Connection, insert, select, update

from service.ledger import open_entry
from service.publishing import ticks
from service.store import (
    attempts,
    erasing,
    labels,
    numbering,
    parked,
    parts,
    publications,
    segments,
    streams,
    tables,
    waits,
)
from service.store.parked import Parked
from service.store.step_records import SavedChange
from service.store.streams import Confirmed, SecretLost
from tests.store.test_spending import connection, described  # noqa: F401

RECORD = 3


def remember(connection: Connection, publication: publications.Publication) -> None:
    """Write down something of everything that the next step may need."""
    parts.keep(connection, publication.id, SavedChange(numbers=(1,), new={1: np.zeros(2)}, digest="0" * 64))
    labels.ask(connection, publication, [RECORD], [], seconds=60, charge=0)
    assert labels.answer(connection, publication.id, publication.name, RECORD, 1)
    assert not attempts.note(connection, publication.id, 0, 0), "it is the first one of this publication"
    waits.note(connection, publication.id, 1, "it needs more memory")
    step = {"position": 0, "version": 0, "due_at": None, "following_due": 2, "lineage": "", "content": b""}
    ours = {"publication_id": publication.id, "stream_id": publication.stream_id}
    parked.put(connection, Parked(tick=datetime.now(UTC), **step, **ours))


def two(connection: Connection) -> list[publications.Publication]:
    """Return a publication of each of two streams."""
    for name in ("s", "t"):
        streams.create(
            connection, name=name, log=name, schema={}, retention="keep", epsilon=Decimal(2), delta=Decimal(0)
        )
    connection.execute(update(tables.streams).values(records=10))
    return [publications.create(connection, each, described(f"p{each}")) for each in (1, 2)]


def test_what_another_publication_remembers_stays(connection: Connection):
    ends, stays = two(connection)
    for each in (ends, stays):
        remember(connection, each)
    erasing.erase(connection, 1, 0, 10)
    assert [segments.erased(connection, each, 0, 10) for each in (1, 2)] == [[(0, 10)], []]
    answers = [labels.answers(connection, each.id, 0, 10) for each in (ends, stays)]
    assert answers == [[], [(RECORD, 1)]]
    parts.keep(connection, ends.id, SavedChange(numbers=(2,), new={2: np.zeros(2)}, digest="1" * 64))
    assert [*parts.load(connection, ends.id).parts] == [2]
    open_entry(connection, ends).end("stopped")
    for table in (
        tables.parts,
        tables.memories,
        tables.label_requests,
        tables.attempts,
        tables.waits,
        tables.parked,
    ):
        assert connection.execute(select(table.c.publication_id)).scalars().all() == [stays.id], table.name


def test_at_a_tick_each_ledger_has_the_steps_of_its_own_stream(connection: Connection):
    every = two(connection)
    for each in every:
        remember(connection, each)
    opened = ticks.open_ticks(connection, [1, 2])
    assert [(ledger.stream.id, [each.publication_id for each in steps]) for ledger, steps in opened] == [
        (each.stream_id, [each.id]) for each in every
    ]


def test_what_becomes_of_a_stream_changes_no_other(connection: Connection):
    ends, stays = two(connection)
    before = streams.get(connection, 2)
    assert erasing.close_unit(connection, 1, bytes(16)) == 10
    letter = {"entry": "1-1", "sequence": 1, "reason": "its content can't be read", "size": 1}
    connection.execute(insert(tables.dead_letters), [letter | {"stream_id": each} for each in (1, 2)])
    assert numbering.drop_dead_letter(connection, 1, "1-1")
    assert numbering.waiting_dead_letters(connection, [1, 2]) == {2: 1}
    streams.confirm(connection, [Confirmed(1, 1, 1, *[Decimal(1)] * 6)])
    streams.distrust(connection, streams.get(connection, 1), "a charge is missing")
    streams.halt(connection, 1, "its log is lost")
    assert (streams.get(connection, 2), streams.get(connection, 1).halted) == (before, "its log is lost")
    assert numbering.resume(connection, streams.get(connection, 1), sequence=7, lost_batches=7) is not None
    open_entry(connection, ends).end("halted", "its memory is lost")
    after = streams.get(connection, 1)
    assert (after.sealed_sequence, after.units_erased, after.distrusted) == (7, 1, "a charge is missing")
    assert (streams.get(connection, 2), publications.get(connection, stays.id)) == (before, stays)


def test_what_is_published_on_a_stream_changes_no_other(connection: Connection):
    goes_on, stays = two(connection)
    one, other = streams.get(connection, 1), streams.get(connection, 2)
    assert [each.promise for each in (one, other)] == [streams.promised(each) for each in (one, other)]
    assert all(map(publications.matches_promise, (goes_on, publications.get(connection, stays.id))))
    streams.move(connection, replace(one, charges=3, head="h"))
    publications.move(connection, replace(goes_on, position=4, due=9))
    assert (streams.get(connection, 2), publications.get(connection, stays.id)) == (other, stays)
    assert (streams.get(connection, 1).charges, publications.get(connection, goes_on.id).position) == (3, 4)
    assert [*publications.fit_sizes(connection, [goes_on.id])] == [goes_on.id]
    open_entry(connection, goes_on).end("stopped")
    assert [publications.runs(connection, each.id) for each in (goes_on, stays)] == [False, True]


def test_what_is_remembered_is_of_one_publication(connection: Connection):
    every = two(connection)
    for each in every:
        remember(connection, each)
        parts.keep(connection, each.id, SavedChange(numbers=(), new={}, digest=each.name))
    assert [parts.load(connection, each.id).digest for each in every] == [each.name for each in every]
    assert [[step.publication_id for step in parked.of_publication(connection, each.id)] for each in every] == [
        [1],
        [2],
    ]
    assert parked.with_due(connection, [2]) == {2}
    (waiting,) = parked.due(connection, [2], limit=9)
    assert parked.take(connection, waiting).publication_id == 2
    assert [len(parked.of_publication(connection, each.id)) for each in every] == [1, 0]


def test_a_tick_is_counted_from_what_its_own_stream_numbered(connection: Connection):
    one, other = (replace(each, publish_delay=Decimal(86_400)) for each in two(connection))
    hours = [datetime.now(UTC) + timedelta(hours=each) for each in (1, 2)]
    for each, start, hour in zip((one, other), (0, 2), hours, strict=True):
        numbered = {"stream_id": each.stream_id, "entry": "1-1", "start": start, "stop": 5, "numbered_at": hour}
        connection.execute(insert(tables.entries).values(numbered))
    (tick, due_at), (later, due_later) = (parked.tick_of(connection, each, 5) for each in (one, other))
    assert [due_at, due_later] == hours
    assert timedelta(days=1) <= tick - hours[0] <= timedelta(days=2)
    remember(connection, other)
    connection.execute(update(tables.parked).values(tick=later + timedelta(days=1)))
    assert [parked.tick_of(connection, each, 5)[0] for each in (one, other)] == [tick, later + timedelta(days=1)]


@pytest.mark.parametrize("ahead", ["numbered_at", "created_at"])
def test_a_time_that_a_clock_ahead_wrote_moves_no_tick(connection: Connection, ahead):
    """More than a delay ahead it counts as none: the step appears at the next tick, not when that time has come."""
    publication = replace(two(connection)[0], publish_delay=Decimal(60))
    now, tomorrow = datetime.now(UTC), datetime.now(UTC) + timedelta(days=1)
    numbered_at = tomorrow if ahead == "numbered_at" else now
    numbered = {"stream_id": 1, "entry": "1-1", "start": 0, "stop": 5, "numbered_at": numbered_at}
    connection.execute(insert(tables.entries).values(numbered))
    if ahead == "created_at":
        publication = replace(publication, created_at=tomorrow)
    tick, _ = parked.tick_of(connection, publication, 5)
    least = 0 if ahead == "numbered_at" else 60
    assert timedelta(seconds=least) <= tick - now <= timedelta(seconds=180)


def test_a_lease_of_a_label_that_a_clock_ahead_gave_keeps_nobody_out(connection: Connection):
    publication = two(connection)[0]
    labels.ask(connection, publication, [RECORD, 7], [7], seconds=60, charge=0)
    assert labels.lease(connection, publication.id, seconds=40).record == RECORD
    assert not labels.any_free(connection, publication.id, seconds=40)
    mine = tables.label_requests.c.record == RECORD
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    connection.execute(update(tables.label_requests).where(mine).values(leased_until=tomorrow))
    assert labels.lease(connection, publication.id, seconds=40).record == RECORD
    assert not labels.any_free(connection, publication.id, seconds=40), "what is set aside is given to nobody"


def test_people_label_records_of_one_publication(connection: Connection):
    one, other = two(connection)
    for each in (one, other):
        labels.ask(connection, each, [RECORD, 7], [7], seconds=60, charge=0)
    lease = labels.lease(connection, one.id, seconds=40)
    assert lease is not None
    assert (lease.record, lease.waiting) == (RECORD, 2)
    assert [labels.any_free(connection, each.id, seconds=40) for each in (one, other)] == [False, True]
    assert labels.lease(connection, other.id, seconds=40) is not None
    labels.give_back(connection, one.id, RECORD)
    assert [labels.any_free(connection, each.id, seconds=40) for each in (one, other)] == [True, False]
    assert not labels.answer(connection, one.id, one.name, 7, 1), "it is set aside"
    assert labels.answer(connection, one.id, one.name, RECORD, 1)
    assert [labels.answers(connection, each.id, 0, RECORD + 1) for each in (one, other)] == [[(RECORD, 1)], []]
    assert labels.answers(connection, one.id, 0, RECORD) == []
    labels.forget(connection, other.id)
    waits = select(tables.publications.c.id).where(labels.any_open())
    assert connection.execute(waits).scalars().all() == [one.id]


def test_nobody_is_asked_for_records_that_were_erased_before(connection: Connection):
    every = [*two(connection), publications.create(connection, 1, described("a third"))]
    erasing.erase(connection, 1, 7, 8)
    erasing.erase(connection, 2, RECORD, RECORD + 1)
    for each in every:
        labels.ask(connection, each, [RECORD, 7], [], seconds=60, charge=0)
    taken = [[labels.answer(connection, each.id, "p", record, 1) for record in (RECORD, 7)] for each in every]
    assert taken == [[True, False], [False, True], [True, False]]


def test_a_secret_that_is_not_the_one_that_was_promised_counts_as_lost(connection: Connection):
    budget = {"epsilon": Decimal(2), "delta": Decimal(0)}
    for name in ("s", "t"):
        streams.create(connection, name=name, log=name, schema={"unit": {}}, retention="keep", **budget)
    one, other = streams.every(connection)
    assert streams.secret_of_units(connection, one) != streams.secret_of_units(connection, other)
    with pytest.raises(SecretLost):
        streams.secret_of_units(connection, replace(one, unit_secret_digest=other.unit_secret_digest))
