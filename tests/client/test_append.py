"""Appending: every record once, whatever happens on the way; and what can't be appended is said."""

import asyncio
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import httpx
import numpy as np
import pandas as pd
import pytest

import perennial
from perennial import (
    Busy,
    InvalidArgument,
    InvalidData,
    InvalidRecords,
    NotFound,
    Problem,
    Uncertain,
    Unreachable,
    batches,
    nats_bridge,
)
from perennial.appending import append
from perennial.data import Block
from perennial.exchange import Answer, NoAnswer, Pause, Request
from perennial.journal import opened
from tests.client.conftest import numbered, posts
from tests.conftest import Service, ok

X = np.random.default_rng(0).normal(size=(500, 2))
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture(params=["arrow", "json"])
def encoding(request, monkeypatch) -> str:
    monkeypatch.setattr(batches, "_has_arrow", lambda: request.param == "arrow")
    return request.param


def test_records_arrive_in_batches_with_their_numbers(service: Service, client, encoding):
    stream = client.stream(service.stream())
    reported: list[int] = []
    appended = stream.append(pd.DataFrame(X).assign(y=Y), label="y", batch=200, progress=reported.append)
    assert (appended.records, len(appended.entries), reported) == (500, 3, [200, 200, 100])
    numbered(stream, 500)
    assert stream.numbers(appended) == [(0, 200), (200, 400), (400, 500)]


@pytest.mark.more
def test_what_arrives_is_what_was_sent(service: Service, client, encoding):
    """A model without noise to speak of, of records sent by the client, is the one of records sent as JSON."""
    models = []
    for send in (
        lambda name: service.post(name, X.tolist(), Y.tolist()),
        lambda name: client.stream(name).append((X, Y)),
    ):
        stream = service.stream(epsilon=1000, delta=1e-6)
        publication = service.publish(
            stream,
            {"kind": "independent_batches", "batch": 500},
            epsilon=1000,
            delta=1e-6,
            learner={"regularization": 1},
        )
        send(stream)
        models.append(client.publication(publication).latest(wait=200))
    assert models[0].metadata["noise"] == models[1].metadata["noise"]
    difference = np.linalg.norm(models[0].parameters - models[1].parameters)
    assert difference < 100 * models[0].metadata["noise"]["scale"] < 0.1


def test_a_bar_shows_how_far_it_is(service: Service, client, capsys):
    assert client.stream(service.stream()).append(X, Y, progress=True).records == 500
    assert "500/500" in capsys.readouterr().err


def test_other_kinds_of_streams(service: Service, client):
    texts = {"kind": "hashing", "features": 8, "tokens": "words"}
    for settings, data, label in (
        ({"features": 1, "feature_map": texts}, ["one two", "three"], [0, 1]),
        ({"features": None, "task": {"kind": "categorical", "cardinality": 5}}, None, [4, 0]),
        ({"features": 2, "task": {"kind": "unlabelled"}}, X[:2], None),
        ({"features": 2, "task": {"kind": "regression", "bound": 3.0}}, X[:2], [0.5, -0.25]),
    ):
        stream = client.stream(service.stream(**settings))
        assert stream.append(data, label=label).records == 2
        numbered(stream, 2)


def test_records_of_units(service: Service, client, encoding):
    stream = client.stream(service.stream(unit={"max_records": 2}))
    ids = np.array(["anna", "7", 7, np.int64(7), "ümläut"], dtype=object)
    stream.append(X[:5], label=Y[:5], unit=ids, key="units", batch=3)
    stream.append(pd.DataFrame(X[:5]).assign(y=Y[:5], who=ids), label="y", unit="who", key="units", batch=3)
    numbered(stream, 5)
    held = service.client().get(f"/v1/streams/{stream.name}/units/7").json()
    assert held["records"] == [1, 2]
    with pytest.raises(Problem, match="exactly the same data"):
        stream.append(X[:5], label=Y[:5], unit=ids[::-1], key="units", batch=3)
    with pytest.raises(InvalidData, match="say whose each record is"):
        stream.append(X[:5], label=Y[:5])


def test_a_key_that_may_only_ingest_is_enough(service: Service):
    name = service.stream()
    with perennial.connect(service.url, service.key("ingest", streams=[name])) as sensor:
        assert sensor.stream(name).append((X, Y)).records == 500


def test_a_stream_that_there_is_not_is_missed_before_its_names_are(service: Service, client):
    """Unless the key may not look at streams: then records that need no names say so."""
    with pytest.raises(NotFound, match="There is no such stream"):
        client.stream("never-made").append(X[:2], label=["dry", "rain"])
    with perennial.connect(service.url, service.key("ingest")) as sensor:
        with pytest.raises(InvalidData, match="only a stream with class_names takes texts"):
            sensor.stream("never-made").append(X[:2], label=["dry", "rain"])
        with pytest.raises(NotFound, match="There is no such stream"):
            sensor.stream("never-made").append(X[:2], label=[0, 1])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_retry_never_doubles(service: Service, faults, when):
    """Every second connection breaks: before the service reads the request, or before its answer arrives."""
    client, transport = faults
    stream = client.stream(service.stream())

    def breaking(_: httpx.Request) -> None:
        if len(posts(transport)) % 2:
            raise httpx.ReadError("broken by the test") if when == "after" else httpx.ConnectError("broken by the test")

    setattr(transport, when, breaking)
    assert stream.append((X, Y), batch=100).records == 500
    assert len(posts(transport)) == 10
    numbered(stream, 500)


def test_the_same_call_with_the_same_key_goes_on_where_it_stopped(service: Service, faults):
    client, transport = faults
    stream = client.stream(service.stream())

    def stopping(_: httpx.Request) -> None:
        if len(posts(transport)) == 3:
            raise httpx.ReadError("broken by the test")

    transport.after = stopping
    with pytest.raises(Unreachable) as broken:
        stream.append((X, Y), batch=100, key="the-days", patience=0)
    assert broken.value.__notes__ == ["200 records in 2 batches were accepted before this."]
    transport.after = lambda _: None
    assert stream.append((X, Y), batch=100, key="the-days").records == 500
    numbered(stream, 500)
    with pytest.raises(Problem, match="exactly the same data"):
        stream.append((X, Y), batch=200, key="the-days")
    numbered(stream, 500)


@pytest.mark.parametrize("key", ["two\nlines", "\r", "\0", "\x7f", "Łódź", "日", "\ud800"])
def test_a_key_that_no_header_can_hold_is_refused(service: Service, client, faults, key):
    faulty, transport = faults
    name = service.stream()
    for each in (client, faulty):
        with pytest.raises(InvalidArgument, match="key must have 1 to 200 characters of Latin-1") as refused:
            each.stream(name).append((X, Y), key=key)
        assert key not in str(refused.value)
    assert posts(transport) == []
    numbered(client.stream(name), 0)


def test_a_key_may_have_accents(service: Service, client, faults):
    """Whichever library sends it."""
    faulty, _ = faults
    name = service.stream()
    for each in (client, faulty, client):
        assert each.stream(name).append((X, Y), key="the days of the été").records == 500
    numbered(client.stream(name), 500)


@pytest.mark.more
def test_a_batch_that_is_too_large_is_split(service: Service, faults, encoding):
    """The service of the tests takes bodies of at most 1 MiB."""
    client, transport = faults
    stream = client.stream(service.stream(features=100))
    x = np.random.default_rng(1).normal(size=(4000, 100))
    assert stream.append(x, label=np.zeros(4000), batch=4000).records == 4000
    assert len(posts(transport)) >= 3
    numbered(stream, 4000)


def test_with_a_key_a_batch_that_is_too_large_is_refused(service: Service, client):
    """Split one day and whole the next, its records would be stored twice."""
    stream = client.stream(service.stream(features=100))
    with pytest.raises(Problem, match="smaller `batch`") as refused:
        stream.append(np.zeros((4000, 100)), label=np.zeros(4000), batch=4000, key="mine")
    assert refused.value.slug == "too-large"
    numbered(stream, 0)


def test_rows_that_are_refused_are_counted_from_the_first_of_the_call(service: Service, client):
    stream = client.stream(service.stream())
    y = Y.copy()
    y[123] = 7
    with pytest.raises(InvalidRecords, match="begins with record 100: row 23") as refused:
        stream.append((X, y), batch=100)
    assert [error["row"] for error in refused.value.members["errors"]] == [123]
    numbered(stream, 100)


class TestWithoutAServer:
    """The exchange, answered by hand."""

    ACCEPTED = Answer(status=202, headers={}, body=b'{"accepted":3,"entry":"1-0"}')

    def begin(self, **more):
        exchange = append("s", X[:3], label=Y[:3], **more)
        return exchange, next(exchange)

    def busy(self, slug: str, status: int, **headers: str) -> Answer:
        body = json.dumps({"type": f"urn:perennial:problem:{slug}", "title": "Busy", "detail": "Wait."}).encode()
        return Answer(status=status, headers={"content-type": "application/problem+json"} | headers, body=body)

    @pytest.mark.parametrize(
        "failure",
        [
            ("backlog-full", 429),
            ("too-much-at-once", 429),
            ("log-unavailable", 503),
            ("idempotency-running", 409),
            NoAnswer(reason="ReadTimeout", sent=True),
            NoAnswer(reason="ConnectError", sent=False),
        ],
    )
    def test_the_same_request_is_repeated_after_a_pause(self, failure):
        exchange, request = self.begin()
        answer = failure if isinstance(failure, NoAnswer) else self.busy(*failure, **{"retry-after": "3"})
        for _ in range(3):
            pause = exchange.send(answer)
            assert isinstance(pause, Pause)
            assert pause.seconds >= (0.0 if isinstance(failure, NoAnswer) else 3.0)
            assert exchange.send(None) == request
        with pytest.raises(StopIteration) as done:
            exchange.send(self.ACCEPTED)
        assert done.value.value.records == 3

    @pytest.mark.parametrize("value", ["²", "٣", "", "1.5"], ids=["a power", "a script", "nothing", "a fraction"])
    def test_a_pause_in_other_words_than_digits_counts_as_none(self, value):
        exchange, _ = self.begin()
        pause = exchange.send(self.busy("backlog-full", 429, **{"retry-after": value}))
        assert 0.0 <= pause.seconds < 3.0

    def test_patience_ends(self):
        exchange, _ = self.begin(patience=20)
        paused = 0.0
        with pytest.raises(Busy) as tired:
            while True:
                pause = exchange.send(self.busy("backlog-full", 429, **{"retry-after": "3"}))
                paused += pause.seconds
                exchange.send(None)
        assert 10 < paused <= 20
        assert tired.value.slug == "backlog-full"

    def test_what_may_be_stored_is_not_split(self):
        """Its answer was lost, and now the service takes smaller bodies only: halves would be stored twice."""
        exchange, _ = self.begin()
        exchange.send(NoAnswer(reason="ReadError", sent=True))
        exchange.send(None)
        with pytest.raises(Problem, match="too-large"):
            exchange.send(self.busy("too-large", 413))

    def test_halves_have_keys_of_their_own(self):
        exchange, request = self.begin()
        first = exchange.send(self.busy("too-large", 413))
        second = exchange.send(self.ACCEPTED)
        assert isinstance(first, Request)
        assert isinstance(second, Request)
        keys = [each.headers["Idempotency-Key"].rpartition(":") for each in (request, first, second)]
        assert len({root for root, _, _ in keys}) == 1
        assert [place for _, _, place in keys] == ["0", "0", "1"]

    @pytest.mark.parametrize("wrong", [{"key": ""}, {"key": "k" * 201}, {"batch": 0}])
    def test_settings_out_of_range_are_refused(self, wrong):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            next(append("s", X, **wrong))


def test_a_batch_is_the_same_bytes_again(encoding):
    from perennial.data import blocks

    (block,) = blocks((X, Y))
    assert batches.encode(block) == batches.encode(block)


def test_a_batch_is_known_again_by_all_that_it_holds():
    """A load that goes on would take a batch with other labels or units for the one that is stored."""
    x, y, unit = np.arange(4.0).reshape(2, 2), np.array([0, 1]), np.array(["a", "b"], dtype=object)
    batch = Block(x=x, y=y, unit=unit)
    others = [replace(batch, **{name: each[::-1]}) for name, each in vars(batch).items()]
    others += [replace(batch, **{name: None}) for name in vars(batch)]
    others += [Block(x=x.reshape(shape), y=None) for shape in ((2, 2), (4, 1))]
    assert len({batches.Batch(first=0, block=each).digest for each in (batch, *others)}) == 1 + len(others)


def test_a_journal_has_notes_of_each_append_apart_which_are_on_disk_before_it_is_sent(tmp_path):
    """Else records of a second stream would be taken for those of the first, or a power cut would double a batch."""
    batch = batches.Batch(first=0, block=Block(x=X, y=Y))
    for stream in ("days", "nights"):
        with opened(tmp_path / "days.sqlite", stream, "key", "sender", "refuse") as journal:
            for each in (batch, replace(batch, first=len(X))):
                assert journal.accepted(each) is None
                assert journal._database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
                journal.announce([each])
                journal.begin(each)
                journal.end(each, f"{each.first}-0")


def test_appends_in_one_journal_are_ended_and_withdrawn_each_by_itself(tmp_path):
    """Else a batch that was never sent would count as accepted, or one that was accepted would be sent again."""
    batch, path = batches.Batch(first=0, block=Block(x=X, y=Y)), tmp_path / "days.sqlite"
    streams = ("days", "nights", "weeks")
    for stream in streams:
        with opened(path, stream, "key", "sender" if stream == "nights" else "another", "refuse") as journal:
            journal.announce([batch])
            journal.begin(batch)
    with opened(path, "nights", "key", "sender", "refuse") as journal:
        journal.end(batch, "1-0")
    for stream in streams:
        with opened(path, stream, "key", "sender", "refuse") as journal:
            assert journal.accepted(batch) == ("1-0" if stream == "nights" else None)
            assert (journal.newest() is not None) == (stream == "nights")
            if stream == "nights":
                journal.withdraw(0)
                assert journal.accepted(batch) == "1-0"
            else:
                assert journal.has_only_remembered()
    with opened(path, "weeks", "key", "sender", "refuse") as journal:
        journal.withdraw(0)
    with opened(path, "days", "key", "another", "refuse") as journal:
        journal.announce([batch])
        assert not journal.is_new(batch)


def test_bridges_name_their_batches_each_by_its_consumer():
    """Else messages of a second consumer would be taken for those of the first."""
    keys = []

    class Transport:
        sender = "key"

        async def run(self, posting):
            keys.append(next(posting).headers["Idempotency-Key"])

    for place in ("one", "two", "one"):
        source = SimpleNamespace(place=place, since="today")
        bridge = nats_bridge.Bridge(source, Transport(), SimpleNamespace(target="days"))
        asyncio.run(bridge._post([nats_bridge.Message(sequence=1, reply="", data=b"{}")], []))
    assert keys[0] == keys[2] != keys[1]


def test_a_bridge_asks_about_messages_of_which_some_are_gone():
    """They were sent, and no answer came. The others would be stored twice, as a batch of another name."""
    options = SimpleNamespace(target="days", uncertain="refuse")
    bridge = nats_bridge.Bridge(SimpleNamespace(place="one", since=""), SimpleNamespace(sender="key"), options)
    bridge._note = replace(bridge._note, sent=time.time(), messages=((1, ""), (2, "")), stored=False)

    async def read(sequence, reply):
        return None if sequence == 2 else nats_bridge.Message(sequence=sequence, reply=reply, data=b"{}")

    bridge._read = read
    with pytest.raises(Uncertain, match="some are gone from NATS"):
        asyncio.run(bridge._finish())


@pytest.mark.parametrize(("pending", "unacknowledged"), [(0, 0), (1, 0), (0, 1)])
def test_a_bridge_has_ended_only_once_all_messages_are_acknowledged(pending, unacknowledged):
    """A bridge that was killed may hold some, which come again."""

    async def info(*_):
        return SimpleNamespace(num_pending=pending, num_ack_pending=unacknowledged)

    source = SimpleNamespace(stream=SimpleNamespace(consumer_info=info), since="")
    options = SimpleNamespace(source="DAYS", consumer="one", target="days")
    bridge = nats_bridge.Bridge(source, SimpleNamespace(sender="key"), options)
    assert asyncio.run(bridge._is_empty()) is (pending == unacknowledged)


def test_only_what_can_be_repeated_is(service: Service, faults):
    """A stream may have been made although no answer came: to make it again would say that its name is taken."""
    client, transport = faults

    def breaking(_: httpx.Request) -> None:
        assert len(transport.requests) == 1
        raise httpx.ReadError("broken by the test")

    transport.after = breaking
    with pytest.raises(Unreachable):
        client.create_stream("made-once", features=1, classes=2, epsilon=1)
    ok(service.client().get("/v1/streams/made-once"))
