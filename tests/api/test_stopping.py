"""Told to stop, it stops: who waits is let go, what was promised is kept, nobody holds it up."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from service.api.http.server import OTHER_FILES
from tests.api.test_limits import ONE_BY_ONE
from tests.api.test_records import VALID, refused
from tests.api.wires import AUTHORIZED, Wire
from tests.conftest import ADMIN_KEY, Service, World, serving, wait_until
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
WAITERS = 20


class Api(Service):
    """`perennial api` in a process of its own."""

    process: subprocess.Popen[bytes]


@pytest.fixture
def api(world: World) -> Iterator[Api]:
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")} | {
        "PERENNIAL_REDIS_URL": str(world.settings.redis_url),
        "PERENNIAL_DATABASE_URL": str(world.settings.database_url),
        "PERENNIAL_ADMIN_KEY": ADMIN_KEY,
        "PERENNIAL_PORT": str(port),
        "PERENNIAL_METRICS_PORT": "0",
    }
    running = Api(f"http://127.0.0.1:{port}", ADMIN_KEY, world.settings)
    running.process = subprocess.Popen([sys.executable, "-m", "service", "api"], cwd=ROOT, env=environment)

    def ready() -> bool:
        try:
            return running.client().get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(ready)
    yield running
    running.process.kill()
    running.process.wait()
    for client in running.clients.values():
        client.close()


@pytest.mark.more
def test_waiters_idlers_and_dawdlers_do_not_hold_it_up(api: Api):
    stream = api.stream()
    name = api.publish(stream, ONE_BY_ONE)
    statuses: set[int] = set()
    producer = threading.Thread(target=produce, args=(api.url, stream, statuses))
    with ExitStack() as stack:
        following, waiting, idle, dawdling = (
            [stack.enter_context(closing(Wire(api.url))) for _ in range(count)] for count in (WAITERS, WAITERS, 5, 2)
        )
        for each in following:
            each.send(f"GET /v1/publications/{name}/events HTTP/1.1", "Host: h", AUTHORIZED)
            assert each.socket.recv(12) == b"HTTP/1.1 200"
        for each in waiting:
            lines = (f"GET /v1/publications/{name}/releases/latest HTTP/1.1", "Host: h", AUTHORIZED, "Prefer: wait=60")
            each.send(*lines)
        for each in dawdling:
            each.post(stream, "Content-Length: 1000", body=b"{")
        producer.start()
        wait_until(lambda: 202 in statuses)
        api.process.send_signal(signal.SIGTERM)
        for each in following:
            assert each.all().endswith(b"\r\n0\r\n\r\n")  # the stream has an end, it was not cut
        for each in waiting:
            status, headers, _ = each.answer()
            assert (status, headers["preference-applied"]) == (404, "wait=60")
        assert all(each.all() == b"" for each in idle)
        api.process.wait(200)
    producer.join()
    assert statuses == {202}


def produce(url: str, stream: str, statuses: set[int]) -> None:
    """Until nobody answers."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {ADMIN_KEY}"}) as client:
        try:
            while True:
                statuses.add(client.post(f"/v1/streams/{stream}/records", json=VALID).status_code)
        except httpx.TransportError:
            return


@pytest.mark.more
def test_it_may_open_as_many_files_as_its_connections_need(api: Api):
    soft, hard = re.search(
        r"^Max open files +(\S+) +(\S+)", Path(f"/proc/{api.process.pid}/limits").read_text(), re.MULTILINE
    ).groups()
    wanted = api.settings.max_connections + OTHER_FILES
    assert soft == "unlimited" or int(soft) >= (wanted if hard == "unlimited" else min(wanted, int(hard)))


def test_who_would_follow_a_server_that_stops_is_sent_away(service: Service):
    name = service.publish(service.stream(), ONE_BY_ONE)
    server = serving(service.settings)
    with server as url, httpx.Client(base_url=url, headers={"Authorization": f"Bearer {ADMIN_KEY}"}) as client:
        server.app.state.services.stopping.set()
        answer = client.get(f"/v1/publications/{name}/events")
        refused(answer, 503, "stopping")
        assert answer.headers["retry-after"] == "1"
        assert client.get("/readyz").status_code == 503
