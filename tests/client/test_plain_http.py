"""Connections by the standard library: which are used again, and what of a failure may have been carried out."""

import select
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import httpx
import pytest

from perennial.exchange import Answer, NoAnswer, Request
from perennial.transport import LibraryConnections, Transport, _no_answer
from tests.conftest import HANG_SECONDS

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
POST = Request(method="POST", path="/v1/things", query={"a": "b c"}, headers={"X-Mine": "1"}, body=b"four")


@contextmanager
def server(*connections: Callable[[socket.socket], object]) -> Iterator[Transport]:
    """Each connection, in the order in which they come, does this and is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for each in connections:
                with listening.accept()[0] as connection:
                    connection.settimeout(HANG_SECONDS)
                    each(connection)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        transport = Transport(f"http://127.0.0.1:{listening.getsockname()[1]}/below", "a-key")
        yield transport
        transport.close()
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()


def answering(times: int, requests: list[bytes], answer: bytes = OK) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        for _ in range(times):
            request = b""
            while not request.endswith(b"four"):
                request += connection.recv(2**16)
            requests.append(request)
            connection.sendall(answer)

    return serve


def test_a_connection_is_used_until_the_server_closes_it():
    requests: list[bytes] = []
    with server(answering(2, requests), answering(1, requests)) as transport:
        for number in (1, 2, 3):
            answer = transport.connections.send(POST)
            assert isinstance(answer, Answer)
            assert (answer.status, answer.headers, answer.body) == (200, {"content-length": "2"}, b"ok")
            connection = transport.connections._idle[0].sock
            assert connection.gettimeout() == POST.seconds, "not that of connecting"
            if number == 2:  # a request that is sent while the server closes it may be lost
                assert select.select([connection], [], [], HANG_SECONDS)[0]
    head = requests[0].decode()
    assert head.startswith("POST /below/v1/things?a=b+c HTTP/1.1\r\n")
    assert "Authorization: Bearer a-key\r\n" in head
    assert "X-Mine: 1\r\n" in head


def test_an_answer_that_ends_the_connection_is_read():
    requests: list[bytes] = []
    last = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with server(answering(1, requests, last), answering(1, requests)) as transport:
        assert [transport.connections.send(POST).status for _ in range(2)] == [200, 200]


def test_what_may_have_been_carried_out_is_known():
    with server(lambda connection: connection.recv(1)) as transport:
        lost = transport.connections.send(POST)
    nobody = transport.connections.send(POST)
    assert isinstance(lost, NoAnswer)
    assert lost.sent
    assert nobody == NoAnswer(reason="ConnectionRefusedError", sent=False)


def test_an_address_of_ipv6_needs_no_port(monkeypatch):
    """The end of it is none."""
    tried = []

    def refuse(address: tuple[str, int], *_: object) -> None:
        tried.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert not Transport("http://[::1]", "a-key").connections.send(POST).sent
    assert tried == [("::1", 80)]


def test_a_refusal_of_a_body_that_nobody_reads_is_read():
    def refuse(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(OK.replace(b"200", b"413"))
        connection.shutdown(socket.SHUT_RD)
        while connection.recv(2**16):
            pass

    with server(refuse) as transport:
        answer = transport.connections.send(Request(method="POST", path="/", body=bytes(2**24)))
    assert isinstance(answer, Answer)
    assert answer.status == 413


@pytest.mark.parametrize(
    ("url", "proxy", "library"),
    [
        ("http://127.0.0.1:1", "http://proxy:1", False),
        ("http://stream.example", None, False),
        ("http://stream.example", "http://proxy:1", True),
        ("http://10.0.0.1", "http://proxy:1", True),
        ("https://127.0.0.1:1", None, True),
    ],
)
def test_tls_and_proxies_are_left_to_a_library(monkeypatch, url, proxy, library):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    if proxy is not None:
        monkeypatch.setenv("http_proxy", proxy)
    transport = Transport(url, "a-key")
    assert isinstance(transport.connections, LibraryConnections) == library
    transport.close()


def test_the_certificate_of_a_server_is_checked():
    """Else anybody on the way reads the key and the records."""
    transport = Transport("https://stream.example", "a-key")
    checks = transport.connections._http._transport._pool._ssl_context
    assert (checks.verify_mode, checks.check_hostname) == (ssl.CERT_REQUIRED, True)
    transport.close()


def test_what_a_library_may_have_sent_is_known():
    """An error that comes after the request was begun says nothing of what the server did."""
    before = {httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol}
    after = {httpx.ReadTimeout, httpx.WriteTimeout, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError}
    for each in before | after:
        assert _no_answer(each("away")) == NoAnswer(reason=each.__name__, sent=each in after)


def test_a_key_is_the_same_sender_with_and_without_its_line_break():
    """As a file has it, and a variable of the environment: else a journal takes them for two keys."""
    assert Transport("http://here", "a-key\n").sender == Transport("http://here", "a-key").sender
