"""Waiting through a proxy that has less time than the client asks for, and what is asked again after a failure."""

import json
import threading
import time

import pytest

import perennial
from perennial import NotYet, PerennialError, Unreachable, operations
from perennial.errors import Busy
from perennial.exchange import Answer, NoAnswer, Pause, Request, ask
from tests.client.test_publications import X, Y, start
from tests.conftest import Service, wait_until
from tests.ports import free_port
from tests.proxy import proxy

LOST, NOT_SENT = NoAnswer(reason="ReadError", sent=True), NoAnswer(reason="ConnectError", sent=False)
RUNNING = Answer(status=200, headers={}, body=b'{"state":"running"}')
NOTHING = Answer(status=304, headers={}, body=b"")


@pytest.mark.parametrize("cut", [504, *(pytest.param(cut, marks=pytest.mark.more) for cut in (502, 503, 408, 0))])
def test_waiting_goes_on_where_a_proxy_cuts_each_wait_off(service: Service, client, cut):
    stream, publication = start(client)
    with proxy(service.url, seconds=1, cut=cut) as url, perennial.connect(url, service.admin_key) as behind:
        waiting = behind.publication(publication.name)
        began = time.monotonic()
        with pytest.raises(NotYet, match="no release yet"):
            waiting.latest(wait=2)
        assert 2 <= time.monotonic() - began < 100
        assert waiting._poll.seconds == 1
        waiting = behind.publication(publication.name)
        following, models = waiting.follow(after=0), []
        thread = threading.Thread(target=lambda: models.append(next(following)))
        thread.start()
        wait_until(lambda: waiting._poll.seconds == 1)
        stream.append(X[:10], label=Y[:10])
        thread.join(200)
        assert [model.version for model in models] == [1]


def test_a_service_that_is_away_is_unreachable_in_about_the_time_that_was_asked_for():
    now = time.monotonic()
    exchange = operations.latest("p", 8, 0, operations.LongPoll())
    with pytest.MonkeyPatch.context() as patch:
        clock = [now]
        patch.setattr(time, "monotonic", lambda: clock[0])
        step = next(exchange)
        with pytest.raises(Unreachable):
            while clock[0] < now + 3600:
                clock[0] += step.seconds
                step = exchange.send(None if isinstance(step, Pause) else LOST)
    assert clock[0] - now <= 8 + 2 * 60


@pytest.mark.parametrize(
    ("failure", "after", "next_wait"),
    [
        (Answer(status=504, headers={}, body=b"<html>"), 20.0, 10),
        (LOST, 7.5, 3),
        (LOST, 1.2, 1),
        (LOST, 0.01, 60),  # nobody waited: to ask for less would not help
        (NOT_SENT, 0.01, 60),
    ],
)
def test_a_wait_that_was_cut_off_asks_for_half_next_time(monkeypatch, failure, after, next_wait):
    """The exchanges, answered by hand, beside a clock that moves by hand."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    poll = operations.LongPoll()

    def asked(answer: Answer | NoAnswer) -> str:
        exchange = operations.following("p", 0, poll)
        assert "Prefer" not in next(exchange).headers
        wait = exchange.send(RUNNING).headers["Prefer"]
        clock[0] += after
        assert isinstance(exchange.send(answer), Pause)
        with pytest.raises(StopIteration) as done:
            exchange.send(None)
        assert done.value.value == []
        return wait

    assert asked(failure) == "wait=60"
    assert asked(NOTHING) == f"wait={next_wait}"
    assert asked(NOTHING) == f"wait={min(60, next_wait + 1)}"  # and more again, since it may have been a restart


def problem(status: int, slug: str, **headers: str) -> Answer:
    body = json.dumps({"type": f"urn:perennial:problem:{slug}", "title": "t", "status": status}).encode()
    return Answer(status=status, headers={"content-type": "application/problem+json", **headers}, body=body)


FAILURES = {
    "busy": problem(429, "too-many-requests"),
    "running": problem(409, "idempotency-running"),
    "conflict": problem(409, "name-taken"),
    "database away": problem(503, "database-unavailable"),
    "an error": problem(500, "internal-error"),
    "a proxy's": Answer(status=502, headers={}, body=b""),
    "a proxy's timeout": Answer(status=504, headers={}, body=b""),
    "too slow": problem(408, "request-timed-out"),
    "refused": problem(422, "invalid-request"),
    "no right": problem(403, "forbidden"),
    "lost": LOST,
    "not sent": NOT_SENT,
}
IN_ANY_CASE = {"busy", "not sent"}  # the service did nothing
WHERE_REPEATABLE = IN_ANY_CASE | {"running", "database away", "a proxy's", "a proxy's timeout", "too slow", "lost"}


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_request_is_repeated_only_where_that_can_do_no_harm_and_may_help(failure, repeatable):
    request = Request(method="POST", path="/", repeatable=repeatable)
    exchange = ask(request)
    assert next(exchange) is request
    if failure in (WHERE_REPEATABLE if repeatable else IN_ANY_CASE):
        assert isinstance(exchange.send(FAILURES[failure]), Pause)
        assert exchange.send(None) is request
        with pytest.raises(StopIteration) as done:
            exchange.send(RUNNING)
        assert done.value.value is RUNNING
    else:
        with pytest.raises(PerennialError):
            exchange.send(FAILURES[failure])


def pauses(exchange, answer: Answer | NoAnswer) -> list[float]:
    taken = []
    next(exchange)
    with pytest.raises((Busy, Unreachable)):
        while True:
            taken.append(exchange.send(answer).seconds)
            exchange.send(None)
    return taken


def test_pauses_grow_to_ten_seconds_and_end_with_patience():
    taken = pauses(ask(Request(path="/"), patience=100), LOST)
    assert 90 - 10 <= sum(taken) <= 100
    for pause, longest in zip(taken, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, *[10] * 100], strict=False):
        assert longest / 2 <= pause <= longest
    assert pauses(ask(Request(path="/"), patience=0), LOST) == []


def test_a_pause_is_as_long_as_the_service_says():
    taken = pauses(ask(Request(path="/"), patience=30), problem(429, "too-many-requests", **{"retry-after": "7"}))
    assert taken == [7.0] * 4
    assert pauses(ask(Request(path="/"), patience=30), problem(503, "stopping", **{"retry-after": "31"})) == []


def test_patience_counts_the_time_that_answers_take(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    exchange = ask(Request(path="/"), patience=100)
    next(exchange)
    for _ in range(2):
        clock[0] += 45
        assert isinstance(exchange.send(LOST), Pause)
        exchange.send(None)
    clock[0] += 45
    with pytest.raises(Unreachable):
        exchange.send(LOST)


def test_a_service_that_comes_back_is_found_again(service: Service):
    """The client asks at a port where nothing listens until after its first try."""
    port = free_port()
    client = perennial.Client(f"http://127.0.0.1:{port}", service.admin_key)
    found = threading.Event()

    def look() -> None:
        client.streams()
        found.set()

    thread = threading.Thread(target=look)
    thread.start()
    with proxy(service.url, port=port):
        thread.join(200)
    assert found.is_set()
    client.close()
