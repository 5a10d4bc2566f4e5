"""`perennial up` as a user runs it: one address tells everything, whatever part is down."""

import contextlib
import os
import signal
import socket

import httpx
import pytest

from service.settings import API_METRICS_PORT
from tests.conftest import ok, publication, wait_until
from tests.faults.up import Up
from tests.monitoring.expositions import Samples, look, needs_prometheus, promtool

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """With one model published."""
    running = Up(tmp_path_factory.mktemp("up") / "data")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running.metrics = f"http://127.0.0.1:{port}"
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
        asked = publication("s", {"kind": "sliding_window", "block": 5, "blocks": 1}) | {"name": "p"}
        ok(client.post("/v1/publications", json=asked), 201)
        ok(client.post("/v1/streams/s/records", json={"x": [[1, 0]] * 5, "y": [0, 1, 0, 1, 0]}), 202)
        ok(client.get("/v1/publications/p/releases/latest", headers={"Prefer": "wait=20"}))


def fits(samples: Samples) -> float | None:
    return samples.of("perennial_fit_duration_seconds_count", publication="p")


def test_both_parts_are_told_at_one_address(up: Up):
    samples = look(up.metrics)
    assert samples.of("perennial_accepted_records_total", stream="s") == 5
    assert samples.of("perennial_release_version", publication="p") == 1
    assert samples.of("perennial_worker_up") == 1
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
    assert fits(look(up.url, keys["metrics"])) == 1


def test_it_runs_without_the_default_port_and_ends_without_one_that_was_set(tmp_path):
    up = Up(tmp_path / "data")
    with contextlib.ExitStack() as taken:
        with contextlib.suppress(OSError):  # by another service of this machine, which is as good
            taken.enter_context(socket.create_server(("127.0.0.1", API_METRICS_PORT)))
        up.start(metrics_port="")
        assert "metrics_port_in_use" in up.output.read_text()
        up.stop()
        up.begin(metrics_port=str(API_METRICS_PORT))
        assert up.process.wait(200) == 78
        assert "choose another PERENNIAL_METRICS_PORT" in up.output.read_text()


@needs_prometheus
def test_prometheus_has_nothing_to_complain_of(up: Up):
    assert promtool("check", "metrics", given=look(up.metrics).text) == ""


def test_a_dead_worker_is_told_and_comes_back(up: Up):
    worker = up.children()["worker"]
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: look(up.metrics).of("perennial_worker_up") == 0)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: look(up.metrics).of("perennial_worker_up") == 1)
