"""The tutorial's five minutes, as printed, by a new user: `perennial up` on an empty folder, then each block in bash.

Nothing is changed but the port. The output is split block by block, and each test looks at one thing.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, blocks, page
from tests.ports import free_port

BETWEEN = "===== next block ====="
READY_SECONDS = 200.0
STOP_SECONDS = 200.0

pytestmark = [
    pytest.mark.more,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, ("bash", "curl"))), reason="the walk is written for bash and curl; one is missing"
    ),
]


@dataclass(frozen=True)
class Walk:
    """The output that the reader saw, and how it ended."""

    shown: dict[str, str]  # by block
    errors: str
    exit_status: int
    service_said: str
    service_exit_status: int

    def block(self, part: str) -> str:
        """Return what the one block that holds this text printed."""
        (shown_once,) = [shown for block, shown in self.shown.items() if part in block]
        return shown_once

    def answers(self, part: str) -> list[Any]:
        """The JSON documents among that."""
        return list(_documents(self.block(part)))


def _documents(text: str) -> Iterator[Any]:
    decoder, position = json.JSONDecoder(), 0
    while (position := text.find("{", position)) >= 0:
        document, position = decoder.raw_decode(text, position)
        yield document


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    folder = tmp_path_factory.mktemp("reader")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "service").symlink_to(ROOT / "service")  # the samples
    port = free_port()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PERENNIAL_") and not name.lower().endswith("_proxy")
    } | {"PERENNIAL_METRICS_PORT": "0"}
    with (folder / "said").open("w") as output, (folder / "logged").open("w") as logged:
        service = subprocess.Popen(
            [".venv/bin/perennial", "up", "--port", str(port)],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=logged,
        )
    try:
        _await_ready(service, f"http://127.0.0.1:{port}/readyz")
        printed = blocks(page("tutorial.md"), "sh")
        script = f"\necho '{BETWEEN}'\n".join(printed).replace("http://127.0.0.1:8000", f"http://127.0.0.1:{port}")
        reader = subprocess.run(
            ["bash", "-euo", "pipefail"],
            cwd=folder,
            env=environment,
            input=script,
            text=True,
            capture_output=True,
            timeout=250,
            check=False,
        )
    finally:
        service.send_signal(signal.SIGINT)
        service.wait(timeout=STOP_SECONDS)
    return Walk(
        shown=dict(zip(printed, reader.stdout.split(BETWEEN), strict=False)),
        errors=reader.stderr,
        exit_status=reader.returncode,
        service_said=(folder / "said").read_text(),
        service_exit_status=service.returncode,
    )


def _await_ready(service: subprocess.Popen[bytes], url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + READY_SECONDS
    while True:
        assert service.poll() is None, "perennial up ended"
        assert time.monotonic() < deadline, "perennial up was not ready in time"
        try:
            with opener.open(url, timeout=2) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.1)


def test_every_line_runs(walk: Walk) -> None:
    assert (walk.exit_status, walk.errors) == (0, "")


def test_the_start_says_where_everything_is(walk: Walk) -> None:
    ready, folder, key, stop = walk.service_said.splitlines()  # logs go elsewhere

    assert ready.startswith("Perennial is ready on http://127.0.0.1:")
    assert folder.endswith("perennial-data")
    assert key.endswith("perennial-data/admin.key")
    assert stop == "Ctrl-C stops it."


def test_the_stream_is_made_with_its_budget(walk: Walk) -> None:
    (stream,) = walk.answers("$API/v1/streams -d")

    assert (stream["name"], stream["records"]) == ("weather", 0)
    assert stream["budget"] == {"epsilon": 4.0, "delta": 2e-6}


def test_the_plan_costs_what_was_asked(walk: Walk) -> None:
    (plan,) = walk.answers("$API/v1/plan")

    assert plan["guarantee"]["epsilon"] == 2
    assert plan["lifetime"]["epsilon"] <= 2
    assert {fit["what"] for fit in plan["fits"]} == {"step"}


def test_the_publication_runs(walk: Walk) -> None:
    (publication,) = walk.answers('$API/v1/publications -d "$PUBLICATION"')

    assert (publication["name"], publication["state"], publication["start"]) == ("rain", "running", 0)


def test_a_batch_sent_twice_is_one_entry(walk: Walk) -> None:
    first, again, _model = walk.answers("Idempotency-Key")

    assert first == again
    assert first["accepted"] == 500


def test_who_waits_gets_the_first_model(walk: Walk) -> None:
    *_, model = walk.answers("first-model.json")

    assert (model["version"], model["fit"]) == (1, {"start": 0, "end": 500})


def test_who_has_the_first_model_gets_a_newer_one(walk: Walk) -> None:
    shown = walk.block("If-None-Match")
    _accepted, newer, page = walk.answers("If-None-Match")

    assert shown.splitlines()[2].strip() == "HTTP/1.1 200 OK"
    assert f'etag: "{newer["version"]}.json.1.' in shown
    assert newer["version"] > 1
    assert len(page["items"]) == 2


def test_a_wet_day_and_a_fine_one_are_told_apart(walk: Walk) -> None:
    (prediction,) = walk.answers("/predict")
    wet, fine = (row[1] for row in prediction["scores"])

    assert wet > fine


def test_the_ledger_holds_what_was_spent_within_the_reservation(walk: Walk) -> None:
    ledger, charges, _card = walk.answers("/ledger/charges")

    assert 0 < ledger["spent"]["epsilon"] <= ledger["reserved"]["epsilon"] == 2.0
    assert ledger["ranges"][0]["start"] == 0
    assert ledger["ranges"][-1]["end"] == 8000
    newest, before = charges["items"]
    assert newest["previous_hash"] == before["hash"]


def test_the_card_has_the_publications_guarantee(walk: Walk) -> None:
    (card,) = walk.answers("/card")[2:]

    assert (card["epsilon"]["publication"]["for_life"], card["delta"]["publication"]["for_life"]) == (2.0, 1e-6)
    assert card["epsilon"]["stream"]["for_life"] == 4.0


def test_what_the_budget_cannot_hold_is_refused(walk: Walk) -> None:
    (problem,) = walk.answers("rain-of-late")

    assert (problem["status"], problem["left"]["epsilon"]) == (409, 2.0)


def test_a_limited_key_is_shown_records_are_erased_and_the_publication_stops(walk: Walk) -> None:
    key, erased, publication = walk.answers("/v1/keys")

    assert key["key"].startswith("prn_")
    assert erased == {"start": 0, "end": 10}
    assert publication["state"] == "stopped"


def test_it_stops_cleanly_within_ten_seconds(walk: Walk) -> None:
    assert walk.service_exit_status == 0


def test_the_walk_leaves_no_file_outside_its_data_folder() -> None:
    written = [Path(line.rsplit("> ", 1)[1].split()[0]) for block in blocks(page("tutorial.md"), "sh")
               for line in block.splitlines() if "> " in line]  # fmt: skip

    assert [path for path in written if path.parts[0] != "perennial-data"] == []
