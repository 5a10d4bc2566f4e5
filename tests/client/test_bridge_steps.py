"""Single steps of a bridge, without NATS: its limits, its notes and what it asks of NATS."""

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import BucketNotFoundError, NotFoundError

from perennial import PerennialError, Problem, Uncertain, Unreachable, nats_bridge, nats_source
from perennial.errors import problem_of
from perennial.exchange import NoAnswer, Pause, Request
from perennial.nats_bridge import MOST_BYTES, MOST_RECORDS, Bridge, Message

LINE = b'{"x":[1],"y":1}'
MESSAGES = [Message(sequence=number, reply=f"reply {number}", data=LINE) for number in (1, 2)]


class Nats:
    """Stands for a connection, a stream and a bucket of NATS; `sent` holds what it was sent, in order."""

    def __init__(self) -> None:
        self.sent: list[tuple] = []

    async def publish(self, subject: str, data: bytes, headers: dict | None = None) -> None:
        self.sent.append(("publish", subject, data, headers))

    async def request(self, subject: str, data: bytes, timeout: float) -> None:  # noqa: ASYNC109 - as NATS's
        self.sent.append(("request", subject, data))

    async def update(self, place: str, value: bytes, last: int) -> int:
        self.sent.append(("note", nats_bridge.Note.decode(value)))
        return last + 1


def bridge_with(nats_server: Nats, **options) -> Bridge:
    source = nats_source.Source(
        connection=nats_server, stream=nats_server, bucket=nats_server, place="the place", since="today"
    )
    wanted = {"target": "days", "uncertain": "refuse", "letters": "dead", "source": "DAYS", "consumer": "c"} | options
    return Bridge(source, SimpleNamespace(sender="my key"), SimpleNamespace(**wanted))


@pytest.fixture
def server() -> Nats:
    return Nats()


@pytest.fixture
def too_large():
    """Let the service refuse whatever a bridge sends."""

    def too_large(bridge: Bridge) -> None:
        async def refuse(*_) -> None:
            body = b'{"type": "urn:perennial:problem:too-large", "title": "Too large"}'
            raise problem_of(413, "application/problem+json", body)

        bridge._post = refuse

    return too_large


@pytest.mark.parametrize(
    ("each", "fitting"),
    [(LINE, 4), (b"\n".join([LINE] * (MOST_RECORDS // 2)), 2), (b" " * (MOST_BYTES // 3) + LINE, 2)],
    ids=["few", "records", "bytes"],
)
def test_a_batch_has_so_many_records_and_bytes_at_most(each, fitting):
    messages = [Message(sequence=number, reply="", data=each) for number in range(4)]
    assert nats_bridge._fitting(messages) == fitting


def test_a_note_names_the_key_that_its_messages_are_sent_with(server):
    """Else the bridge of the key before would send them again, which the service knows under this one."""
    bridge = bridge_with(server)
    bridge._note = replace(bridge._note, sender="the key before", sent=1.0)
    began = time.time()
    asyncio.run(bridge._intend(MESSAGES))
    ((_, note),) = server.sent
    assert (note.sender, note.stored) == ("my key", False)
    assert note.messages == ((1, "reply 1"), (2, "reply 2"))
    assert note.sent >= began


def test_messages_that_may_be_stored_are_neither_halved_nor_given_back(server, too_large):
    """The service had them in one batch: under other keys they would be stored twice."""
    bridge = bridge_with(server)
    too_large(bridge)
    with pytest.raises(Problem, match="too-large"):
        asyncio.run(bridge._send(MESSAGES, ["no answer"]))
    assert server.sent == []
    bridge._note = replace(bridge._note, sent=time.time(), stored=False, messages=((1, "reply 1"), (2, "reply 2")))

    async def read(sequence: int, _: str) -> Message:
        return MESSAGES[sequence - 1]

    bridge._read = read
    with pytest.raises(Uncertain, match="the service takes smaller batches since"):
        asyncio.run(bridge._finish())
    assert server.sent == []


def test_messages_are_not_sent_again_on_the_next_day(server):
    """Their key was first used when they were noted: from then on the service remembers it for a day."""
    steps = []

    class Transport:
        sender = "my key"

        async def run(self, posting):
            steps.append(next(posting))
            steps.append(posting.send(NoAnswer(reason="ReadTimeout", sent=True)))
            posting.send(None)
            pytest.fail("it asked again")

    bridge = bridge_with(server)
    bridge._transport = Transport()
    bridge._note = replace(bridge._note, sent=time.time() - 25 * 3600)
    with pytest.raises(Unreachable):
        asyncio.run(bridge._post(MESSAGES, []))
    assert list(map(type, steps)) == [Request, Pause]


def test_refused_messages_of_two_streams_are_no_copies_of_each_other(server):
    """NATS drops a message whose id it knows: two streams number their messages alike."""
    for place in ("one", "two"):
        bridge = bridge_with(server)
        bridge._source = replace(bridge._source, place=place)
        asyncio.run(bridge._set_aside({1: (MESSAGES[0], "why")}))
    letters = [each for each in server.sent if each[0] == "publish"]
    assert len({each[-1]["Nats-Msg-Id"] for each in letters}) == 2
    assert [each[:3] for each in server.sent] == [
        ("publish", "dead", LINE),
        ("request", "reply 1", b"+ACK"),
    ] * 2


def test_a_consumer_whose_messages_are_on_their_way_feeds_no_other_stream(server):
    """Nobody asks whether the other stream is there: they would go to this one as well."""
    bridge = bridge_with(server)
    bridge._note = replace(bridge._note, target="nights", messages=((1, "reply 1"),))
    assert not asyncio.run(bridge._feeds_nothing())


def test_messages_are_fetched_once_and_those_beyond_a_batch_are_given_back(server, monkeypatch):
    monkeypatch.setattr(nats_bridge, "MOST_RECORDS", 2)

    class Subscription:
        async def fetch(self, batch: int, timeout: float):  # noqa: ASYNC109 - as NATS's
            metadata = [SimpleNamespace(sequence=SimpleNamespace(stream=each)) for each in (1, 1, 2, 3)]
            return [
                SimpleNamespace(metadata=each, reply=f"reply {number}", data=LINE)
                for number, each in enumerate(metadata)
            ]

        async def unsubscribe(self) -> None: ...

    async def subscribe(*_):
        return Subscription()

    server.pull_subscribe_bind = subscribe
    fetched = asyncio.run(bridge_with(server, batch=4)._fetched())
    assert [(each.sequence, each.reply) for each in fetched] == [(1, "reply 1"), (2, "reply 2")]
    assert server.sent == [("publish", "reply 3", b"-NAK", None)]


class JetStream:
    """Stands for a JetStream stream and its consumer, without a bucket of notes."""

    def __init__(self, created: str = "today", **consumer) -> None:
        self.created = created
        config = {"durable_name": "c", "ack_policy": AckPolicy.EXPLICIT} | consumer
        self.consumer = SimpleNamespace(config=ConsumerConfig(**config), created="now")
        self.taker: str | None = None
        self.bucket = None

    def jetstream(self, timeout: float):
        return self

    async def stream_info(self, _: str):
        return SimpleNamespace(created=self.created, config=SimpleNamespace(num_replicas=3))

    async def consumer_info(self, *_):
        return self.consumer

    async def find_stream_name_by_subject(self, _: str) -> str:
        if self.taker is None:
            raise NotFoundError
        return self.taker

    async def key_value(self, _: str):
        raise BucketNotFoundError

    async def create_key_value(self, config):
        self.bucket = config
        return config


def source_of(stream: JetStream, **options):
    wanted = {"source": "DAYS", "consumer": "c", "subject": None, "letters": None} | options
    return asyncio.run(nats_source.source(stream, SimpleNamespace(**wanted)))


def test_notes_are_kept_as_often_as_messages_and_for_each_stream_apart():
    """A stream that was deleted and made again begins to number anew."""
    first, again = JetStream("yesterday"), JetStream("today")
    assert source_of(first).place != source_of(again).place
    assert first.bucket.replicas == 3


@pytest.mark.parametrize(
    ("consumer", "options", "reason"),
    [
        ({"ack_policy": AckPolicy.ALL}, {}, "explicit acknowledgement"),
        ({"deliver_subject": "there"}, {}, "pull consumer"),
        ({"max_deliver": 5}, {}, "no limit of deliveries"),
        ({"filter_subject": "DAYS.old"}, {"subject": "DAYS.new"}, "does not filter by DAYS.new"),
        ({"filter_subjects": ["DAYS.new", "DAYS.old"]}, {"subject": "DAYS.new"}, "does not filter by DAYS.new"),
        ({}, {"letters": "nobody"}, "other than DAYS must take the subject nobody"),
    ],
)
def test_a_consumer_that_could_lose_messages_is_refused(consumer, options, reason):
    with pytest.raises(PerennialError, match=reason):
        source_of(JetStream(**consumer), **options)


def test_a_connection_that_is_lost_stays_so(monkeypatch):
    """Else a bridge went on with messages that NATS may have delivered to another meanwhile."""
    given = {}

    async def connect(servers, **options):
        given.update(options)
        return SimpleNamespace(close=lambda: asyncio.sleep(0))

    async def connecting() -> None:
        async with nats_source.connected(SimpleNamespace(credentials=None, servers=["nats://here"])):
            pass

    monkeypatch.setattr(nats, "connect", connect)
    asyncio.run(connecting())
    assert given["allow_reconnect"] is False
