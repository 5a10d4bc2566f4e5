"""Connections on which tests send what they like, and read what comes."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx

from tests.conftest import ADMIN_KEY, Service, wait_until

PROBLEM = "urn:perennial:problem:"


class Wire:
    """A client that sends what it likes."""

    def __init__(self, url: str) -> None:
        host, port = httpx.URL(url).host, httpx.URL(url).port
        self.socket = socket.create_connection((host, port), timeout=200)

    def close(self) -> None:
        self.socket.close()

    def send(self, *lines: str, body: bytes = b"") -> None:
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    def post(self, stream: str, *headers: str, body: bytes = b"") -> None:
        self.send(f"POST /v1/streams/{stream}/records HTTP/1.1", "Host: h", AUTHORIZED, *headers, body=body)

    def be_answered(self) -> None:
        """Send a request that is answered at once, as any client that is no stranger."""
        self.send("GET /livez HTTP/1.1", "Host: h")
        assert self.answer()[0] == 200

    def send_until_let_go(self, piece: bytes) -> None:
        """Send it again and again; fails where that never ends."""

        def is_let_go() -> bool:
            try:
                self.socket.sendall(piece)
            except OSError:  # reset or broken, whatever comes first
                return True
            return False

        wait_until(is_let_go)

    def all(self) -> bytes:
        """Everything until the other side closes."""
        received = b""
        try:
            while piece := self.socket.recv(65536):
                received += piece
        except ConnectionResetError:
            pass
        return received

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer; it has a Content-Length."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.socket.recv(1)
        head, *lines = received.decode().split("\r\n")[:-2]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = b""
        while len(body) < int(headers["content-length"]):
            body += self.socket.recv(65536)
        return int(head.split()[1]), headers, body


AUTHORIZED = f"Authorization: Bearer {ADMIN_KEY}"


@contextmanager
def wire(service: Service) -> Iterator[Wire]:
    with closing(Wire(service.url)) as made:
        yield made


def closed_with(received: bytes, status: int, kind: str) -> None:
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), received
    assert b"connection: close" in head
    assert b"application/problem+json" in head
    names = {line.partition(b":")[0] for line in head.split(b"\r\n")}
    assert {b"date", b"x-request-id", b"x-content-type-options"} <= names
    assert json.loads(body)["type"] == PROBLEM + kind
