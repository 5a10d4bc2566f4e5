"""A load that goes on after the service has forgotten its keys: nothing twice, nothing lost, and no guess.

`next_day` is a day later for the client, and for the service, whose memory of keys is emptied.
"""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from functools import partial

import httpx
import numpy as np
import pytest

import perennial
import perennial.__main__ as command
from perennial import InvalidData, InvalidRecords, PerennialError, Problem, Uncertain, appending, exchange
from perennial.appending import post_records
from perennial.batches import Batch
from perennial.data import Block
from perennial.exchange import Answer, Pause, Request
from perennial.journal import Journal, opened
from tests.client.conftest import forget_keys, numbered, posts
from tests.client.test_load import FRAME, RECORDS, WRITERS
from tests.conftest import Service, wait_until


@pytest.fixture
def next_day(service: Service, monkeypatch):
    def come() -> None:
        now = time.time
        monkeypatch.setattr(exchange.time, "time", lambda: now() + 25 * 3600)
        forget_keys(service)

    return come


@contextlib.contextmanager
def journal_of(path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        yield database


@pytest.fixture
def append(tmp_path):
    def append(stream: perennial.Stream, frame=FRAME, **more):
        return stream.append(frame, label="rain", key="days", batch=100, journal=tmp_path / "days.sqlite", **more)

    return append


def break_off(faults, *, when: str):
    """Let the second batch fail: before it arrives, or after it is stored."""
    interrupted, transport = faults

    def breaking(_: httpx.Request) -> None:
        if len(posts(transport)) == 2:
            raise KeyboardInterrupt

    setattr(transport, when, breaking)
    return interrupted


def test_what_was_loaded_yesterday_is_not_stored_again(service: Service, client, load, next_day, tmp_path, capsys):
    path = tmp_path / "days.parquet"
    WRITERS[path.name](path, FRAME)
    stream = client.stream(service.stream())
    assert load(stream.name, path, "--batch", "100") == 0
    numbered(stream, RECORDS)
    next_day()
    assert load(stream.name, path, "--batch", "100") == 0
    assert capsys.readouterr().out.endswith(f"{path}: {RECORDS} records accepted\n")
    numbered(stream, RECORDS)


def test_what_was_interrupted_between_two_batches_goes_on_on_the_next_day(service: Service, client, append, next_day):
    stream = client.stream(service.stream())

    def interrupting(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        append(stream, progress=interrupting)
    numbered(stream, 100)
    next_day()
    appended = append(stream)
    assert (appended.records, len(appended.entries)) == (RECORDS, 3)
    numbered(stream, RECORDS)
    assert stream.numbers(appended) == [(0, 100), (100, 200), (200, 250)]


@pytest.mark.parametrize(("when", "answer"), [("after", "skip"), ("before", "send")])
def test_a_batch_without_an_answer_needs_one_from_people_on_the_next_day(
    service: Service, client, faults, load, next_day, tmp_path, capsys, monkeypatch, when, answer
):
    path = tmp_path / "days.csv"
    WRITERS[path.name](path, FRAME)
    stream = client.stream(service.stream())
    interrupted = break_off(faults, when=when)
    with monkeypatch.context() as patch:
        patch.setattr(command, "connect", lambda *_: interrupted)
        assert load(stream.name, path, "--batch", "100") == 1
    before = 200 if when == "after" else 100
    numbered(stream, before)
    next_day()
    assert load(stream.name, path, "--batch", "100") == 1
    errors = capsys.readouterr().err
    assert "The batch that begins with record 100 was sent on an earlier day" in errors
    assert "100 records in 1 batches were accepted before this." in errors
    numbered(stream, before)
    for _ in range(2):
        assert load(stream.name, path, "--batch", "100", "--uncertain", answer) == 0
        numbered(stream, RECORDS)


@pytest.mark.parametrize(("when", "answers"), [("after", ["skip", "send"]), ("before", ["send"])])
def test_of_several_batches_without_an_answer_each_one_that_is_skipped_is_asked_about(
    service: Service, client, faults, append, next_day, monkeypatch, when, answers
):
    """A load that was killed had announced three batches at once, and sent two of them."""
    monkeypatch.setattr(appending, "ready", lambda batches: (group for group in [list(batches)]))
    stream = client.stream(service.stream())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "withdraw_unsent", lambda _: None)
        append(break_off(faults, when=when).stream(stream.name), ahead=True)
    next_day()
    for answer, record in zip(["refuse", *answers[:-1]], (100, 200), strict=False):
        with pytest.raises(Uncertain, match=f"begins with record {record} was"):
            append(stream, ahead=True, uncertain=answer)
    assert append(stream, ahead=True, uncertain=answers[-1]).records == RECORDS
    numbered(stream, RECORDS)


def test_batches_that_were_announced_and_not_sent_leave_no_doubt(
    service: Service, client, faults, append, next_day, monkeypatch, tmp_path
):
    """A load that is interrupted says so to its journal."""
    monkeypatch.setattr(appending, "ready", lambda batches: (group for group in [list(batches)]))
    stream = client.stream(service.stream())
    with pytest.raises(KeyboardInterrupt):
        append(break_off(faults, when="after").stream(stream.name), ahead=True)
    with journal_of(tmp_path / "days.sqlite") as journal:
        assert journal.execute("SELECT first, entry IS NULL FROM batches").fetchall() == [(0, 0), (100, 1)]
    next_day()
    assert append(stream, ahead=True, uncertain="skip").records == RECORDS
    numbered(stream, RECORDS)


@pytest.mark.parametrize("ahead", [True, False])
def test_after_a_refusal_better_records_go_on(service: Service, client, append, ahead):
    """A batch that was refused is not stored, so it may change."""
    stream = client.stream(service.stream())
    wrong = FRAME.copy()
    wrong.loc[150, "rain"] = 7
    with pytest.raises(InvalidRecords, match="begins with record 100: row 50"):
        append(stream, wrong, ahead=ahead)
    assert append(stream, ahead=ahead).records == RECORDS
    numbered(stream, RECORDS)


def test_after_a_refusal_smaller_batches_go_on(service: Service, client, tmp_path):
    """The service of the tests takes bodies of at most 1 MiB."""
    stream, x = client.stream(service.stream(features=100)), np.zeros((4000, 100))
    append = partial(stream.append, x, label=np.zeros(4000), key="wide", journal=tmp_path / "wide.sqlite")
    with pytest.raises(Problem, match="smaller `batch`"):
        append(batch=4000)
    assert append(batch=1000).records == 4000
    numbered(stream, 4000)


@pytest.mark.parametrize("when", ["after", "before"])
def test_on_the_same_day_the_service_knows(service: Service, client, faults, append, when):
    stream = client.stream(service.stream())
    with pytest.raises(KeyboardInterrupt):
        append(break_off(faults, when=when).stream(stream.name))
    assert append(stream).records == RECORDS
    numbered(stream, RECORDS)


def test_the_service_knows_keys_of_each_api_key_apart(service: Service, client, faults, append):
    """Sent again with another API key, the batch would be stored twice."""
    stream = client.stream(service.stream())
    with pytest.raises(KeyboardInterrupt):
        append(break_off(faults, when="after").stream(stream.name))
    with perennial.connect(service.url, service.key("ingest")) as other:
        with pytest.raises(Uncertain, match="record 100 was sent on an earlier day, or with another API key"):
            append(other.stream(stream.name))
        numbered(stream, 200)
        assert append(other.stream(stream.name), uncertain="skip").records == RECORDS
    numbered(stream, RECORDS)


def test_another_stream_of_the_same_name_is_noticed(service: Service, client, append, next_day, tmp_path, monkeypatch):
    """On the same day everything is sent again, since keys decide; later it is refused."""
    monkeypatch.setattr(appending, "NUMBERED_SECONDS", 0)
    stream = client.stream(service.stream())
    append(stream)
    numbered(stream, RECORDS)
    with journal_of(tmp_path / "days.sqlite") as journal:
        journal.execute("UPDATE batches SET entry = '17-0'")
    assert append(stream).records == RECORDS
    numbered(stream, RECORDS)
    with journal_of(tmp_path / "days.sqlite") as journal:
        assert journal.execute("SELECT count(*) FROM batches WHERE entry <> '17-0'").fetchone() == (3,)
        journal.execute("UPDATE batches SET entry = '17-0'")
    next_day()
    with pytest.raises(Uncertain, match="does not have the entry 17-0"):
        append(stream)
    numbered(stream, RECORDS)


def test_other_data_or_batches_are_refused_on_the_next_day_too(service: Service, client, append, next_day):
    stream = client.stream(service.stream())
    append(stream)
    numbered(stream, RECORDS)
    next_day()
    other = FRAME.copy()
    other.loc[150, "a"] += 1
    with pytest.raises(InvalidData, match="record 100 was sent before with other records"):
        append(stream, other)
    with pytest.raises(InvalidData, match="record 0 was sent before"):
        append(stream, FRAME[["b", "a", "rain"]])
    numbered(stream, RECORDS)


@pytest.mark.more
@pytest.mark.parametrize("later", [False, True])
def test_data_that_have_grown_go_on_at_their_old_end(service: Service, client, append, next_day, later):
    """Growing by less than a batch, by several, and not at all: every record is there once, in its order."""
    stream, ends = client.stream(service.stream()), [30, 50, 130, 130, 200, RECORDS]
    for end in ends:
        assert append(stream, FRAME[:end]).records == end
        if later:
            numbered(stream, end)
            next_day()
    numbered(stream, RECORDS)
    appended = append(stream)
    starts = [start for start, _ in stream.numbers(appended)]
    assert starts == [0, 30, 50, 100, 130, 200]


def test_batches_may_grow_too(service: Service, client, append, tmp_path):
    stream = client.stream(service.stream())
    append(stream, FRAME[:150])
    more = {"label": "rain", "key": "days", "journal": tmp_path / "days.sqlite"}
    assert stream.append(FRAME, batch=200, **more).records == RECORDS
    numbered(stream, RECORDS)
    with pytest.raises(InvalidData, match="record 0 was sent before"):
        stream.append(FRAME, batch=50, **more)
    with pytest.raises(InvalidData, match="record 100 was sent before"):
        stream.append(FRAME, batch=120, **more)
    numbered(stream, RECORDS)


@pytest.mark.parametrize(("when", "answer"), [("after", "skip"), ("before", "send")])
def test_a_last_batch_without_an_answer_is_asked_about_where_data_have_grown(
    service: Service, client, faults, append, next_day, when, answer
):
    """The answer is for the records that were perhaps sent, and not for those that came since."""
    stream = client.stream(service.stream())
    interrupted = break_off(faults, when=when)
    with pytest.raises(KeyboardInterrupt):
        append(interrupted.stream(stream.name), FRAME[:150])
    before = 150 if when == "after" else 100
    numbered(stream, before)
    next_day()
    with pytest.raises(Uncertain, match="begins with record 100"):
        append(stream)
    assert append(stream, uncertain=answer).records == RECORDS
    numbered(stream, RECORDS)


@pytest.mark.parametrize("hours", [-2, 25])
@pytest.mark.parametrize("answer", ["refuse", "skip"])
def test_a_batch_that_was_never_sent_is_sent_whatever_the_clock_says(
    service: Service, client, append, monkeypatch, hours, answer
):
    """It was announced with the one before; since then the computer slept, or its clock was put back."""
    monkeypatch.setattr(appending, "ready", lambda batches: (group for group in [list(batches)]))
    now = time.time

    def passing(_: int) -> None:
        monkeypatch.setattr(exchange.time, "time", lambda: now() + hours * 3600)

    stream = client.stream(service.stream())
    append(stream, ahead=True, uncertain=answer, progress=passing)
    numbered(stream, RECORDS)


@pytest.mark.parametrize("answer", ["Refuse", "", None, True])
def test_an_answer_about_a_batch_is_one_of_three(service: Service, client, append, answer):
    """Any other one sent the batch again, which was stored twice if the service had it."""
    stream = client.stream(service.stream())
    with pytest.raises(ValueError, match='uncertain must be "refuse", "skip" or "send"'):
        append(stream, uncertain=answer)


@pytest.mark.parametrize(("sender", "hours"), [("sender", -25), ("another API key", 0)])
def test_a_load_that_goes_on_at_once_after_days_waits_for_numbers(tmp_path, monkeypatch, sender, hours):
    """The newest batch was accepted just now. Until it has numbers, the service can't say whether it has older ones."""
    now = time.time
    for first, (each, ago) in enumerate(((sender, hours), ("sender", 0))):
        monkeypatch.setattr(exchange.time, "time", lambda ago=ago: now() + ago * 3600)
        with opened(tmp_path / "days.sqlite", "days", "key", each, "refuse") as journal:
            (batch,) = journal.announce([Batch(first=first, block=Block(x=None, y=np.zeros(1)))])
            journal.begin(batch)
            journal.end(batch, f"{first}-0")
    with opened(tmp_path / "days.sqlite", "days", "key", "sender", "refuse") as journal:
        asking = appending._has_newest("days", journal)
        assert next(asking).path.endswith("/entries/1-0")
        assert isinstance(asking.send(Answer(status=404, headers={}, body=b"")), Pause)


def test_what_is_skipped_is_the_batch_that_was_sent(service: Service, client, faults, append, next_day, tmp_path):
    """The rest of a batch that is skipped in part would be stored twice."""
    stream = client.stream(service.stream())
    with pytest.raises(KeyboardInterrupt):
        append(break_off(faults, when="after").stream(stream.name))
    numbered(stream, 200)
    next_day()
    more = {"label": "rain", "key": "days", "journal": tmp_path / "days.sqlite", "uncertain": "skip"}
    other = FRAME.copy()
    other.loc[150, "a"] += 1
    with pytest.raises(InvalidData, match="record 100 was sent before with other records"):
        stream.append(other, batch=100, **more)
    numbered(stream, 200)


def test_a_journal_has_one_user_at_a_time(service: Service, client, append, tmp_path):
    stream = client.stream(service.stream())

    def again(_: int) -> None:
        with pytest.raises(PerennialError, match=r"days\.sqlite can't be used: another process appends with it"):
            append(stream)

    append(stream, progress=again)
    numbered(stream, RECORDS)


def test_a_file_that_is_no_journal_is_left_alone(service: Service, client, append, tmp_path):
    (tmp_path / "days.sqlite").write_text("my diary" * 1000)
    with pytest.raises(PerennialError, match=r"days\.sqlite can't be used: it is no journal"):
        append(client.stream(service.stream()))
    assert (tmp_path / "days.sqlite").read_text() == "my diary" * 1000


def test_nobody_else_reads_a_journal_and_it_holds_no_record(service: Service, client, load, state, tmp_path):
    path = tmp_path / "days.csv"
    WRITERS[path.name](path, FRAME)
    assert load(service.stream(), path) == 0
    (journal,) = state.iterdir()
    assert (journal.stat().st_mode & 0o777, state.stat().st_mode & 0o777) == (0o600, 0o700)
    with journal_of(journal) as database:
        assert database.execute("SELECT first, records FROM batches").fetchall() == [(0, RECORDS)]


@pytest.mark.more
def test_a_load_that_is_killed_three_times_stores_every_record_once(
    service: Service, client, key_file, tmp_path, state
):
    path = tmp_path / "days.ndjson"
    WRITERS[path.name](path, FRAME)
    stream = client.stream(service.stream())
    arguments = [path, "--batch", "1", "--label", "rain", "--url", service.url, "--key-file", key_file]
    loading = [sys.executable, "-m", "perennial", "load", stream.name, *map(str, arguments)]
    for records in (20, 80, 160):
        with subprocess.Popen(loading, stdout=subprocess.DEVNULL) as killed:
            wait_until(lambda records=records: stream.info()["records"] >= records)
            os.kill(killed.pid, signal.SIGKILL)
    loaded = subprocess.run(loading, capture_output=True, text=True, check=False)
    assert (loaded.returncode, loaded.stdout) == (0, f"{path}: {RECORDS} records accepted\n"), loaded.stderr
    numbered(stream, RECORDS)


def test_a_retry_does_not_wait_until_the_next_day(monkeypatch):
    """A computer that slept for a day while it waited does not send the batch again: its key may be forgotten."""
    call = post_records("days", "application/json", b"{}", "key")
    step = next(call)
    assert isinstance(step, Request)
    busy = Answer(
        status=503,
        headers={"content-type": "application/problem+json"},
        body=b'{"type": "urn:perennial:problem:log-unavailable"}',
    )
    assert isinstance(call.send(busy), Pause)
    assert isinstance(call.send(None), Request)
    assert isinstance(call.send(busy), Pause)
    now = time.time
    monkeypatch.setattr(exchange.time, "time", lambda: now() + 25 * 3600)
    with pytest.raises(perennial.Busy):
        call.send(None)
