"""A client of the service that all tests share, and one whose connections fail when a test says so."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import redis

import perennial
import perennial.__main__ as command
from perennial.transport import LibraryConnections
from tests import folder_service
from tests.conftest import Service, wait_until

service = folder_service.service


@pytest.fixture(scope="package")
def client(service: Service) -> Iterator[perennial.Client]:
    with perennial.connect(service.url, service.admin_key) as connected:
        yield connected


class Faults(httpx.BaseTransport):
    """Real connections that fail: `before` is called with each request and `after` with its answer, and may raise."""

    def __init__(self) -> None:
        self.real = httpx.HTTPTransport()
        self.requests: list[httpx.Request] = []
        self.before: Callable[[httpx.Request], None] = lambda _: None
        self.after: Callable[[httpx.Request], None] = lambda _: None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.before(request)
        response = self.real.handle_request(request)
        response.read()
        self.after(request)
        return response

    def close(self) -> None:
        self.real.close()


@pytest.fixture
def faults(service: Service) -> Iterator[tuple[perennial.Client, Faults]]:
    with perennial.connect(service.url, service.admin_key) as connected:
        transport = Faults()
        connected._transport.connections.close()
        headers = {"Authorization": f"Bearer {service.admin_key}"}
        settings = {"base_url": service.url, "headers": headers, "transport": transport, "trust_env": False}
        connected._transport.connections = LibraryConnections(settings)
        yield connected, transport


def posts(faults: Faults) -> list[httpx.Request]:
    return [request for request in faults.requests if request.url.path.endswith("/records")]


def numbered(stream: perennial.Stream, records: int) -> None:
    """Wait until so many records have numbers, and see that no more follow at once."""
    wait_until(lambda: stream.info()["records"] >= records)
    assert stream.info()["records"] == records


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands keep journals."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "perennial"


@pytest.fixture
def key_file(service: Service, tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(service.admin_key + "\n")
    return path


@pytest.fixture
def load(service: Service, key_file: Path) -> Callable[..., int]:
    """`perennial load` with the label `rain`."""
    return lambda stream, *more: command.main(
        ["load", stream, *map(str, more), "--label", "rain", "--url", service.url, "--key-file", str(key_file)]
    )


def forget_keys(service: Service) -> None:
    """Empty the service's memory of idempotency keys, as a day does."""
    with contextlib.closing(redis.Redis.from_url(str(service.settings.redis_url))) as log:
        for name in log.scan_iter("perennial:*:idempotency:*"):
            log.delete(name)
