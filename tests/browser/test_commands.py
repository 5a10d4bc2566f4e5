"""Commands that pages show: copied into a shell as they are, they do what the page says, and nothing else."""

import os
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import Service, ok, wait_until


def run_copied(shown: Locator, key: str) -> str:
    """Return what a shell prints that runs what a page shows."""
    expect(shown).to_be_visible()
    ended = subprocess.run(
        ["sh", "-c", shown.inner_text()],
        env={"PATH": os.environ["PATH"], "KEY": key},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def takes_what_it_shows(service: Service, reader: Page, stream: str, *, records: int = 2) -> None:
    """Runs the command for a stream's first records; fails unless the stream then has them."""
    reader.goto(f"/dashboard/streams/{stream}")
    answer = run_copied(reader.locator("pre", has_text="/records"), service.key("ingest", streams=[stream]))
    assert f'"accepted":{records}' in answer, answer
    wait_until(lambda: ok(service.client().get(f"/v1/streams/{stream}"))["records"] == records)


def test_names_in_a_command_that_is_copied_run_nothing(service: Service, reader: Page, tmp_path: Path):
    touch = f"touch {tmp_path}/ran"
    columns = [f"b'; {touch}; echo '", f"$({touch})", f"`{touch}`", f"\\'; {touch} #", '"!!"']
    stream = service.stream(features=len(columns), columns=columns, class_names=["it's", "'\\''"])
    takes_what_it_shows(service, reader, stream)
    assert list(tmp_path.iterdir()) == []


WORDS = {"kind": "hashing", "features": 64, "tokens": "words"}
CATEGORIES = {"kind": "hashing", "features": 64, "tokens": "categories"}


@pytest.mark.more
@pytest.mark.parametrize(
    "schema",
    [
        {"features": 1024},
        {"features": 9, "columns": [f"column {number}" for number in range(9)]},
        {"task": {"kind": "regression", "bound": 1}},
        {"task": {"kind": "unlabelled"}},
        {"features": None, "task": {"kind": "categorical", "cardinality": 1}},
        {"features": None, "task": {"kind": "categorical", "cardinality": 1}, "class_names": ["one"]},
        {"features": 1, "feature_map": WORDS},
        {"feature_map": {"kind": "compose", "maps": [WORDS, {"kind": "normalize"}]}, "columns": ["title", "text"]},
        {"feature_map": CATEGORIES},
        {"unit": {"max_records": 2}},
        {"unit": {"max_records": 1}, "feature_map": WORDS, "features": 12},
    ],
    ids=str,
)
def test_the_records_that_a_stream_suggests_are_taken(service: Service, reader: Page, schema):
    takes_what_it_shows(service, reader, service.stream(**schema))


@pytest.mark.more
def test_a_record_that_is_too_long_to_write_out_is_not_cut(service: Service, reader: Page):
    reader.goto(f"/dashboard/streams/{service.stream(features=1025)}")
    expect(reader.locator("#shares")).to_contain_text("A record has 1,025 features, too many to write out here")
    expect(reader.locator("pre", has_text="/records")).to_have_count(0)
