"""Recognisable records, texts and keys go in by every door, wanted or not, and while things fail and die.

Then they are looked for in everything that the service wrote or said, but in the two places that are for them: the log
of accepted batches and the segments.
"""

import itertools
import json
import os
import re
import signal
import time
from pathlib import Path

import psycopg
import pytest

from tests.api.canaries import CANARIES, CATEGORY, CELLS, COUNTED, HASHING, SAID, TEXT, WEIGHT, Doors, X, Y, found_in
from tests.api.canary_units import people
from tests.api.formats import WRITERS
from tests.api.leaks.sitecustomize import FAILS
from tests.conftest import publication, wait_until
from tests.faults.up import Up

IN_ITS_PLACE = ("valkey", "segments")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Doors:
    """Everything was tried, and everything is stopped."""
    folder = tmp_path_factory.mktemp("canary")
    up = Up(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "leaks"), prepend=os.pathsep)
        up.start(log_level="debug", max_batch_records="50", max_body_bytes="65536", max_backlog_batches="40")
    try:
        with up.client() as client:
            doors = Doors(up, client)
            try_everything(doors)
    finally:
        up.stop()
    return doors


def try_everything(doors: Doors) -> None:
    doors.limits = [Path(f"/proc/{pid}/limits").read_text() for pid in doors.up.children().values()]
    doors.limits.append(Path(f"/proc/{doors.up.process.pid}/limits").read_text())
    window = {"kind": "sliding_window", "block": 2, "blocks": 1}
    regression = {"kind": "regression", "bound": 2.0}
    for name, features in (("plain", 2), ("jammed", 3), ("unfit", 4)):
        doors.stream(name, regression, features=features)
        doors.make("publications", publication(name, window) | {"name": name})
    doors.stream("people", regression, features=2, unit={"max_records": 4})
    doors.stream("categories", {"kind": "categorical", "cardinality": 2**30})
    doors.stream("texts", {"kind": "unlabelled"}, features=1, feature_map=HASHING)
    doors.stream("full", regression, features=3)
    active = {"kind": "active_learning", "batching": "fixed_window", "size": 4, "threshold": 9.0}
    learner = {"kind": "noisy_gradient_descent"}
    for name, features in (("labelled", 2), ("unseen", 5)):
        doors.stream(name, {"kind": "unlabelled"}, features=features)
        body = publication(name, active, epsilon=10, learner=learner)
        doors.make("publications", body | {"name": name})
    for name, cells in (("counted", CELLS), ("weighed", 3), ("uncounted", 20)):
        doors.stream(name, {"kind": "categorical", "cardinality": cells}, budget={"epsilon": 1000, "delta": 0})
        queries = {"kind": "linear_queries", "first": 4, "hits": 5, "accuracy": 0.5}
        body = {"name": name, "stream": name, "mechanism": queries, "privacy": {"epsilon": 1000, "delta": 0}}
        doors.make("publications", body)
    doors.keys = {
        scope: doors.make("keys", {"name": scope, "scopes": [scope]})["key"] for scope in ("ingest", "read", "label")
    }
    doors.keys["admin"] = (doors.up.folder / "admin.key").read_text().strip()
    wanted(doors)
    refused(doors)
    failing(doors)
    dying(doors)
    doors.answers.append(doors.client.get("/metrics").content)
    doors.rows = rows(doors.up.folder / "run")


def rows(sockets: Path) -> dict[str, bytes]:
    """Return all rows of every table, as text; in its files some may be packed."""
    with psycopg.connect(host=str(sockets), user="perennial", dbname="perennial") as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return {
            name: "\n".join(row[0] for row in connection.execute(f"SELECT each::text FROM {name} AS each")).encode()
            for (name,) in tables
        }


def wanted(doors: Doors) -> None:
    for form, coding in itertools.product(WRITERS, ("", "gzip", "zstd")):
        assert doors.post("plain", [X, X], [Y, Y], form, coding, key=doors.keys["ingest"]) == 202
        assert doors.post("categories", None, [CATEGORY, CATEGORY], form, coding) == 202
    again = {"headers": {"Idempotency-Key": SAID["idempotency key"]}}
    assert [doors.post("plain", [X], [Y], **again) for _ in range(2)] == [202, 202]
    assert doors.post("plain", [X, X], [Y, Y], **again) == 422
    for form in ("json", "ndjson"):
        assert doors.post("texts", [[TEXT], [TEXT]], None, form) == 202
    wait_until(lambda: doors.client.get("/v1/publications/plain").json()["latest"])
    assert doors.ask("POST", "/v1/publications/plain/predict", json={"x": [X, X]}) == 200
    labelled(doors)
    queried(doors)
    people(doors)


def labelled(doors: Doors) -> None:
    """People see records, and nobody else: neither who reads the log, nor who is refused."""
    path = "/v1/publications/labelled"
    labeller = {"Authorization": f"Bearer {doors.keys['label']}", "Prefer": "wait=60"}
    assert doors.post("labelled", [X] * 4, None) == 202
    waiting = 2
    while waiting > 1:
        shown = doors.client.get(f"{path}/label-requests", headers=labeller).json()
        assert shown["x"] == X
        record, waiting = shown["record"], shown["waiting"]
        given = {"record": record, "label": 1}
        assert doors.ask("POST", f"{path}/labels", doors.keys["label"], json=given) == 200
    wait_until(lambda: doors.client.get(path).json()["latest"])
    for wrong in (Y, TEXT, CATEGORY, [Y], {TEXT: Y}, None):
        assert doors.ask("POST", f"{path}/labels", doors.keys["label"], json={"record": record, "label": wrong}) == 422
        assert doors.ask("POST", f"{path}/labels", doors.keys["label"], json={"record": wrong, "label": 1}) in (
            409,
            422,
        )
    assert doors.ask("POST", f"{path}/labels", doors.keys["label"], json={"record": record, "label": 1, "x": X}) == 422
    assert doors.ask("POST", f"{path}/labels", doors.keys["label"], json={"record": record, "label": 1}) == 409
    assert doors.ask("POST", f"{path}/labels", doors.keys["read"], json={"record": CATEGORY, "label": Y}) == 403


def queried(doors: Doors) -> None:
    """A query is what a client says, and its answer what records say: each is told to who asked alone."""
    assert doors.post("counted", None, [COUNTED] * 50) == doors.post("weighed", None, [1] * 50) == 202
    for name, hard in (("counted", {"categories": [COUNTED]}), ("weighed", {"weights": [0, 1, WEIGHT]})):
        path = f"/v1/publications/{name}"
        wait_until(lambda path=path: doors.client.post(f"{path}/queries", json={"categories": []}).json()["time"] == 50)
        assert doors.ask("POST", f"{path}/queries", doors.keys["read"], json=[hard] * 2) == 200
        assert doors.client.get(path).json()["latest"], "it was no hard query"
    for wrong in ([WEIGHT], [WEIGHT] * 4, [0, 1, CATEGORY], [0, 1, TEXT], TEXT, {TEXT: WEIGHT}, None):
        for kind in ("weights", "categories", TEXT):
            assert doors.ask("POST", "/v1/publications/weighed/queries", json={kind: wrong}) == 422
    assert doors.ask("POST", "/v1/publications/plain/queries", json={"weights": [WEIGHT]}) == 409


def refused(doors: Doors) -> None:
    """Each with a status from 400 to 499; most are told row by row."""
    before = len(doors.statuses)
    for form, coding in itertools.product(WRITERS, ("", "gzip", "zstd")):
        doors.post("plain", [X, [X[0], float("nan")]], [Y, Y], form, coding)
    for form, coding in zip(WRITERS, itertools.cycle(("", "gzip", "zstd"))):
        doors.post("plain", [[*X, X[1]]], [Y], form, coding)
        doors.post("plain", [X, [X[0], None]], [Y, None], form, coding)
        doors.post("plain", [X] * 51, [Y] * 51, form, coding)
        doors.post("plain", [X] * 5000, [Y] * 5000, form, coding)
        doors.post("categories", None, [CATEGORY, 2**30 + CATEGORY], form, coding)
        doors.post("plain", [X], [Y], form, coding, headers={"Content-Type": "text/csv"})
        doors.post("plain", [X], [Y], form, headers={"Content-Encoding": "gzip"})
        doors.post("plain", [X], [Y], form, coding, key=SAID["guessed key"])
        doors.post("plain", [X], [Y], form, coding, key=doors.keys["read"])
        doors.post("no-such", [X], [Y], form, coding)
        doors.post(SAID["path"], [X], [Y], form, coding)
        doors.post("plain", [X], [Y], form, coding, headers={"Idempotency-Key": SAID["idempotency key"] * 20})
    for form in ("json", "ndjson"):
        doors.post("plain", [[X[0], TEXT]], [Y], form)
        doors.post("plain", [X], [TEXT], form)
        doors.post("texts", [[TEXT, TEXT]], None, form)
        doors.post("texts", [[Y]], None, form)
        doors.post("texts", [[TEXT * 100_000]], None, form)
        whole = WRITERS[form][1]([X, X], [Y, Y])
        for end in (1, 10, len(whole) // 2, len(whole) - 2):
            doors.ask("POST", "/v1/streams/plain/records", content=whole[:end].rstrip(b"\n") + b'"' + TEXT.encode())
    for x in ([[TEXT, Y]], [[*X, Y]], [[X[0], 1e308]], TEXT, [[{TEXT: Y}]]):
        doors.ask("POST", "/v1/publications/plain/predict", json={"x": x})
    configuration = {"name": SAID["setting"], "features": Y, "task": {"kind": TEXT}, "budget": X, TEXT: CATEGORY}
    for path in ("streams", "publications", "plan", "keys"):
        doors.ask("POST", f"/v1/{path}", json=configuration)
        doors.ask("POST", f"/v1/{path}", json=configuration, key=SAID["guessed key"])
        doors.ask("POST", f"/v1/{path}", content=json.dumps(configuration)[:-1])
        doors.ask("GET", f"/v1/{path}?limit={SAID['query']}&{SAID['query']}={Y}")
        doors.ask("DELETE", f"/v1/{path}/{SAID['path']}")
    doors.ask("DELETE", f"/v1/streams/plain/records?start={SAID['query']}&end={TEXT}")
    doors.ask("GET", f"/v1/publications/plain/releases/{SAID['path']}")
    doors.ask("GET", f"/v1/streams/plain/entries/{SAID['path']}")
    doors.ask("GET", f"/{SAID['path']}?{SAID['query']}")
    assert {status // 100 for status in doors.statuses[before:]} == {4}


def failing(doors: Doors) -> None:
    for form in WRITERS:
        assert doors.post("plain", [[FAILS, X[1]], X], [Y, Y], form) == 500
    assert doors.post("jammed", [[FAILS, *X]] * 2, [Y, Y]) == 202
    assert doors.post("unfit", [[FAILS, *X, Y]] * 2, [Y, Y]) == 202
    assert doors.post("unseen", [[FAILS, *X, *X]] * 2, None) == 202
    wait = {"Prefer": "wait=60"}
    assert doors.ask("GET", "/v1/publications/unseen/label-requests", doors.keys["label"], headers=wait) == 500
    assert doors.post("uncounted", None, [int(FAILS)] * 20) == 202
    path, easy = "/v1/publications/uncounted/queries", {"weights": [WEIGHT] * 20}
    wait_until(lambda: doors.ask("POST", path, json=easy) == 500)
    read = doors.up.output.read_text
    wait_until(lambda: all(event in read() for event in ("unexpected_error", "sealing_failed", "publishing_failed")))
    statuses = {doors.post("jammed", [[FAILS, *X]], [Y]) for _ in range(45)}
    assert statuses == {202, 429}


def dying(doors: Doors) -> None:
    for name in ("postgres", "valkey"):
        doors.post("plain", [X], [Y])
        os.kill(doors.up.children()[name], signal.SIGKILL)
        for _ in range(20):
            doors.post("plain", [X], [Y], key=doors.keys["ingest"])
            time.sleep(0.01)
        doors.up.await_ready()


def test_records_and_what_clients_say_are_nowhere_but_in_their_places(doors: Doors):
    leaks, places = {}, {}
    for path in (each for each in doors.up.folder.rglob("*") if each.is_file()):
        where = path.relative_to(doors.up.folder).parts
        if names := found_in(path.read_bytes(), CANARIES):
            (places if where[0] in IN_ITS_PLACE else leaks)["/".join(where)] = names
    assert not leaks
    in_places = {what for names in places.values() for what in names}
    assert in_places == {"x", "y", "category", "counted"}, "it looks for what can't be found"


def test_rows_of_the_database_hold_nothing_of_it(doors: Doors):
    keys = {scope: [key.encode()] for scope, key in doors.keys.items()}
    hexed = {what: [form.hex().encode() for form in forms] for what, forms in CANARIES.items()}
    assert len(doors.rows) > 10
    assert doors.rows["releases"]
    for name, content in doors.rows.items():
        assert not found_in(content, CANARIES | keys), name
        assert not found_in(content, hexed), name


def test_logs_answers_and_metrics_repeat_nothing(doors: Doors):
    assert not found_in(doors.up.output.read_bytes(), CANARIES)
    assert len(doors.answers) > 100
    assert not [canaries for answer in doors.answers if (canaries := found_in(answer, CANARIES))]


def test_journals_of_clients_hold_no_record_and_nobodys_id(doors: Doors):
    paths = [path for path in doors.folder.rglob("*") if path.is_file()]
    assert len(paths) >= 5
    assert not [path.name for path in paths if found_in(path.read_bytes(), CANARIES)]


def test_keys_are_nowhere_but_in_the_file_of_the_first(doors: Doors):
    keys = {scope: [key.encode()] for scope, key in doors.keys.items()}
    files = [doors.up.output, *(path for path in doors.up.folder.rglob("*") if path.is_file())]
    assert {path.name: what for path in files if (what := found_in(path.read_bytes(), keys))} == {
        "admin.key": ["admin"]
    }
    assert not [what for answer in doors.answers if (what := found_in(answer, keys))]


def test_every_line_of_the_log_is_one_object_and_those_of_requests_name_them(doors: Doors):
    lines = doors.up.output.read_text().splitlines()
    words = re.compile(r"Perennial is ready|Its data is in|The admin key is in|Ctrl-C stops it|perennial: ")
    events = [json.loads(line) for line in lines if not words.match(line)]
    errors = [each for each in events if each["event"] == "unexpected_error"]
    assert len(errors) == len(WRITERS) + 5
    assert all(each["error"] == "RuntimeError" and "sitecustomize.py:" in each["at"] for each in errors)
    assert len({each["request"] for each in errors}) == len(errors)
    made = [each for each in events if each["event"] == "admin_action" and each["status"] == 201]
    assert [each["made"].rpartition("/")[0] for each in made].count("/v1/streams") == 12
    assert all({"key", "action", "request", "timestamp", "level"} <= each.keys() for each in made)
    released = [each for each in events if each["event"] == "released"]
    assert all({"publication", "version"} <= each.keys() for each in released)
    assert released


def test_no_process_may_leave_its_memory_in_a_file(doors: Doors):
    limits = [re.search(r"^Max core file size +(\S+) +(\S+)", text, re.MULTILINE) for text in doors.limits]
    assert {match.groups() for match in limits if match} <= {("1", "1"), ("0", "0")}
    assert len(limits) >= 5
