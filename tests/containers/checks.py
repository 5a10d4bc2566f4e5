"""Walk through what the README promises of docker compose, and end services by SIGKILL while batches come in.

checks.py ROOT ENGINE: the checkout with its .env, and the id of the process in whose namespaces the engine runs.
"""

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT, ENGINE = sys.argv[1:]
LINES = Path(ROOT, ".env").read_text().splitlines()
SETTINGS = dict(line.split("=", 1) for line in LINES if line and line[0] != "#")
SEVERAL = SETTINGS.get("COMPOSE_PROFILES") == "several"
SERVICES = ["api", "worker", "valkey", "postgres", *(["valkey-2", "valkey-3"] if SEVERAL else [])]
UP = ("up", "-d", "--pull", "never")
broken: list[str] = []
began = time.monotonic()


def check(promise: str, holds: object, details: object = "") -> None:
    if not holds:
        broken.append(promise)
    print(f"{time.monotonic() - began:6.1f} s  {'ok' if holds else 'FAILED'}  {promise} {details}", flush=True)


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether the condition becomes true in this time. With an API that is not reached it is false."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if condition():
                return True
        time.sleep(0.2)
    return False


def request(method: str, path: str, body: object = None, timeout: float = 70, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=timeout)
    own = {"Authorization": f"Bearer {SETTINGS['PERENNIAL_ADMIN_KEY']}", "Content-Type": "application/json"}
    others = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, None if body is None else json.dumps(body), own | others)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content) if content[:1] in (b"{", b"[") else None


def ready() -> bool:
    return request("GET", "/readyz", timeout=5)[0] == 200


def compose(*command: str, timeout: float = 180, **variables: str) -> tuple[int, str]:
    """Return the exit status and the output; 124: it did not end."""
    line = ["env", *(f"{name}={value}" for name, value in variables.items()), "docker", "compose", *command]
    try:
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"no end after {timeout} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def inside(service: str, *command: str) -> tuple[int, str]:
    return compose("exec", "-T", service, *command)


def docker(*command: str) -> str:
    return subprocess.run(["docker", *command], capture_output=True, text=True, check=True).stdout.strip()


def kill(service: str) -> None:
    """End the service's own process by SIGKILL; with `init: true` it is the child of the container's first."""
    process = docker("inspect", "-f", "{{.State.Pid}}", compose("ps", "-q", service)[1])
    child = f"/proc/{process}/task/{process}/children"
    victim = f"$(cat {child})" if service in ("api", "worker") else process
    subprocess.run(["nsenter", "-t", ENGINE, "-p", "-m", "bash", "-c", f"kill -9 {victim}"], check=True)


class Producer(threading.Thread):
    """Posts batches of 50 records, each again until it is acknowledged."""

    acknowledged = 0
    stopped = False

    def run(self) -> None:
        while not self.stopped:
            batch = {
                "x": [[(self.acknowledged + row) % 7 / 7, row % 5 / 5, row % 3 / 3, 0.1, -0.2] for row in range(50)],
                "y": [(self.acknowledged + row) % 2 for row in range(50)],
            }
            self.acknowledged += self.sends(batch, f"batch-{self.acknowledged}")
            time.sleep(0.03)

    def sends(self, batch: object, key: str) -> bool:
        return within(60, lambda: request("POST", "/v1/streams/s/records", batch, 15, Idempotency_Key=key)[0] == 202)

    def goes_on(self) -> bool:
        before = self.acknowledged
        return within(60, lambda: self.acknowledged > before + 1)


def check_containers() -> None:
    status, output = compose(*UP)
    check("docker compose up -d", status == 0, output[-600:] if status else "")
    check("ready", within(60, ready))

    def health() -> list[str]:
        return compose("ps", "--format", "{{.Service}} {{.Health}}")[1].splitlines()

    within(60, lambda: "starting" not in str(health()))
    check("healthy", "api healthy" in health() and "unhealthy" not in str(health()), health())
    for service in SERVICES:
        lines = inside(service, "cat", "/proc/1/status", "/proc/1/mounts")[1].splitlines()
        process = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        rights = (int(process["CapEff"], 16), int(process["CapBnd"], 16), process["NoNewPrivs"])
        (image,) = (line.split()[3] for line in lines if line.split()[1:2] == ["/"])
        good = process["Uid"].split()[0] != "0" and rights == (0, 0, "1") and image.startswith("ro")
        check(f"{service} is not root, has no rights, and cannot write to its image", good)
    check("the API cannot write segments", inside("api", "touch", "/var/lib/perennial/segments/file")[0] != 0)
    for folder in ("copies", "segments"):
        check(f"the worker can write {folder}", inside("worker", "touch", f"/var/lib/perennial/{folder}/file")[0] == 0)
        inside("worker", "rm", f"/var/lib/perennial/{folder}/file")
    outside = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))"
    check("the worker's network leads nowhere else", "unreachable" in inside("worker", "python", "-c", outside)[1])
    others = "SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = current_database() AND usename <> user"
    role = inside("postgres", "psql", "-U", "perennial", "-Atc", others)[1]
    check("the API and the worker have a role that owns nothing", role == "perennial_service", role)


def check_service(producer: Producer) -> None:
    task, budget = {"kind": "classification", "classes": 2}, {"epsilon": 4, "delta": 2e-6}
    status, _ = request("POST", "/v1/streams", {"name": "s", "features": 5, "task": task, "budget": budget})
    check("a stream", status == 201, status)
    mechanism, learner = {"kind": "online_leader", "batch": 500}, {"kind": "noisy_gradient_descent"}
    publication = {
        "name": "p",
        "stream": "s",
        "mechanism": mechanism,
        "learner": learner,
        "privacy": {"epsilon": 2, "delta": 1e-6},
    }
    status, _ = request("POST", "/v1/publications", publication)
    check("a publication", status == 201, status)
    producer.start()
    status, _ = request("GET", "/v1/publications/p/releases/latest", Prefer="wait=60")
    check("a first model", status == 200, status)
    status, _ = request("POST", "/v1/publications/p/predict", {"x": [[0.1, 0.2, 0.3, 0.4, 0.5]]})
    check("it predicts", status == 200, status)
    for service in SERVICES:
        kill(service)
        check(f"{service} comes back after kill -9", within(90, ready) and producer.goes_on())
    compose("restart", *SERVICES)
    check("docker compose restart", within(90, ready) and producer.goes_on())
    if SEVERAL:  # its object store would not keep anything
        check("docker compose up -d again", compose(*UP)[0] == 0 and producer.goes_on())
    else:
        check("docker compose down ends all", compose("down")[0] == 0 and docker("ps", "-aq") == "")
        check("docker compose up -d", compose(*UP)[0] == 0 and within(90, ready) and producer.goes_on())


def check_prometheus() -> None:
    compose("--profile", "monitoring", *UP, "prometheus")

    def targets() -> dict[str, str]:
        answer = inside("prometheus", "wget", "-qO-", "http://127.0.0.1:9090/api/v1/targets")[1]
        active = json.loads(answer)["data"]["activeTargets"] if answer.startswith("{") else []
        return {target["labels"]["job"]: target["health"] for target in active}

    expected = {"perennial-api": "up", "perennial-worker": "up"}
    check("Prometheus scrapes the API and the worker", within(60, lambda: targets() == expected), targets())
    compose("--profile", "monitoring", "stop", "prometheus")


def check_records(batches: int) -> None:
    def state() -> tuple[int, int]:
        held = request("GET", "/v1/streams/s")[1].get("records", 0)
        return held, request("GET", "/v1/publications/p/releases/latest")[1].get("version", 0)

    expected = (batches * 50, batches // 10)
    within(120, lambda: state() == expected)
    check(
        "every acknowledged record is there once, every model published",
        state() == expected,
        f"{state()} of {expected}",
    )
    status, output = inside("worker", "perennial", "ledger", "verify")
    check("perennial ledger verify", status == 0 and " 0 findings" in output, output)


def check_end() -> None:
    start = time.monotonic()
    compose("stop")
    seconds = time.monotonic() - start
    ended = compose("ps", "-a", "--format", "{{.Service}} {{.ExitCode}}")[1].splitlines()
    check(
        "docker compose stop ends all in order",
        seconds < 30 and all(line.split()[1] in ("0", "143") for line in ended),
        ended,
    )
    status, output = compose(*UP, POSTGRES_PASSWORD="wrong", timeout=120)
    check(
        "docker compose up -d ends where migrate can't succeed",
        status not in (0, 124) and "migrate" in output,
        output[-200:],
    )
    compose("--profile", "monitoring", "down", "-v")
    check("docker compose down leaves nothing", docker("ps", "-aq") == "" and docker("volume", "ls", "-q") == "")


records = Producer(daemon=True)
check_containers()
check_service(records)
if not SEVERAL:
    check_prometheus()
records.stopped = True
records.join()
check_records(records.acknowledged)
check_end()
sys.exit(f"failed: {broken}" if broken else 0)
