"""Trying mechanisms out over HTTP: in the background, for one's own key only, and never on a stream."""

import contextlib
import csv
import io
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from service.api.routes import explorer as routes
from service.explorer.datasets import Dataset, read_csv
from service.explorer.scores import SCORES
from service.store import explorations, keys
from service.store.database import Database
from service.worker import explorer
from service.worker.leases import LeaseKeeper
from service.worker.main import work
from tests.api.test_records import refused
from tests.conftest import ADMIN_KEY, HANG_SECONDS, Service, blocked, make_world, ok, serving, unique, wait_until

PATH = "/v1/explorer"
WINDOWS = {
    "name": "windows",
    "mechanism": {"kind": "sliding_window", "block": 20, "blocks": 3},
    "learner": {"kind": "output_perturbation"},
}

MANY = {"runs": 10, "epsilons": [1, 2, 3, 4, 5, 6, 7]}
"""They take so long that none ends by itself."""


def table(rows: int = 500) -> bytes:
    random = np.random.default_rng(1)
    x = random.normal(size=(rows, 2))
    return "".join(f"{a},{b},{'up' if a > b else 'down'}\n" for a, b in x).encode()


def upload(client, content: bytes = b"", **query) -> dict:
    headers = {"Content-Type": "text/csv"}
    return ok(client.post(f"{PATH}/datasets", content=content or table(), headers=headers, params=query), 201)


def comparison(data_set, **more) -> dict:
    return {"dataset": data_set, "lines": [WINDOWS], "epsilons": [1]} | more


def ended(client, identity: int) -> dict:
    state = wait_until(
        lambda: (
            (latest := ok(client.get(f"{PATH}/explorations/{identity}")))["state"] not in ("waiting", "running")
            and latest
        )
    )
    assert state["ended_at"] is not None
    return state


def children() -> list[int]:
    """Processes of comparisons that this one started."""
    listing = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = (line.split(None, 2) for line in listing.splitlines()[1:])
    return [int(pid) for pid, parent, args in rows if int(parent) == os.getpid() and "service.explorer" in args]


def promised(service: Service) -> dict[str, list[str]]:
    """Return the publications of each stream: of other tests' streams all else may change meanwhile."""
    items = ok(service.client().get("/v1/streams?limit=1000"))["items"]
    return {each["name"]: each["publications"] for each in items}


@pytest.mark.more
def test_somebody_uploads_a_table_compares_and_takes_the_numbers_away(service: Service):
    client = service.client(service.key("read"))
    stream = service.stream()
    before, of_one = promised(service), ok(service.client().get(f"/v1/streams/{stream}"))
    data = upload(client, name="up or down")
    assert {name: data[name] for name in ("name", "records", "features", "classes")} == {
        "name": "up or down",
        "records": 500,
        "features": 2,
        "classes": 2,
    }
    made = client.post(f"{PATH}/explorations", json=comparison(data["id"], epsilons=[1, 100], runs=2))
    identity = ok(made, 202)["id"]
    assert made.headers["Location"] == f"{PATH}/explorations/{identity}"
    assert (made.json()["cells"], made.json()["progress"]) == (5, 0)
    result = ended(client, identity)
    assert (result["state"], result["reason"], result["done"], result["progress"]) == ("done", None, 5, 1)
    assert "not private" in result["note"]
    assert sorted((each["epsilon"] or 0, each["run"]) for each in result["found"]) == [
        (0, 0), (1, 0), (1, 1), (100, 0), (100, 1)
    ]  # fmt: skip
    clean = next(each for each in result["found"] if each["epsilon"] is None)
    assert clean["scores"]["accuracy"] > 0.95
    assert set(clean["scores"]) == set(SCORES)
    download = client.get(f"{PATH}/explorations/{identity}/table")
    rows = list(csv.DictReader(io.StringIO(download.text)))
    assert "attachment" in download.headers["Content-Disposition"]
    assert len(rows) == sum(len(each["curve"]) for each in result["found"])
    assert {row["line"] for row in rows} == {"windows"}
    last = [row for row in rows if row["epsilon"] == "without noise"][-1]
    assert {name: float(last[name]) for name in SCORES} == clean["scores"]
    assert [each["id"] for each in ok(client.get(f"{PATH}/explorations"))["items"]] == [identity]
    assert promised(service) == before, "no stream is touched"
    assert ok(service.client().get(f"/v1/streams/{stream}")) == of_one


def test_a_key_sees_and_uses_its_own_only(service: Service):
    mine, other = (service.client(service.key("read")) for _ in range(2))
    data = upload(mine)["id"]
    identity = ok(mine.post(f"{PATH}/explorations", json=comparison(data)), 202)["id"]
    refused(other.post(f"{PATH}/explorations", json=comparison(data)), 404, "not-found")
    for method, path in (
        ("DELETE", f"datasets/{data}"),
        ("GET", f"explorations/{identity}"),
        ("GET", f"explorations/{identity}/table"),
        ("DELETE", f"explorations/{identity}"),
        ("GET", f"explorations/{2**62}"),
        ("DELETE", f"datasets/{2**62}"),
    ):
        refused(other.request(method, f"{PATH}/{path}"), 404, "not-found")
    assert ok(other.get(f"{PATH}/datasets"))["items"] == ok(other.get(f"{PATH}/explorations"))["items"] == []
    assert {each["name"] for each in ok(other.get(f"{PATH}/datasets"))["samples"]} == {"weather", "fashion"}
    assert ended(mine, identity)["state"] == "done"
    assert mine.delete(f"{PATH}/datasets/{data}").status_code == 204
    refused(mine.delete(f"{PATH}/datasets/{data}"), 404, "not-found")
    assert ok(mine.get(f"{PATH}/explorations/{identity}"))["found"] != []


@pytest.mark.more
def test_what_is_cancelled_stops_and_what_waits_comes_next(service: Service):
    client = service.client(service.key("read"))
    long = ok(client.post(f"{PATH}/explorations", json=comparison("weather", **MANY)), 202)
    next_one = ok(client.post(f"{PATH}/explorations", json=comparison(upload(client)["id"])), 202)
    running = wait_until(lambda: (state := ok(client.get(f"{PATH}/explorations/{long['id']}")))["progress"] and state)
    assert running["state"] == "running"
    assert ok(client.delete(f"{PATH}/explorations/{long['id']}"))["state"] == "cancelled"
    assert ended(client, next_one["id"])["state"] == "done"
    assert ok(client.get(f"{PATH}/explorations/{long['id']}"))["progress"] < 1
    assert ok(client.delete(f"{PATH}/explorations/{next_one['id']}"))["state"] == "done", "it has ended already"
    wait_until(lambda: not children())


@pytest.mark.more
def test_a_process_that_is_killed_is_told_and_nothing_else_suffers(service: Service):
    client = service.client(service.key("read"))
    data = upload(client, table(4000))["id"]
    made = ok(client.post(f"{PATH}/explorations", json=comparison(data, **MANY)), 202)
    wait_until(lambda: ok(client.get(f"{PATH}/explorations/{made['id']}"))["done"])
    for child in children():
        os.kill(child, signal.SIGKILL)
    result = ended(client, made["id"])
    assert (result["state"], "memory" in result["reason"]) == ("failed", True)
    assert result["found"] != []


@pytest.mark.more
def test_when_a_worker_ends_the_next_one_goes_on_where_it_was(servers, tmp_path, monkeypatch):
    """The findings stay, and every run has one."""
    real = explorer._lines
    settings = make_world(servers, tmp_path, lease_seconds=1.0).settings
    path = f"{PATH}/explorations"

    @contextlib.contextmanager
    def working() -> Iterator[threading.Event]:
        stop = threading.Event()
        worker = threading.Thread(target=work, args=(settings, stop))
        worker.start()
        try:
            yield stop
        finally:
            stop.set()
            worker.join()

    with serving(settings) as url, contextlib.closing(Service(url, ADMIN_KEY, settings).client()) as client:
        data = upload(client, table(4000))["id"]  # its process is in the middle of something when its worker ends
        made = ok(client.post(path, json=comparison(data, runs=2)), 202)["id"]
        with working() as stop, monkeypatch.context() as patched:

            def lines(process):
                """Until the worker ends, no more than what the first run finds."""
                for line in real(process):
                    yield line
                    if b'"found"' in line:
                        stop.wait()

            patched.setattr(explorer, "_lines", lines)
            wait_until(lambda: ok(client.get(f"{path}/{made}"))["done"])
        assert children() == []
        before = ok(client.get(f"{path}/{made}"))
        assert before["state"] == "running"
        assert (before["done"], before["cells"]) == (1, 3)
        with working():
            after = ended(client, made)
        assert (after["state"], after["done"]) == ("done", 3)
        assert after["found"][:1] == before["found"]


def test_a_worker_that_lost_its_lease_does_not_say_how_a_comparison_ended(servers, tmp_path, monkeypatch):
    """Another has it by then: this one may have slept for longer than a comparison may take."""
    settings = make_world(servers, tmp_path).settings
    database = Database(str(settings.database_url))
    keeper = LeaseKeeper(database, seconds=600.0)
    working, stop = explorer.Explorer(database, keeper), threading.Event()
    with serving(settings) as url, contextlib.closing(Service(url, ADMIN_KEY, settings).client()) as client:
        made = ok(client.post(f"{PATH}/explorations", json=comparison(upload(client)["id"])), 202)["id"]
        with monkeypatch.context() as patched:
            patched.setattr(explorer, "_lines", lambda _: iter(()))
            patched.setattr(keeper, "holds", lambda _: False)
            assert working.step(stop)
        assert ok(client.get(f"{PATH}/explorations/{made}"))["state"] == "running"
        assert working.step(stop)
        assert ended(client, made)["state"] == "done"
    database.close()


def test_a_data_set_that_is_gone_is_told(service: Service):
    client = service.client(service.key("read"))
    busy = ok(client.post(f"{PATH}/explorations", json=comparison("weather", **MANY)), 202)["id"]
    data = upload(client)["id"]
    made = ok(client.post(f"{PATH}/explorations", json=comparison(data)), 202)["id"]
    assert client.delete(f"{PATH}/datasets/{data}").status_code == 204
    ok(client.delete(f"{PATH}/explorations/{busy}"))
    assert (result := ended(client, made))["state"] == "failed"
    assert "deleted" in result["reason"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dataset": "no such"}, "dataset"),
        ({"epsilons": []}, "epsilons"),
        ({"lines": []}, "lines"),
        ({"lines": [WINDOWS | {"learner": {"kind": "noisy_gradient_descent"}}]}, "lines.0.learner.kind"),
        ({"feature_map": {"kind": "hog", "width": 9, "height": 9}}, "feature_map"),
        ({"lines": [WINDOWS, WINDOWS | {"learner": {"kind": "noisy_gradient_descent"}}]}, "lines.1.learner.kind"),
        ({"runs": 11}, "runs"),
        ({"more": 1}, "more"),
    ],
)
def test_what_cannot_run_is_refused_by_its_field(service: Service, change, field):
    problem = refused(
        service.client().post(f"{PATH}/explorations", json=comparison("weather", **change)), 422, "invalid-request"
    )
    assert problem["errors"][0]["field"].startswith(field)


def test_a_body_that_is_no_data_set_is_refused_and_not_repeated(service: Service):
    client, secret = service.client(), "4711.0815"
    for kind, content, status, slug in (
        ("text/csv", f"a,b\n{secret}x,1\n".encode() * 20, 422, "invalid-data-set"),
        ("application/x-npz", secret.encode(), 422, "invalid-data-set"),
        ("application/json", b"{}", 415, "unsupported-media-type"),
        ("text/csv", b"1,2\n" * 2**19, 413, "too-large"),
    ):
        answer = client.post(f"{PATH}/datasets", content=content, headers={"Content-Type": kind})
        refused(answer, status, slug)
        assert secret not in answer.text


def test_a_key_keeps_so_many_data_sets_and_no_more(service: Service):
    client = service.client(service.key("read"))
    for _ in range(20):
        upload(client, table(10))
    answer = client.post(f"{PATH}/datasets", content=table(10), headers={"Content-Type": "text/csv"})
    refused(answer, 409, "too-many-kept")


def test_a_table_has_the_settings_of_each_line_and_scores_in_the_last_row_of_each_run(service: Service, monkeypatch):
    lines = [{"name": "windows", "delta": 0}, {"name": "online", "delta": 1e-6}]
    scores = dict.fromkeys(SCORES, 0.25)
    curve = [(20, 0.5), (40, 0.75)]
    findings = [
        routes.Found(line=line, epsilon=epsilon, run=0, curve=curve, scores=scores)
        for line, epsilon in ((0, None), (1, 2.0))
    ]
    made = SimpleNamespace(id=7, comparison={"lines": lines})
    monkeypatch.setattr(routes, "_findings", lambda *_: (made, findings))
    rows = list(csv.DictReader(io.StringIO(service.client().get(f"{PATH}/explorations/7/table").text)))
    columns = ("line", "epsilon", "delta", "records", "accuracy", "recall")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("windows", "without noise", "", "20", "0.5", ""),
        ("windows", "without noise", "", "40", "0.25", "0.25"),
        ("online", "2.0", "1e-06", "20", "0.5", ""),
        ("online", "2.0", "1e-06", "40", "0.25", "0.25"),
    ]


def test_the_column_of_classes_is_the_one_that_is_named(service: Service):
    client = service.client(service.key("read"))
    content = "".join(f"{row % 3},{row},{row % 2}\n" for row in range(12)).encode()
    assert [upload(client, content, **query)["classes"] for query in ({}, {"label": "1"})] == [2, 3]


def test_the_run_under_way_counts_as_far_as_it_is():
    shown = dict.fromkeys(("id", "comparison", "reason", "created_at", "ended_at"))
    shown |= {"id": 1, "comparison": {}, "cells": 4, "done": 1, "created_at": datetime.now(UTC)}
    parts = [routes._info(SimpleNamespace(**shown, state=state, progress=0.5)) for state in ("running", "cancelled")]
    assert [each.progress for each in parts] == [0.375, 0.25]


def test_only_so_many_comparisons_wait(servers, tmp_path, monkeypatch):
    monkeypatch.setattr(routes, "MOST_UNDER_WAY", 1)
    settings = make_world(servers, tmp_path).settings
    with serving(settings) as url, contextlib.closing(Service(url, ADMIN_KEY, settings).client()) as client:
        ok(client.post(f"{PATH}/explorations", json=comparison("weather")), 202)
        refused(client.post(f"{PATH}/explorations", json=comparison("weather")), 409, "too-many-kept")


def test_without_an_explorer_nothing_is_taken(servers, tmp_path):
    settings = make_world(servers, tmp_path, explorations=0).settings
    with serving(settings) as url, contextlib.closing(Service(url, ADMIN_KEY, settings).client()) as client:
        refused(client.post(f"{PATH}/explorations", json=comparison("weather")), 404, "not-found")


def test_data_sets_are_read_one_after_the_other(service: Service, monkeypatch):
    """A small file may become hundreds of megabytes."""
    reading, go_on = [], threading.Event()

    def read(content: bytes) -> Dataset:
        reading.append(1)
        assert go_on.wait(HANG_SECONDS)
        return read_csv(content)

    monkeypatch.setitem(routes._READERS, "text/csv", read)
    headers = {"Authorization": f"Bearer {service.key('read')}", "Content-Type": "text/csv"}
    run = serving(service.settings)
    with run as url, ThreadPoolExecutor(2) as pool:
        turn = run.app.state.services.data_sets
        post = partial(httpx.post, f"{url}{PATH}/datasets", timeout=HANG_SECONDS)
        answers = [pool.submit(post, content=table(), headers=headers) for _ in range(2)]
        wait_until(lambda: len(reading) > 1 or (reading and turn._waiters))
        at_once = len(reading)
        go_on.set()
        assert [each.result().status_code for each in answers] == [201, 201]
    assert at_once == 1


def test_of_two_at_the_same_moment_a_key_keeps_as_many_as_it_may(service: Service, monkeypatch):
    monkeypatch.setattr(explorations, "MAX_DATASETS", 1)
    database = Database(service.settings.database_url)
    shape = {"records": 10, "features": 1, "classes": 2}
    with database.transaction() as connection:
        key, _ = keys.make(connection, name=unique("key"), scopes=["read"], streams=None)

    def add() -> None:
        with database.transaction() as connection:
            explorations.add_dataset(connection, key.id, "a", shape, b"")

    with contextlib.closing(database), ThreadPoolExecutor(1) as pool:
        with database.transaction() as connection:
            explorations.add_dataset(connection, key.id, "a", shape, b"")
            other = pool.submit(add)
            wait_until(lambda: other.done() or blocked(database))
        with pytest.raises(explorations.TooMany):
            other.result()
