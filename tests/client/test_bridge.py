"""`perennial bridge nats` with a real server: every record once, whatever is killed, and when."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig
from packaging.requirements import Requirement

import perennial.__main__ as command
from perennial import exchange, nats_bridge
from tests.client.conftest import forget_keys, numbered
from tests.conftest import Service, unique, wait_until

ROOT = Path(__file__).parents[2]
ACK_SECONDS = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a NATS server with JetStream."""
    folder = tmp_path_factory.mktemp("nats")
    program = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    arguments = [program, "--jetstream", "--store_dir", folder, "--addr", "127.0.0.1", "--port", "-1"]
    with subprocess.Popen([*arguments, "--ports_file_dir", folder], stderr=subprocess.DEVNULL) as running:
        ports = folder / f"{Path(program).name}_{running.pid}.ports"
        wait_until(lambda: ports.exists() and ports.read_text())
        yield json.loads(ports.read_text())["nats"][0]
        running.terminate()


class JetStream:
    """A stream of NATS of a test's own, seen with blocking calls."""

    def __init__(self, server: str) -> None:
        self.server, self.name = server, unique("DAYS")
        self.ask(lambda stream: stream.add_stream(name=self.name, subjects=[f"{self.name}.>"]))

    def ask(self, call):
        async def asking():
            connection = await nats.connect(self.server)
            try:
                return await call(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(asking())

    def publish(self, *messages: bytes, subject: str = "new") -> None:
        async def publishing(stream):
            for message in messages:
                await stream.publish(f"{self.name}.{subject}", message)

        self.ask(publishing)

    def consume(self, **more) -> None:
        """Make the bridge's consumer, which delivers again what is not acknowledged in a second."""
        config = {"durable_name": "perennial", "ack_policy": AckPolicy.EXPLICIT, "ack_wait": ACK_SECONDS} | more
        self.ask(lambda stream: stream.add_consumer(self.name, ConsumerConfig(**config)))

    def unacknowledged(self) -> int:
        info = self.ask(lambda stream: stream.consumer_info(self.name, "perennial"))
        return info.num_pending + info.num_ack_pending


@pytest.fixture
def jetstream(server) -> JetStream:
    return JetStream(server)


@pytest.fixture
def arguments(service: Service, key_file, jetstream):
    def arguments(stream: str, *more: str) -> list[str]:
        fixed = ["--jetstream", jetstream.name, "--server", jetstream.server, "--url", service.url]
        return ["bridge", "nats", stream, *fixed, "--key-file", str(key_file), *more]

    return arguments


@pytest.fixture
def bridge(arguments):
    """Bridge until no message is left."""
    return lambda stream, *more: command.main(arguments(stream, "--once", *more))


def records(start: int, stop: int) -> list[bytes]:
    return [b'{"x":[%d,0.5],"y":%d}' % (number, number % 2) for number in range(start, stop)]


@pytest.fixture
def killed(jetstream, arguments):
    """Bridge, killed at every step, with new messages before each of the first starts; return the number of steps."""

    def killed(stream: str, messages: list[list[bytes]], *more: str) -> int:
        settings = {
            "server": jetstream.server,
            "subject": f"{jetstream.name}.new",
            "messages": [[message.decode() for message in each] for each in messages],
            "arguments": arguments(stream, "--once", *more),
        }
        here = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
        program = [sys.executable, "-m", "tests.client.killed_bridge"]
        ended = subprocess.run(
            program, input=json.dumps(settings), env=os.environ | here, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return int(ended.stdout.split()[-1])

    return killed


def test_messages_become_records(service: Service, client, jetstream, bridge, capsys):
    """One or several records a message, with the consumer that the bridge makes; then it goes on with what is new."""
    stream = client.stream(service.stream())
    jetstream.publish(*records(0, 5), b"\n".join(records(5, 9)) + b"\n", b"")
    assert bridge(stream.name, "--batch", "3") == 0
    assert capsys.readouterr().out.endswith(f"{jetstream.name}: 7 messages stored\n")
    numbered(stream, 9)
    jetstream.publish(*records(9, 12))
    assert bridge(stream.name) == 0
    numbered(stream, 12)
    assert jetstream.unacknowledged() == 0


def test_a_consumer_may_take_some_subjects_only(service: Service, client, jetstream, bridge):
    stream = client.stream(service.stream())
    jetstream.publish(*records(0, 4), subject="rain")
    jetstream.publish(*records(4, 6), subject="snow")
    for _ in range(2):
        assert bridge(stream.name, "--subject", f"{jetstream.name}.rain") == 0
    numbered(stream, 4)


@pytest.mark.slow
def test_a_bridge_that_is_killed_at_any_step_loses_and_doubles_nothing(service: Service, client, jetstream, killed):
    """New messages come before each start, so that batches without a note would be cut differently the next time."""
    stream = client.stream(service.stream())
    jetstream.consume()
    messages = [records(2 * start, 2 * start + 2) for start in range(16)]
    assert killed(stream.name, messages, "--batch", "3") > 16
    numbered(stream, 32)
    assert jetstream.unacknowledged() == 0


@pytest.mark.parametrize("there", [[], ["rain"], ["rain", "hail"]])
def test_a_subject_is_refused_where_the_consumer_is_there_and_takes_others(
    service: Service, client, jetstream, bridge, capsys, there
):
    subjects = [f"{jetstream.name}.{each}" for each in there]
    jetstream.consume(filter_subjects=subjects or None)
    jetstream.publish(*records(0, 4), subject="rain")
    stream = client.stream(service.stream())
    assert bridge(stream.name, "--subject", f"{jetstream.name}.snow") == 1
    assert f"does not filter by {jetstream.name}.snow: leave out --subject" in capsys.readouterr().err
    numbered(stream, 0)
    assert bridge(stream.name) == 0
    numbered(stream, 4)


@pytest.mark.slow
def test_refused_messages_are_set_aside_whatever_is_killed(service: Service, client, jetstream, killed):
    stream = client.stream(service.stream())
    jetstream.consume()
    letters = f"{jetstream.name}-letters"
    jetstream.ask(lambda ask: ask.add_stream(name=letters, subjects=[letters]))
    (good,) = records(0, 1)
    messages = [[b"{"], [good], [b'{"x":[1],"y":0}\n' + good], [good]] * 4
    assert killed(stream.name, messages, "--batch", "3", "--dead-letters", letters) > 16
    numbered(stream, 8)
    assert jetstream.unacknowledged() == 0
    assert jetstream.ask(lambda ask: ask.stream_info(letters)).state.messages == 8
    letter = jetstream.ask(lambda ask: ask.get_msg(letters, 1))
    refused = jetstream.ask(lambda ask: ask.get_msg(jetstream.name, int(letter.headers["Perennial-Sequence"])))
    assert refused.data == letter.data
    assert "is not JSON" in letter.headers["Perennial-Reason"] or "features" in letter.headers["Perennial-Reason"]


@pytest.mark.more
def test_a_bridge_that_is_killed_while_it_works_loses_and_doubles_nothing(
    service: Service, client, jetstream, arguments, bridge
):
    stream = client.stream(service.stream())
    jetstream.consume()
    jetstream.publish(*records(0, 300))
    for least in (20, 100, 180):
        program = [sys.executable, "-m", "perennial", *arguments(stream.name, "--batch", "2")]
        with subprocess.Popen(program) as running:
            wait_until(lambda least=least: stream.info()["records"] >= least)
            running.kill()
    assert bridge(stream.name) == 0
    numbered(stream, 300)


def test_a_refused_message_stops_the_bridge_without_a_subject_for_it(
    service: Service, client, jetstream, bridge, capsys, monkeypatch
):
    """Nor is it uncertain on the next day: the service stored nothing of its batch."""
    stream = client.stream(service.stream())
    jetstream.publish(*records(0, 2), b'{"x":["secret",2],"y":1}')
    now = time.time
    for hours in (0, 1, 26):
        monkeypatch.setattr(exchange.time, "time", lambda hours=hours: now() + hours * 3600)
        assert bridge(stream.name) == 1
        errors = capsys.readouterr().err
        assert "The service refused messages 3: row 2: x: " in errors
        assert "Give --dead-letters SUBJECT" in errors
        assert "secret" not in errors
    numbered(stream, 0)


def test_of_two_bridges_the_older_one_stops(service: Service, client, jetstream, arguments, bridge):
    stream = client.stream(service.stream())
    jetstream.consume()
    jetstream.publish(*records(0, 2))
    program = [sys.executable, "-m", "perennial", *arguments(stream.name)]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as older:
        wait_until(lambda: stream.info()["records"] == 2 and jetstream.unacknowledged() == 0)
        older.send_signal(signal.SIGSTOP)
        jetstream.publish(*records(2, 4))
        assert bridge(stream.name) == 0
        jetstream.publish(*records(4, 6))
        older.send_signal(signal.SIGCONT)
        _, output = older.communicate()
    assert (older.returncode, "Another bridge works at the consumer" in output) == (1, True)
    assert bridge(stream.name) == 0
    numbered(stream, 6)


@pytest.mark.parametrize(("stored", "answer"), [(True, "skip"), (False, "send")])
def test_messages_of_yesterday_without_an_answer_need_one_from_people(
    service: Service, client, jetstream, bridge, capsys, monkeypatch, stored, answer
):
    stream = client.stream(service.stream())
    jetstream.consume()
    jetstream.publish(*records(0, 3))

    async def breaking(self, *arguments):
        if stored:
            await posting(self, *arguments)
        raise KeyboardInterrupt

    posting = nats_bridge.Bridge._post
    with monkeypatch.context() as patch:
        patch.setattr(nats_bridge.Bridge, "_post", breaking)
        assert bridge(stream.name) == 1
    now = time.time
    monkeypatch.setattr(exchange.time, "time", lambda: now() + 25 * 3600)
    forget_keys(service)
    assert bridge(stream.name) == 1
    assert "3 messages (1 to 3) were sent and no answer came, and that was on an earlier day" in capsys.readouterr().err
    numbered(stream, 3 if stored else 0)
    assert bridge(stream.name, "--uncertain", answer) == 0
    numbered(stream, 3)
    assert jetstream.unacknowledged() == 0


def test_with_another_api_key_the_service_does_not_know_what_it_has(
    service: Service, client, jetstream, bridge, key_file, capsys, monkeypatch
):
    stream = client.stream(service.stream())
    jetstream.consume()
    jetstream.publish(*records(0, 3))

    async def breaking(self, *arguments):
        await posting(self, *arguments)
        raise KeyboardInterrupt

    posting = nats_bridge.Bridge._post
    with monkeypatch.context() as patch:
        patch.setattr(nats_bridge.Bridge, "_post", breaking)
        assert bridge(stream.name) == 1
    key_file.write_text(service.key("ingest"))
    assert bridge(stream.name) == 1
    assert "or with another API key" in capsys.readouterr().err
    numbered(stream, 3)


def test_messages_that_were_refused_are_sent_with_another_api_key(
    service: Service, client, jetstream, bridge, key_file
):
    """The service stored nothing of them, so the bridge asks no user whether it did."""
    stream = client.stream(service.stream())
    jetstream.publish(*records(0, 3))
    key_file.write_text(service.key("read"))
    assert bridge(stream.name) == 1
    key_file.write_text(service.key("ingest"))
    assert bridge(stream.name) == 0
    numbered(stream, 3)
    assert jetstream.unacknowledged() == 0


def test_a_message_that_is_too_large_is_named_each_time(service: Service, jetstream, bridge, capsys):
    widened = {"kind": "random_fourier", "features": 4096, "width": 1.0, "seed": 1}
    stream = service.stream(features=1, feature_map=widened)  # a batch of it holds 8192 records
    jetstream.publish(b"\n".join([b'{"x":[1],"y":1}'] * 8193))
    for _ in range(2):
        assert bridge(stream) == 1
        assert "(too-large, 413)" in capsys.readouterr().err


def test_a_batch_that_is_too_large_is_halved(service: Service, client, jetstream, bridge):
    """The service of the tests takes bodies of at most 1 MiB."""
    stream = client.stream(service.stream())
    jetstream.consume()
    jetstream.publish(*(b'{"x":[1,2],"y":1}' + b" " * 400_000 + b"\n" for _ in range(5)))
    assert bridge(stream.name) == 0
    numbered(stream, 5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--jetstream", "NOTHING"], "NATS has no JetStream stream NOTHING"),
        (["--consumer", "silent"], "must be a pull consumer with explicit acknowledgement"),
        (["--dead-letters", "nobody.takes"], "must take the subject nobody.takes"),
        (["--server", "nats://127.0.0.1:1"], "check --server"),
    ],
)
def test_what_cannot_be_exact_is_refused(service: Service, jetstream, bridge, capsys, more, message):
    jetstream.consume(durable_name="silent", ack_policy=AckPolicy.NONE)
    if "127.0.0.1:1" in more[-1]:
        jetstream.server = "nats://127.0.0.1:1"
        more = []
    assert bridge(service.stream(), *more) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--jetstream", "a.b"], "--jetstream: a name of NATS has no blanks"),
        (["--jetstream", ""], "--jetstream: a name of NATS has no blanks"),
        (["--consumer", "a b"], "--consumer: a name of NATS has no blanks"),
        (["--consumer", "a/b"], "--consumer: a name of NATS has no blanks"),
        (["--subject", "a b"], "--subject: a subject of NATS is words between dots"),
        (["--subject", "a..b"], "--subject: a subject of NATS is words between dots"),
    ],
)
def test_names_that_nats_does_not_take_are_refused_at_once(arguments, capsys, more, message):
    with pytest.raises(SystemExit):
        command.main(arguments("days", *more))
    assert message in capsys.readouterr().err


def test_credentials_need_a_package_that_the_extra_brings(service: Service, bridge, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nkeys", None)
    assert bridge(service.stream(), "--credentials", str(tmp_path / "user.creds")) == 1
    assert (
        "This needs the package nkeys: install it, or perennial-client with the extra [nats]."
        in capsys.readouterr().err
    )
    brought = [Requirement(each) for each in metadata.requires("perennial-client")]
    assert {"nkeys"} in [each.extras for each in brought if each.name == "nats-py"]


def test_dead_letters_do_not_come_back(service: Service, jetstream, bridge, capsys):
    assert bridge(service.stream(), "--dead-letters", f"{jetstream.name}.dead") == 1
    assert f"A JetStream stream other than {jetstream.name} must take" in capsys.readouterr().err


def test_a_consumer_feeds_one_stream(service: Service, client, jetstream, bridge, key_file, capsys):
    """None that is not there, as where its name was mistyped."""
    key_file.write_text(service.key("ingest"))
    stream = client.stream(service.stream())
    jetstream.publish(*records(0, 3))
    assert bridge(f"{stream.name}-mistyped") == 1
    assert bridge(stream.name) == 0
    assert bridge(service.stream()) == 1
    assert f"feeds the stream {stream.name}: use another consumer" in capsys.readouterr().err


def test_a_consumer_that_was_made_again_is_noticed(service: Service, client, jetstream, bridge, capsys):
    """It would deliver everything again."""
    stream = client.stream(service.stream())
    jetstream.publish(*records(0, 3))
    assert bridge(stream.name) == 0
    jetstream.ask(lambda ask: ask.delete_consumer(jetstream.name, "perennial"))
    assert bridge(stream.name) == 1
    refusal = capsys.readouterr().err
    assert "was deleted and made again" in refusal
    numbered(stream, 3)
    place = re.search(r"delete the key (\w+) of the bucket perennial-bridge", refusal)[1]

    async def delete_note(ask) -> None:
        await (await ask.key_value("perennial-bridge")).delete(place)

    jetstream.ask(delete_note)
    assert bridge(stream.name) == 0
    assert jetstream.unacknowledged() == 0
    numbered(stream, 3)  # the service remembers the batch
