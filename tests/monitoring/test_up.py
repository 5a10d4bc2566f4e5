"""`perennial up` as a user runs it: one address tells everything, whatever part is down."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from service.settings import API_METRICS_PORT
from tests.conftest import World, ok, publication, wait_until
from tests.faults.up import ROOT, Up
from tests.monitoring.expositions import Samples, look, needs_prometheus, promtool
from tests.ports import free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """With one model published; it writes down what it imports."""
    running = Up(tmp_path_factory.mktemp("up") / "data")
    port = free_port()
    running.metrics = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPROFILEIMPORTTIME", "1")
        running.start(metrics_port=str(port))
    publish(running)
    wait_until(lambda: fits(look(running.metrics)) == 1)
    yield running
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(200) == 0


def publish(up: Up) -> None:
    budget = {"epsilon": 4, "delta": 0}
    with up.client() as client:
        task = {"kind": "classification", "classes": 2}
        ok(client.post("/v1/streams", json={"name": "s", "features": 2, "task": task, "budget": budget}), 201)
        request = publication("s", {"kind": "sliding_window", "block": 5, "blocks": 1}) | {"name": "p"}
        ok(client.post("/v1/publications", json=request), 201)
        ok(client.post("/v1/streams/s/records", json={"x": [[1, 0]] * 5, "y": [0, 1, 0, 1, 0]}), 202)
        wait_until(lambda: client.get("/v1/publications/p/releases/latest").status_code == 200)


def fits(samples: Samples) -> float | None:
    return samples.of("perennial_fit_duration_seconds_count", publication="p")


def needed(extra: str = "") -> set[str]:
    """Return the distributions that the service needs with one of its extras."""
    names, waiting = set(), [("perennial", extra)]
    while waiting:
        name, extra = waiting.pop()
        names.add(name)
        for each in map(Requirement, requires(name) or []):
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                another = canonicalize_name(each.name)
                waiting += [(another, one) for one in each.extras or {""} if another not in names]
    return names


@pytest.mark.more
def test_a_service_with_default_settings_imports_nothing_optional(up: Up):
    """To import one takes memory in each process. A library that is looked for and not there shows no part of it."""
    logs = "\n".join(path.read_text(errors="replace") for path in (up.output, *up.folder.rglob("*.log")))
    lines = [line.split("|") for line in logs.splitlines() if line.startswith("import time:")]
    parts = {line[2].strip() for line in lines if len(line) == 3}
    imported = {each.partition(".")[0] for each in parts if "." in each}
    assert {"numpy", "structlog", "uvicorn"} <= imported
    extras = set().union(*(needed(extra) for extra in ("demo", "objects", "dask", "deep"))) - needed("embedded")
    owned = {
        each
        for each, owners in packages_distributions().items()
        if extras & set(map(canonicalize_name, owners)) and not needed("embedded") & set(map(canonicalize_name, owners))
    }
    assert {"httpx", "obstore", "distributed", "jax", "matplotlib"} <= owned
    assert imported & (owned | {"rich", "sklearn", "scipy", "pandas", "pyarrow"}) == set()


def test_both_parts_are_told_at_one_address(up: Up):
    samples = wait_until(lambda: (seen := look(up.metrics)).of("perennial_worker_up") and seen)  # it answers in time
    assert samples.of("perennial_accepted_records_total", stream="s") == 5
    assert samples.of("perennial_release_version", publication="p") == 1
    assert fits(samples) == 1
    assert httpx.get(f"{up.metrics}/livez").status_code == 404
    assert httpx.get(f"{up.url}/livez").status_code == 200


def test_the_apis_port_tells_them_to_a_key_with_the_scope(up: Up):
    assert httpx.get(f"{up.url}/metrics").status_code == 401
    with up.client() as client:
        keys = {
            scope: ok(client.post("/v1/keys", json={"name": f"{scope}er", "scopes": [scope]}), 201)["key"]
            for scope in ("read", "metrics")
        }
    assert httpx.get(f"{up.url}/metrics", headers={"Authorization": f"Bearer {keys['read']}"}).status_code == 403
    wait_until(lambda: fits(look(up.url, keys["metrics"])) == 1)


@contextlib.contextmanager
def api(world: World, output: Path, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """`perennial api` in a process of its own, until it has ended."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")}
    shared = world.settings.model_dump(include={"redis_url", "database_url"}) | settings
    given |= {f"PERENNIAL_{name.upper()}": str(value) for name, value in shared.items()}
    with output.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "service", "api"], cwd=ROOT, env=given, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.more
def test_the_api_runs_without_the_default_port_and_ends_without_one_that_was_set(world: World, tmp_path: Path):
    """(tests/embedded/test_supervisor.py shows that `perennial up` ends with an API that ends so.)"""
    output = tmp_path / "output"
    with contextlib.ExitStack() as taken:
        with contextlib.suppress(OSError):  # by another service of this machine, which is as good
            taken.enter_context(socket.create_server(("127.0.0.1", API_METRICS_PORT)))
        port = str(free_port())
        with api(world, output, port=port) as process:
            wait_until(lambda: answers(process, port))
        assert "metrics_port_in_use" in output.read_text()
        with api(world, output, port=port, metrics_port=str(API_METRICS_PORT)) as process:
            assert process.wait(200) == 78
        assert "choose another PERENNIAL_METRICS_PORT" in output.read_text()


def answers(process: subprocess.Popen[bytes], port: str) -> bool:
    assert process.poll() is None
    try:
        return httpx.get(f"http://127.0.0.1:{port}/livez").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.more
@needs_prometheus
def test_prometheus_has_nothing_to_complain_of(up: Up):
    assert promtool("check", "metrics", given=look(up.metrics).text) == ""


@pytest.mark.more
def test_a_dead_worker_is_told_and_comes_back(up: Up):
    worker = up.children()["worker"]
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: look(up.metrics).of("perennial_worker_up") == 0)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: look(up.metrics).of("perennial_worker_up") == 1)
