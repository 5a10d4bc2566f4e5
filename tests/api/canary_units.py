"""Ids of units for `test_canary`: by every format, by the client and from files, right and wrong."""

import json
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import nanoarrow
import numpy as np
import pytest

import perennial
from tests.api.canaries import PERSON, SAID, Doors, X, Y
from tests.api.formats import ARROW, as_stream
from tests.api.leaks.sitecustomize import FAILS
from tests.conftest import HANG_SECONDS, wait_until

LOADED = 45  # records of people that the client sends at once


def as_arrow(x: list, ids: list) -> bytes:
    """Return a stream of records of these units."""
    y, whose = nanoarrow.c_array([Y] * len(ids), nanoarrow.float64()), nanoarrow.c_array(ids, nanoarrow.string())
    pairs = nanoarrow.fixed_size_list(nanoarrow.float64(), 2)
    items = nanoarrow.c_array(np.array(x, dtype=float).ravel(), nanoarrow.float64())
    columns = [nanoarrow.c_array_from_buffers(pairs, len(x), [None], children=[items]), y, whose]
    return as_stream({"x": pairs, "y": nanoarrow.float64(), "unit": nanoarrow.string()}, (len(ids), columns))


def of_people(doors: Doors, ids: list, x: list | None = None, **more) -> list[int | None]:
    """Return the status of a batch of these units in JSON, in NDJSON, and in Arrow if it can say this."""
    x = [X] * len(ids) if x is None else x
    columns = json.dumps({"x": x, "y": [Y] * len(ids), "unit": ids})
    lines = "".join(json.dumps({"x": row, "y": Y, "unit": each}) + "\n" for row, each in zip(x, ids, strict=True))
    path, rows = "/v1/streams/people/records", {"headers": {"Content-Type": "application/x-ndjson"}}
    statuses = [doors.ask("POST", path, content=columns, **more), doors.ask("POST", path, content=lines, **more | rows)]
    if all(None not in row for row in x) and all(isinstance(each, str) and each.isascii() for each in ids):
        of_arrow = {"headers": {"Content-Type": ARROW} | more.pop("headers", {})}
        statuses.append(doors.ask("POST", path, content=as_arrow(x, ids), **more | of_arrow))
    return statuses


def people(doors: Doors) -> None:
    """Ids come with records and in addresses, and stay there."""
    path = f"/v1/streams/people/units/{PERSON}"
    assert of_people(doors, [PERSON] * 6 + ["7"]) == [202, 202, 202]
    assert of_people(doors, [PERSON], headers={"Idempotency-Key": SAID["idempotency key"]})[0] == 202
    loaded(doors)
    wait_until(lambda: doors.client.get("/v1/streams/people").json()["records"] >= 22 + 2 * LOADED)
    assert [doors.ask(method, path) for method in ("GET", "DELETE", "DELETE")] == [200, 202, 202]
    for wrong in ([PERSON], {PERSON: 1}, PERSON * 20, PERSON + "\ud800"):
        assert set(of_people(doors, [PERSON, wrong])) == {422}
    assert of_people(doors, [PERSON], [[X[0], None]]) == [422, 422]
    assert of_people(doors, [PERSON], [[FAILS, X[1]]]) == [500, 500, 500]
    assert doors.ask("POST", "/v1/streams/plain/records", json={"x": [X], "y": [Y], "unit": [PERSON]}) == 422
    assert doors.ask("GET", path, doors.keys["read"]) == 403
    for wrong in (
        f"/v1/streams/plain/units/{PERSON}",
        f"{path}%ff",
        f"{path * 20}",
        f"/v1/streams/none/units/{PERSON}",
    ):
        assert doors.ask("DELETE", wrong) in (404, 422)


def loaded(doors: Doors) -> None:
    """The client sends ids from memory and from files, with journals; some are wrong, and one load is killed."""
    doors.folder.mkdir()
    columns = dict(zip("ab", np.repeat([X], LOADED, axis=0).T, strict=True)) | {"rain": [Y] * LOADED}
    key, ids = doors.up.folder / "admin.key", [PERSON] * (LOADED - 1) + ["7"]
    with perennial.connect(doors.up.url, key.read_text()) as client:
        stream, noted = client.stream("people"), {"key": "once", "journal": doors.folder / "journal.sqlite"}
        for unit, data in ((ids, columns), ("who", columns | {"who": ids})):
            assert stream.append(data, label="rain", unit=unit, batch=20, **noted).records == LOADED
        for wrong in (PERSON * 20, PERSON + "\ud800", [PERSON], None, 1.5):
            with pytest.raises(perennial.PerennialError) as refusal:
                stream.append(columns, label="rain", unit=[*ids[:-1], wrong], batch=LOADED)
            doors.answers.append("".join(traceback.format_exception(refusal.value)).encode())
    path, rows = doors.folder.with_name("days.csv"), [f"{X[0]},{X[1]},{Y},{each}" for each in ids]
    for name, lines, status in (
        ("days", rows, 0),
        ("days", rows, 0),
        ("long", [*rows, rows[0] + PERSON * 20], 1),
        ("more", [*rows, f"{rows[0]},{PERSON}"], 1),
        ("text", [*rows, f"{PERSON},{rows[0]}"], 1),
    ):
        path.write_text("\n".join(["a,b,rain,who", *lines]))
        command = loading(doors, path, "--name", name, "--batch", "20")
        done = subprocess.run(command, capture_output=True, check=False, timeout=HANG_SECONDS)
        assert done.returncode == status, done.stderr
        doors.answers.append(done.stdout + done.stderr)
    path.write_text("\n".join(["a,b,rain,who", *rows * 100]))
    started = len(list(doors.folder.iterdir()))
    killed = subprocess.Popen(loading(doors, path, "--name", "killed", "--batch", "1"))
    wait_until(lambda: len(list(doors.folder.iterdir())) > started or killed.poll() is not None)
    killed.kill()
    assert killed.wait(HANG_SECONDS) == -signal.SIGKILL


def loading(doors: Doors, path: Path, *more: str) -> list[str]:
    """Return the command that loads a file of people's records."""
    known = ["--url", doors.up.url, "--key-file", str(doors.up.folder / "admin.key"), "--state", str(doors.folder)]
    return [
        sys.executable,
        "-m",
        "perennial",
        "load",
        "people",
        str(path),
        "--label",
        "rain",
        "--unit",
        "who",
        *known,
        *more,
    ]
