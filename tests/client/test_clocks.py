"""Clocks that are put forward or back between a batch and its repetition, or that differ."""

import time

import numpy as np
import pytest

from perennial import PerennialError, Uncertain, Unreachable, exchange
from perennial.appending import append, post_records
from perennial.batches import Batch
from perennial.data import Block
from perennial.exchange import Answer, Exchange, NoAnswer, Pause, Request
from perennial.journal import opened


@pytest.fixture
def later(monkeypatch):
    """Let so many hours pass by the clock."""

    def later(hours: float) -> None:
        now = time.time
        monkeypatch.setattr(exchange.time, "time", lambda: now() + hours * 3600)

    return later


@pytest.mark.parametrize(
    ("certain", "hours"), [(False, -24.5), (False, -1.1), (True, -0.9), (True, -0.001), (True, 22.9), (False, 23.1)]
)
def test_a_clock_may_be_an_hour_wrong(tmp_path, later, certain, hours):
    """The service remembers a key for 24 hours; a batch without an answer is sent again only where it surely does."""

    def begin() -> float | None:
        with opened(tmp_path / "days.sqlite", "days", "key", "sender", "refuse") as journal:
            (batch,) = journal.announce([Batch(first=0, block=Block(x=None, y=np.zeros(1)))])
            return journal.begin(batch)

    sent = begin()
    later(hours)
    if certain:
        assert begin() == sent
    else:
        with pytest.raises(Uncertain, match="begins with record 0"):
            begin()


def test_a_batch_is_repeated_where_the_clock_is_put_back_a_little(later):
    call = post_records("days", "application/json", b"{}", "key")
    request = next(call)
    assert isinstance(request, Request)
    assert isinstance(call.send(NoAnswer(reason="ReadTimeout", sent=True)), Pause)
    later(-0.1)
    assert call.send(None) == request


def problem(slug: str, status: int) -> Answer:
    body = f'{{"type": "urn:perennial:problem:{slug}", "title": "Refused"}}'.encode()
    return Answer(status=status, headers={"content-type": "application/problem+json"}, body=body)


@pytest.mark.parametrize(
    ("certain", "answer"),
    [
        (True, NoAnswer(reason="ConnectError", sent=False)),
        (True, problem("not-found", 404)),
        (True, problem("unauthenticated", 401)),
        (True, problem("backlog-full", 429)),
        (True, problem("invalid-records", 422)),
        (False, NoAnswer(reason="ReadTimeout", sent=True)),
        (False, problem("log-unavailable", 503)),
        (False, problem("internal-error", 500)),
        (False, problem("idempotency-running", 409)),
        (False, problem("idempotency-conflict", 422)),
    ],
    ids=lambda value: getattr(value, "status", None) or getattr(value, "reason", None),
)
def test_a_batch_that_was_refused_is_sent_on_any_later_day(tmp_path, later, certain, answer):
    """A batch that never reached the service, too. The client needs no answer whether it is stored."""

    def begin(journal) -> Request:
        call = append("days", np.zeros((3, 2)), key="days", journal=journal, patience=0)
        return call, next(call)

    path = tmp_path / "days.sqlite"
    with opened(path, "days", "days", "sender", "refuse") as journal:
        call, request = begin(journal)
        with pytest.raises(PerennialError):
            call.send(answer)
    later(25)
    with opened(path, "days", "days", "sender", "refuse") as journal:
        if certain:
            assert begin(journal)[1] == request
        else:
            with pytest.raises(Uncertain):
                begin(journal)


def test_a_refusal_says_nothing_of_what_was_sent_before(tmp_path, later):
    """No answer came, and then the API key was revoked: the next day's call would store the batch twice."""

    def call() -> tuple[Exchange, Request]:
        exchange = append("days", np.zeros((3, 2)), key="days", journal=journal, patience=0)
        return exchange, next(exchange)

    path = tmp_path / "days.sqlite"
    for answer in (NoAnswer(reason="ReadTimeout", sent=True), problem("unauthenticated", 401)):
        with opened(path, "days", "days", "sender", "refuse") as journal:
            exchange, _ = call()
            with pytest.raises(PerennialError):
                exchange.send(answer)
    later(25)
    with opened(path, "days", "days", "sender", "refuse") as journal, pytest.raises(Uncertain):
        call()


def test_a_batch_of_an_earlier_call_is_repeated_for_a_day_from_then_on(tmp_path, later):
    """The service remembers the key since its first use, not since this call."""

    def call() -> Exchange:
        return append("days", np.zeros((3, 2)), key="days", journal=journal)

    path = tmp_path / "days.sqlite"
    with opened(path, "days", "days", "sender", "refuse") as journal:
        next(call())
    later(22)
    with opened(path, "days", "days", "sender", "refuse") as journal:
        exchange = call()
        assert isinstance(next(exchange), Request)
        assert isinstance(exchange.send(NoAnswer(reason="ReadTimeout", sent=True)), Pause)
        later(2)
        with pytest.raises(Unreachable):
            exchange.send(None)


def test_a_batch_that_was_skipped_is_sent_by_no_later_call(tmp_path, later):
    """Somebody said that it is stored. No entry says so, and the service has forgotten its key."""

    def call(answer: str) -> Exchange:
        with opened(tmp_path / "days.sqlite", "days", "days", "sender", answer) as journal:
            return next(append("days", np.zeros((3, 2)), key="days", journal=journal), None)

    assert isinstance(call("refuse"), Request)
    later(25)
    assert call("skip") is None
    assert call("refuse") is None
