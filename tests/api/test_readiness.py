"""`/readyz` and `perennial_database_up`: whether records can be taken and models served, and if not, why."""

from collections.abc import Iterator

import httpx
import pytest
from redis import Redis

from service.embedded import Servers, embedded_servers
from tests.conftest import Service, make_world, ok, running, wait_until
from tests.store.test_connecting import read_only

RECORDS = {"x": [[0.1, 0.2]], "y": [0]}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with embedded_servers(tmp_path_factory.mktemp("own")) as servers:
        yield servers


@pytest.fixture(scope="module")
def service(own: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    world = make_world(own, tmp_path_factory.mktemp("service"), lease_seconds=1.0)
    with running(world.settings) as service:
        yield service


def ready(service: Service) -> httpx.Response:
    return service.client().get("/readyz")


def figure(service: Service, name: str) -> float:
    lines = service.client().get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_while_the_database_takes_no_writes_nothing_is_ready_and_then_all_goes_on(own: Servers, service: Service):
    stream = service.stream()
    with read_only(own, str(service.settings.database_url), cut=True):
        wait_until(lambda: ready(service).status_code == 503)
        assert "PostgreSQL takes no writes" in ready(service).json()["database"]
        wait_until(lambda: figure(service, "perennial_database_up") == 0)
        assert service.client().post("/v1/keys", json={"name": "meanwhile", "scopes": ["read"]}).status_code == 503
    wait_until(lambda: ready(service).status_code == 200)
    wait_until(lambda: figure(service, "perennial_database_up") == 1)
    for _ in range(30):  # whichever connection each takes
        service.stream()
    service.post(stream, RECORDS["x"], RECORDS["y"])  # the worker numbers it


def test_while_the_log_takes_no_writes_it_is_not_ready(own: Servers, service: Service):
    stream = service.stream()
    with Redis.from_url(own.redis_url) as log:
        log.config_set("maxmemory", "1mb")
        answer = ready(service)
        assert (answer.status_code, answer.json()["database"]) == (503, "ready")
        assert "memory is full" in answer.json()["log"]
        refusal = service.client().post(f"/v1/streams/{stream}/records", json=RECORDS)
        assert refusal.status_code == 503
        assert "memory is full" in refusal.json()["detail"]
        wait_until(lambda: figure(service, "perennial_log_up") == 0)
        log.config_set("maxmemory", "0")
    assert ok(ready(service))["log"] == "ready"
    service.post(stream, RECORDS["x"], RECORDS["y"])
