"""Answers come in the order of the requests on a connection, refusals by the server itself among them."""

import re

import pytest

from tests.api.wires import AUTHORIZED, wire
from tests.conftest import Service

BODY = b'{"x": [[0, 1]], "y": [1]}'
LARGE_HEAD = b"GET /livez HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"
TWO_HOSTS = b"GET /livez HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n"
NO_CHUNK = b"POST /v1/streams HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nno length"


@pytest.mark.parametrize(
    ("after", "status"),
    [(b"nonsense\r\n\r\n", b"400"), (TWO_HOSTS, b"400"), (NO_CHUNK, b"400"), (LARGE_HEAD, b"431")],
)
@pytest.mark.parametrize("batches", [1, 3])
def test_a_refusal_takes_the_place_of_no_other_answer(service: Service, batches, after, status):
    """Else who reads that a batch was refused sends it again, and its records are stored twice."""
    stream = service.stream()
    assert service.post(stream, [[0, 0]], [0]) == (0, 1)  # the process knows key and stream from here on
    head = f"POST /v1/streams/{stream}/records HTTP/1.1\r\nHost: h\r\n{AUTHORIZED}\r\nContent-Length: {len(BODY)}"
    with wire(service) as client:
        client.socket.sendall((head.encode() + b"\r\n\r\n" + BODY) * batches + after)
        received = client.all()
    assert re.findall(rb"HTTP/1\.1 (\d+)", received) == [b"202"] * batches + [status]


def test_a_request_that_is_refused_itself_has_its_refusal_at_once(service: Service):
    with wire(service) as client:
        client.send("POST /v1/streams HTTP/1.1", "Host: h", AUTHORIZED, "Transfer-Encoding: chunked", body=b"no length")
        assert client.all().startswith(b"HTTP/1.1 400")
