"""A key that is revoked while its request waits: the request gets what a new one gets, and changes nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from service.api.auth import known_keys
from service.api.auth.credentials import PAGE_HEADER, SESSION_COOKIE
from service.store import keys
from tests.api import test_queries
from tests.api.test_labels import next_request, post, publish, unlabelled
from tests.api.test_records import refused
from tests.conftest import HANG_SECONDS, Service, ok, serving, unique, wait_until

ONE_BY_ONE = {"kind": "sliding_window", "block": 1, "blocks": 1}


class Asker:
    """Somebody with a key of its own, at an API of its own, which hears of the revocation from PostgreSQL."""

    def __init__(self, service: Service, server: serving, *scopes: str) -> None:
        self._service, self._server = service, server
        body = {"name": unique("key"), "scopes": list(scopes)}
        made = ok(service.client().post("/v1/keys", json=body), 201)
        self._id, self.headers = made["id"], {"Authorization": f"Bearer {made['key']}"}
        self._requests, self._known = server.app.state.services.requests, server.app.state.services.keys

    def revoke(self) -> None:
        """Take its key away."""
        assert self._service.client().delete(f"/v1/keys/{self._id}").status_code == 204

    def lose(self) -> None:
        """Take its key away, and wait until its API has heard of that."""
        self.revoke()
        shown = self.headers["Authorization"].removeprefix("Bearer "), keys.find
        wait_until(lambda: self._known.remembered(shown) is None)

    def waits_for_its_turn(self, turn: str, path: str, body: bytes, media_type: str) -> httpx.Response:
        """Return the answer to a body whose turn comes after its key was revoked."""

        @contextlib.asynccontextmanager
        async def waiting() -> AsyncIterator[None]:
            await asyncio.to_thread(self.lose)
            yield

        setattr(self._server.app.state.services, turn, waiting())
        headers = self.headers | {"Content-Type": media_type}
        return httpx.post(self._server.url + path, content=body, headers=headers, timeout=HANG_SECONDS)

    def sign_in(self) -> None:
        """Show from now on a session's cookie instead of its key."""
        cookie = httpx.post(f"{self._server.url}/v1/session", headers=self.headers).cookies[SESSION_COOKIE]
        self.headers = {"Cookie": f"{SESSION_COOKIE}={cookie}", PAGE_HEADER: "1"}

    def sign_out(self) -> None:
        """End its session, at another API."""
        answer = self._service.client().delete("/v1/session", headers=self.headers | {"Authorization": ""})
        assert answer.status_code == 204

    def waits(self, publication: str, path: str, meanwhile: Callable[[], object], *, seconds: int = 60) -> bool:
        """Wait, lose the key meanwhile, and check that the answer is that to a new request.

        Return whether that could be seen: False if the time to wait was over before the key was lost.
        """
        waiting = self._server.app.state.services.notifier._waiting
        url = f"{self._server.url}/v1/publications/{publication}/{path}"
        prefer = {"Prefer": f"wait={seconds}"}
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(httpx.get, url, headers=self.headers | prefer, timeout=HANG_SECONDS)
            wait_until(lambda: publication in waiting or waits.done())
            meanwhile()
            if waits.done() and waits.result().status_code != 401:
                return False
            answer, new = waits.result(HANG_SECONDS), httpx.get(url, headers=self.headers | prefer)
        refused(answer, 401, "unauthenticated")
        assert (answer.status_code, answer.content, answer.headers.keys()) == (401, new.content, new.headers.keys())
        return True

    def sends(self, path: str, body: bytes, *, declared: bool = False) -> httpx.Response:
        """Return the answer to a body of which the rest comes after its key was revoked."""
        before = self._requests._due.get(self._id)

        def pieces() -> Iterator[bytes]:
            yield body[:1]
            wait_until(lambda: self._requests._due.get(self._id) != before)  # it was let in
            self.lose()
            yield body[1:]

        headers = self.headers | {"Content-Type": "application/json"}
        headers |= {"Content-Length": str(len(body))} if declared else {}
        return httpx.post(self._server.url + path, content=pieces(), headers=headers, timeout=HANG_SECONDS)

    def sends_at_once(self, path: str, body: bytes) -> httpx.Response:
        """Return the answer to a body that comes at once."""
        headers = self.headers | {"Content-Type": "application/json"}
        return httpx.post(self._server.url + path, content=body, headers=headers, timeout=HANG_SECONDS)


@pytest.fixture
def asker(service: Service) -> Iterator[Callable[..., Asker]]:
    with contextlib.ExitStack() as stack:
        server = serving(service.settings)
        stack.enter_context(server)
        yield lambda *scopes: Asker(service, server, *scopes)


@pytest.fixture
def labelled(service: Service) -> tuple[str, str]:
    """A stream without labels, and a publication that asks for that of each record."""
    stream = unlabelled(service)
    return stream, publish(service, stream, size=1, batching="fixed_batch", lease_seconds=1000)


@pytest.fixture
def released(service: Service) -> tuple[str, str]:
    """A stream and a publication with one model."""
    stream = service.stream()
    name = service.publish(stream, ONE_BY_ONE)
    service.post(stream, [[1, 0]], [1])
    service.reaches(name, time=1)
    return stream, name


def test_no_record_is_leased_to_it(service: Service, asker, labelled):
    stream, publication = labelled
    labeller = asker("label")

    def meanwhile() -> None:
        labeller.revoke()
        post(service, stream, np.ones((1, 2)))

    assert labeller.waits(publication, "label-requests", meanwhile)
    assert next_request(service, publication)["record"] == 0


def test_it_does_not_wait_on_for_a_record(asker, labelled):
    labeller = asker("label")
    assert labeller.waits(labelled[1], "label-requests", labeller.revoke)


def test_no_later_version_is_sent_to_it(service: Service, asker, released):
    stream, name = released
    reader = asker("read")

    def meanwhile() -> None:
        reader.revoke()
        service.post(stream, [[0, 1]], [0])

    assert reader.waits(name, "releases/latest", meanwhile)


def in_vain(wait: Callable[[int], bool]) -> None:
    """Wait so many seconds; longer where these were over too soon."""
    assert any(map(wait, (2, 20, 60)))


def test_after_waiting_in_vain_it_is_sent_nothing(asker, released):
    def wait(seconds: int) -> bool:
        reader = asker("read")
        return reader.waits(released[1], "releases/latest", reader.revoke, seconds=seconds)

    in_vain(wait)


@pytest.mark.more
@pytest.mark.parametrize(("which", "path"), [("labelled", "label-requests"), ("released", "releases/latest")])
def test_a_session_that_ends_is_sent_nothing_more(request, asker, which, path):
    publication = request.getfixturevalue(which)[1]

    def wait(seconds: int) -> bool:
        visitor = asker("read", "label")
        visitor.sign_in()
        return visitor.waits(publication, path, visitor.sign_out, seconds=seconds)

    in_vain(wait)


@pytest.mark.parametrize("declared", [True, False])
def test_a_batch_that_comes_slowly_is_not_stored(service: Service, asker, monkeypatch, declared):
    monkeypatch.setattr(known_keys, "KEY_CACHE_SECONDS", 1000.0)  # so that what is declared is read without a look
    stream, producer = service.stream(), asker("ingest")
    path, body = f"/v1/streams/{stream}/records", b'{"x": [[1, 0]], "y": [1]}'
    ok(producer.sends_at_once(path, body), 202)
    refused(producer.sends(path, body, declared=declared), 401, "unauthenticated")
    assert service.post(stream, [[0, 1]], [0]) == (1, 2)


def test_no_key_is_made_by_a_request_that_comes_slowly(service: Service, asker):
    name = unique("key")
    body = f'{{"name": "{name}", "scopes": ["admin"]}}'.encode()
    refused(asker("admin").sends("/v1/keys", body), 401, "unauthenticated")
    assert name not in [key["name"] for key in ok(service.client().get("/v1/keys"))["items"]]


@pytest.mark.more
@pytest.mark.parametrize("what", ["predict", "queries"])
def test_a_request_that_comes_slowly_is_told_nothing(asker, released, what):
    body = b'{"x": [[1, 0]]}' if what == "predict" else b'{"weights": [1]}'
    refused(asker("read").sends(f"/v1/publications/{released[1]}/{what}", body), 401, "unauthenticated")


def test_queries_whose_turn_comes_later_are_not_answered(service: Service, asker):
    path = f"/v1/publications/{test_queries.publish(service, test_queries.categorical(service))}/queries"
    answer = asker("read").waits_for_its_turn("answering", path, b'{"categories": [0]}', "application/json")
    refused(answer, 401, "unauthenticated")


def test_a_data_set_whose_turn_comes_later_is_not_kept(asker):
    answer = asker("read").waits_for_its_turn("data_sets", "/v1/explorer/datasets", b"x,y\n", "text/csv")
    refused(answer, 401, "unauthenticated")
