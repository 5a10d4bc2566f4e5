"""Following a publication: every model once, in order, as soon as it is there, for as long as somebody listens."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from service.api import newer_models
from service.api.routes import events
from service.store import keys
from service.store.database import NEW_RELEASE, Database, DatabaseUnavailable, notify
from tests.api.test_records import refused
from tests.conftest import Service, ok, serving, wait_until

CHAINS = {"kind": "sliding_window", "block": 2, "blocks": 3}  # its models have links before them
ONE_BY_ONE = {"kind": "sliding_window", "block": 5, "blocks": 1}


class Listener:
    """An open event stream."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.lines = lines

    def next(self) -> tuple[int, dict]:
        """The next event: its id and its data."""
        event: dict[str, str] = {}
        for line in self.lines:
            name, _, value = line.partition(": ")
            if line and name:
                event[name] = value
            elif "id" in event:
                return int(event["id"]), json.loads(event["data"])
        raise EOFError


@contextlib.contextmanager
def listening(client: httpx.Client, name: str, **headers: str) -> Iterator[Listener]:
    with client.stream("GET", f"/v1/publications/{name}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-store"
        yield Listener(answer.iter_lines())


@pytest.fixture
def running(service: Service) -> tuple[str, str]:
    """A stream and a publication with two models."""
    stream = service.stream()
    name = service.publish(stream, ONE_BY_ONE)
    for time_due in (5, 10):
        five_more(service, stream)
        service.reaches(name, time=time_due)
    return stream, name


def five_more(service: Service, stream: str) -> None:
    service.post(stream, [[1, 0], [0, 1], [-1, 0], [0, -1], [1, 1]], [1, 1, 0, 0, 1])


@pytest.mark.more
def test_the_latest_comes_first_then_what_is_published(service: Service, running):
    stream, name = running
    with listening(service.client(), name) as listener:
        assert listener.next()[0] == 2
        for version in (3, 4):
            five_more(service, stream)
            assert listener.next()[0] == version


def test_before_the_first_model_there_is_silence(service: Service):
    stream = service.stream()
    name = service.publish(stream, ONE_BY_ONE)
    with listening(service.client(), name) as listener:
        five_more(service, stream)
        assert listener.next()[0] == 1


def test_who_was_away_gets_everything_since(service: Service, running):
    stream, name = running
    with listening(service.client(), name, **{"Last-Event-ID": "0"}) as listener:
        assert [listener.next()[0] for _ in range(2)] == [1, 2]
    with listening(service.client(), name, **{"Last-Event-ID": "2"}) as listener:
        five_more(service, stream)
        assert listener.next()[0] == 3


@pytest.mark.more
def test_models_alone_are_told_in_order_without_their_parameters(service: Service, monkeypatch):
    monkeypatch.setattr(newer_models, "RELEASES_AT_ONCE", 2)
    stream = service.stream()
    name = service.publish(stream, CHAINS)
    for _ in range(4):
        five_more(service, stream)
    service.reaches(name, time=20)
    listed = ok(service.client().get(f"/v1/publications/{name}/releases"))["items"][::-1]
    models = [release for release in listed if release["role"] == "model"]
    assert 5 < len(models) < len(listed)
    with listening(service.client(), name, **{"Last-Event-ID": "0"}) as listener:
        assert [listener.next() for _ in models] == [(model["version"], model) for model in models]


def test_silence_is_broken_by_comments(service: Service, running, monkeypatch):
    monkeypatch.setattr(events, "SECONDS_OF_SILENCE", 0.1)
    with listening(service.client(), running[1]) as listener:
        listener.next()
        comments = [line for line in (next(listener.lines) for _ in range(6)) if line]
    assert comments == [": still here"] * 3


def test_what_happens_to_a_publication_of_the_same_name_elsewhere_does_not_show(service: Service, running, monkeypatch):
    """It wakes whoever listens, and no comment comes the later for that."""
    monkeypatch.setattr(events, "SECONDS_OF_SILENCE", 0.5)
    database, stop = Database(service.settings.database_url), threading.Event()

    def wake() -> None:
        while not stop.wait(0.02):
            with database.transaction() as connection:
                notify(connection, NEW_RELEASE, running[1])

    waker = threading.Thread(target=wake)
    waker.start()
    try:
        with listening(service.client(), running[1]) as listener:
            listener.next()
            assert [line for line in (next(listener.lines) for _ in range(4)) if line] == [": still here"] * 2
    finally:
        stop.set()
        waker.join()
        database.close()


def test_a_server_that_stops_lets_go(service: Service, running):
    with contextlib.ExitStack() as stack:
        server = serving(service.settings)
        url = stack.enter_context(server)
        client = stack.enter_context(
            httpx.Client(base_url=url, headers={"Authorization": f"Bearer {service.admin_key}"}, timeout=200)
        )
        listener = stack.enter_context(listening(client, running[1]))
        listener.next()
        server.stop()
        with pytest.raises(EOFError):  # it was not cut
            listener.next()


def test_who_hangs_up_is_forgotten(service: Service, running):
    server = serving(service.settings)
    headers = {"Authorization": f"Bearer {service.admin_key}"}
    with server as url, httpx.Client(base_url=url, headers=headers) as client:
        waiting = server.app.state.services.notifier._waiting
        with listening(client, running[1]) as listener:
            listener.next()
            wait_until(lambda: len(waiting) == 1)
        wait_until(lambda: not waiting)


def test_a_revoked_key_is_told_nothing_more(service: Service, running):
    stream, name = running
    made = ok(service.client().post("/v1/keys", json={"name": f"of-{name}", "scopes": ["read"]}), 201)
    with listening(service.client(made["key"]), name) as listener:
        listener.next()
        assert service.client().delete(f"/v1/keys/{made['id']}").status_code == 204
        five_more(service, stream)
        with pytest.raises(EOFError):
            listener.next()


def test_nothing_is_sent_while_nobody_can_tell_whether_the_key_holds():
    """It was revoked, and the database was away when a model was there to be sent."""
    looks = iter((DatabaseUnavailable, None))

    async def find(_: Any) -> None:
        if (error := next(looks)) is not None:
            raise error

    async def wait(*_: Any) -> list[tuple[int, bytes]]:
        return [(2, b"event")]

    async def follow() -> list[bytes]:
        models, known = SimpleNamespace(wait=wait), SimpleNamespace(find=find)
        shared: Any = SimpleNamespace(newer_models=models, stopping=asyncio.Event(), keys=known)
        return [event async for event in events._events(shared, ("prn_secret", keys.find), "rain", 1, 1)]

    assert asyncio.run(follow()) == []


def test_refusals_come_before_the_first_event(service: Service, running):
    url = f"/v1/publications/{running[1]}/events"
    refused(service.client().get("/v1/publications/no-such/events"), 404, "not-found")
    refused(service.client(service.key("read", streams=[service.stream()])).get(url), 404, "not-found")
    for wrong in ("-1", "x", str(2**40)):
        refused(service.client().get(url, headers={"Last-Event-ID": wrong}), 422, "invalid-request")


@pytest.mark.more
def test_many_listen_at_once(service: Service, running):
    stream, name = running
    headers = {"Authorization": f"Bearer {service.admin_key}"}
    many, heard, ready = 100, [], threading.Event()

    async def listen(client: httpx.AsyncClient, arrived: list[int]) -> None:
        async with client.stream("GET", f"/v1/publications/{name}/events") as answer:
            async for line in answer.aiter_lines():
                if line.startswith("id: 2"):
                    arrived.append(2)
                    if len(arrived) == many:
                        ready.set()
                if line.startswith("id: 3"):
                    heard.append(3)
                    return

    async def all_of_them() -> None:
        limits, arrived = httpx.Limits(max_connections=None), []
        async with httpx.AsyncClient(base_url=service.url, headers=headers, limits=limits, timeout=200) as client:
            await asyncio.gather(*(listen(client, arrived) for _ in range(many)))

    crowd = threading.Thread(target=asyncio.run, args=(all_of_them(),))
    crowd.start()
    assert ready.wait(200)
    five_more(service, stream)
    crowd.join(200)
    assert len(heard) == many
