"""A stream is numbered, moved and put together by itself, and no other with it."""
# ruff: noqa: F811 - a fixture is another file's

from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Connection, insert, update

from service.store import changes, leases, numbering, segments, streams, tables
from service.store.numbering import SealedEntry, Unreadable
from service.store.segments import Segment
from service.store.streams import Stream
from tests.store.test_spending import connection  # noqa: F401

SECONDS = 4e5  # beside which no machine is slow


@pytest.fixture
def two(connection: Connection) -> list[Stream]:
    budget = {"epsilon": Decimal(2), "delta": Decimal(0)}
    return [
        streams.create(connection, name=name, log=name, schema={}, retention="keep", **budget) for name in ("s", "t")
    ]


def held(connection: Connection, resource: str) -> leases.Lease:
    leases.create_once(connection, resource)
    lease = leases.take(connection, resource, owner="a", seconds=SECONDS)
    assert lease is not None
    return lease


def segment(start: int, stop: int) -> Segment:
    return Segment(start=start, stop=stop, file=f"{start}-{stop}", sha256=bytes(32))


def change(connection: Connection, stream: Stream, **values: Any) -> None:
    connection.execute(update(tables.streams).where(tables.streams.c.id == stream.id).values(values))


def test_a_log_is_numbered_up_to_its_last_entry_and_no_other_is(connection: Connection, two: list[Stream]):
    lease = held(connection, leases.stream(1))
    sealed = [
        SealedEntry(entry="9-1", sequence=1, start=0, stop=3),
        SealedEntry(entry="10-2", sequence=3, start=3, stop=5),
    ]
    letter = {"reason": "its content can't be read", "size": 1}
    dead = [Unreadable(entry=entry, sequence=number, **letter) for entry, number in (("10-0", 2), ("10-1", None))]
    numbering.seal(connection, lease, two[0], segment(0, 5), sealed, dead)
    moved = streams.get(connection, 1)
    assert (moved.records, moved.sealed_entry, moved.sealed_sequence) == (5, "10-2", 3)
    assert streams.get(connection, 2) == two[1]
    assert numbering.find_entry(connection, 1, "10-2") == (3, 5)
    of_stream, newest = numbering.left(connection, 1, 9)
    assert (of_stream, newest) == (moved, [segment(0, 5)])


def test_segments_that_hold_a_range_are_those_of_its_stream(connection: Connection, two: list[Stream]):
    for stream, ranges in zip(two, ([(0, 10), (10, 20)], [(0, 3), (3, 5), (12, 30)]), strict=True):
        for each in ranges:
            segments.store(connection, stream, segment(*each))
    assert segments.holding(connection, 1, 4, 6) == [segment(0, 10)]
    assert segments.holding(connection, 1, 9, 11) == [segment(0, 10), segment(10, 20)]
    assert segments.holding(connection, 2, 4, 12) == [segment(3, 5)]
    assert segments.first_from(connection, 1, 10) == segment(10, 20)
    assert segments.first_from(connection, 1, 11) is None
    assert numbering.left(connection, 1, 9)[1] == [segment(0, 10), segment(10, 20)]
    assert numbering.left(connection, 2, 2)[1] == [segment(3, 5), segment(12, 30)]
    assert segments.files_of_each(connection, [1, 2])[1] == {"0-10", "10-20"}


def test_a_stream_without_segments_keeps_nothing(connection: Connection, two: list[Stream]):
    change(connection, two[0], records=10)
    segments.store(connection, two[1], segment(3, 5))
    assert segments.kept_from_of_each(connection, [1, 2]) == {1: 10, 2: 3}


CHANGES = {
    "records": 1,
    "charges": 1,
    "head": "h",
    "releases": 1,
    "newest_release": "h",
    "distrusted": "a charge is missing",
    "confirmed_charges": 1,
    "confirmed_releases": 1,
    "marked": True,
}


@pytest.mark.parametrize("name", [*CHANGES, "erasures"])
def test_whatever_changes_of_a_stream_has_it_looked_at_again(connection: Connection, two: list[Stream], name):
    before, whole = changes.states(connection), changes.digest(connection)
    if name == "erasures":
        connection.execute(insert(tables.erasures).values(stream_id=1, start=0, stop=1))
    else:
        change(connection, two[0], **{name: CHANGES[name]})
    after = changes.states(connection)
    assert [one.digest == other.digest for one, other in zip(before, after, strict=True)] == [False, True]
    assert changes.digest(connection) != whole
