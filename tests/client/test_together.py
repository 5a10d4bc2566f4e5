"""Two batches on their way at the same time: in order, each once, and none after one that is refused."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable

import httpx
import numpy as np
import pytest

import perennial
from perennial import InvalidRecords, Problem
from tests.client.conftest import begins_with, numbered, posts
from tests.conftest import HANG_SECONDS, Service

X = np.random.default_rng(0).normal(size=(500, 2))
Y = (X[:, 0] > 0).astype(int)
IN_ORDER = [(first, first + 100) for first in range(0, 500, 100)]


@pytest.fixture
def append(tmp_path) -> Callable[..., perennial.Appended]:
    more = {"key": "days", "batch": 100, "ahead": True, "journal": tmp_path / "days.sqlite"}
    return lambda stream, y=Y, **other: stream.append(X, label=y, **more | other)


class Held:
    """Holds what belongs to one batch until something else happens."""

    def __init__(self, record: int) -> None:
        self._record, self.free = record, threading.Event()

    def __call__(self, request: httpx.Request) -> None:
        if begins_with(self._record, request):
            assert self.free.wait(HANG_SECONDS)

    def until(self, record: int) -> Callable[[httpx.Request], None]:
        return lambda request: self.free.set() if begins_with(record, request) else None


def test_the_next_one_is_sent_before_the_answer(service: Service, faults, append):
    client, transport = faults
    stream, held = client.stream(service.stream()), Held(100)
    transport.after, transport.before = held, held.until(200)
    appended = append(stream)
    numbered(stream, 500)
    assert stream.numbers(appended) == IN_ORDER


@pytest.mark.parametrize("journal", [True, False])
def test_one_that_overtakes_the_one_before_waits_for_it(service: Service, faults, append, journal):
    client, transport = faults
    stream, held = client.stream(service.stream()), Held(100)
    transport.before, transport.after = held, held.until(200)
    appended = append(stream) if journal else append(stream, journal=None)
    numbered(stream, 500)
    assert stream.numbers(appended) == IN_ORDER
    assert [begins_with(200, each) for each in posts(transport)].count(True) == 2


def test_none_is_stored_after_one_that_is_refused(service: Service, faults, append, tmp_path):
    client, transport = faults
    stream, held, wrong = client.stream(service.stream()), Held(100), Y.copy()
    wrong[150] = 7
    transport.before, transport.after = held, held.until(200)
    with pytest.raises(InvalidRecords, match="begins with record 100: row 50") as refused:
        append(stream, wrong)
    assert refused.value.__notes__ == ["100 records in 1 batches were accepted before this."]
    with contextlib.closing(sqlite3.connect(tmp_path / "days.sqlite")) as journal:
        assert journal.execute("SELECT first FROM batches").fetchall() == [(0,)]
    numbered(stream, 100)
    appended = append(stream)
    numbered(stream, 500)
    assert stream.numbers(appended) == IN_ORDER


def test_none_is_stored_after_other_data_under_the_same_key(service: Service, faults, append):
    """Without its journal a call does not know how much was stored before; then it sends one batch at a time."""
    client, transport = faults
    stream = client.stream(service.stream())
    stream.append(X[:150], label=Y[:150], key="days", batch=100)
    with pytest.raises(Problem, match="exactly the same data"):
        append(stream, journal=None)
    numbered(stream, 150)
    assert not any("idempotency-after" in each.headers for each in posts(transport))


def test_of_records_that_cannot_be_read_those_before_are_stored(service: Service, client, append):
    stream = client.stream(service.stream())

    def pieces():
        yield from ((X[first : first + 100], Y[first : first + 100]) for first in (0, 100, 200))
        yield np.array([[np.nan, 0.0]]), Y[:1]

    with pytest.raises(perennial.InvalidRow, match="row 300") as wrong:
        stream.append(pieces(), key="days", batch=100, ahead=True)
    assert wrong.value.__notes__ == ["300 records in 3 batches were accepted before this."]
    numbered(stream, 300)


def test_an_older_service_that_ignores_the_condition_gets_one_at_a_time(service: Service, faults, append):
    client, transport = faults
    stream, handle = client.stream(service.stream()), transport.handle_request

    def as_before(request: httpx.Request) -> httpx.Response:
        answer = handle(request)
        answer.headers.pop("idempotent-replayed", None)
        return answer

    transport.handle_request = as_before
    append(stream)
    numbered(stream, 500)
    assert not any("idempotency-after" in each.headers for each in posts(transport))


def test_where_there_is_no_room_for_two_the_second_waits(service: Service, faults, append):
    client, transport = faults
    stream, handle, refusals = client.stream(service.stream()), transport.handle_request, []

    def crowded(request: httpx.Request) -> httpx.Response:
        if "idempotency-after" in request.headers:
            refusals.append(request)
            return httpx.Response(429, headers={"Retry-After": "1000"})
        return handle(request)

    transport.handle_request = crowded
    append(stream, patience=0)
    numbered(stream, 500)
    assert len(refusals) == 2  # the next one was sent before the first of them was known


def test_async_clients_send_two_as_well(service: Service, client, append):
    stream, sent = client.stream(service.stream()), []

    async def note(request: httpx.Request) -> None:
        sent.append(request)

    async def send() -> None:
        async with await perennial.connect_async(service.url, service.admin_key) as other:
            other._transport._http.event_hooks["request"].append(note)
            await append(other.stream(stream.name))

    asyncio.run(send())
    numbered(stream, 500)
    assert any("idempotency-after" in each.headers for each in sent)
