"""A server of objects for the tests here."""

from collections.abc import Iterator

import pytest

from tests.segments.objects.server import Faults, Server, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def healthy(server: Server) -> Iterator[Server]:
    server.faults = Faults()
    yield server
    server.faults = Faults()
