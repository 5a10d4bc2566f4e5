"""Failures on the way to a server, in words; never a key, never a record."""

import http.server
import pickle
import threading
from pathlib import Path
from typing import ClassVar

import pytest

import perennial
from perennial import NotAllowed, Problem, UnknownServer, Unreachable
from perennial.errors import problem_of
from service.api.http.problems import _PROBLEMS
from tests.conftest import Service
from tests.ports import free_port

KEY = "prn_a-secret"


class Stranger(http.server.BaseHTTPRequestHandler):
    """A server that is no Perennial."""

    answers: ClassVar[dict[str, tuple[int, str, bytes]]] = {}

    def do_GET(self) -> None:
        status, kind, body = self.answers.get(self.path, (404, "text/html", b"<h1>a page</h1>"))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def stranger():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((404, "text/html", b"<h1>a page</h1>"), Unreachable),
        ((200, "text/html", b"<h1>a page</h1>"), UnknownServer),
        ((200, "application/json", b'{"status":"fine"}'), UnknownServer),
        ((200, "application/json", b'"alive"'), UnknownServer),
        ((400, "application/problem+json", b'{"type":"about:blank"}'), UnknownServer),
        ((400, "application/problem+json", b"[1]"), Unreachable),
        ((302, "text/html", b""), Unreachable),
    ],
)
def test_a_server_that_is_no_perennial_is_recognised(stranger, answer, error):
    Stranger.answers = {"/livez": answer}
    with pytest.raises(error, match=r"URL|kind of error") as refused:
        perennial.connect(stranger, KEY)
    assert "a page" not in str(refused.value)


def test_an_answer_of_another_version_is_recognised(stranger):
    Stranger.answers = {
        "/livez": (200, "application/json", b'{"status":"alive"}'),
        "/v1/streams/s": (200, "application/json", b"[1]"),
    }
    with perennial.connect(stranger, KEY) as client, pytest.raises(UnknownServer, match="update it"):
        client.stream("s").info()


def test_a_server_that_is_not_there(monkeypatch):
    port = free_port()
    with pytest.raises(Unreachable, match="ConnectionRefusedError"):
        perennial.connect(f"http://127.0.0.1:{port}", KEY)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://"])
def test_an_address_that_is_none(url):
    with pytest.raises(ValueError, match="url must be"):
        perennial.connect(url, KEY)


@pytest.mark.parametrize("key", ["", " ", None, Path("a secret"), b"a secret", "a secret\nkey", "schlüssel"])
def test_a_key_that_is_none_is_not_repeated(key):
    with pytest.raises(ValueError, match="key must be") as refused:
        perennial.connect("http://127.0.0.1:1", key)
    assert "secret" not in str(refused.value)


def test_a_key_is_never_shown(service: Service):
    with perennial.connect(service.url, KEY) as client:
        assert KEY not in repr(client) + repr(client.stream("s")) + repr(client.publication("p"))
        with pytest.raises(NotAllowed, match="Give connect") as refused:
            client.streams()
    assert KEY not in str(refused.value)
    assert (refused.value.slug, refused.value.status) == ("unauthenticated", 401)


def test_a_key_without_the_scope(service: Service):
    with perennial.connect(service.url, service.key("ingest")) as client, pytest.raises(NotAllowed, match="scope"):
        client.streams()


@pytest.mark.parametrize("slug", _PROBLEMS)
def test_every_problem_of_the_service_becomes_an_exception(slug):
    status, title = _PROBLEMS[slug]
    body = f'{{"type":"urn:perennial:problem:{slug}","title":"{title}","status":{status},"detail":"Do.","left":1}}'
    error = problem_of(status, "application/problem+json", body.encode())
    assert isinstance(error, Problem)
    assert (error.slug, error.status, error.title, error.detail, error.members) == (
        slug,
        status,
        title,
        "Do.",
        {"left": 1},
    )
    assert str(error).startswith(f"{title} ({slug}, {status}). Do.")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_a_problem_that_is_new_is_still_a_problem():
    error = problem_of(418, "application/problem+json", b'{"type":"urn:perennial:problem:teapot","detail":"Short."}')
    assert isinstance(error, Problem)
    assert (error.slug, error.detail) == ("teapot", "Short.")
