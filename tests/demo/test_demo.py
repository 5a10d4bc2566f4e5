"""The demo as its user runs it: a process of its own, real servers, a pipe for a screen."""

import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
A_ROW = re.compile(
    r"^\d{4} (online-leader|sliding-window) +(\d+) +(\d+) +\d+–\d+ +(\S+)% +\S+% +\S+% +(\S+)$", re.MULTILINE
)

A_FIGURE = re.compile(r"^│ (?:online-leader|sliding-window) .*│ +(\d+)%–(\d+)% │ +\d+% │$", re.MULTILINE)


def start(tmp_path, *arguments):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "demo", *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def left_behind(tmp_path):
    """Files and processes that mention the temporary folder."""
    files = list((tmp_path / "tmp").glob("perennial*"))
    return files + [running for running in Path("/proc").glob("[0-9]*/cmdline") if _mentions(running, tmp_path)]


def _mentions(command, tmp_path):
    try:
        return f"{tmp_path}/tmp/".encode() in command.read_bytes()
    except OSError:  # it has ended meanwhile
        return False


@pytest.mark.more
@pytest.mark.slow
def test_it_publishes_prints_draws_and_stops(tmp_path):
    chart = tmp_path / "releases.svg"
    demo = start(tmp_path, "--chart", str(chart), "--seconds", "4")
    out, errors = demo.communicate()
    assert (demo.returncode, errors) == (0, "")
    rows = A_ROW.findall(out)
    for name, first in (("online-leader", 400), ("sliding-window", 1200)):
        mine = [row for row in rows if row[0] == name]
        assert [int(row[2]) for row in mine] == list(range(first, 13_601, 400))
        versions = [int(row[1]) for row in mine]
        assert versions == sorted(set(versions))
        assert all(0.0 < float(row[3]) < 100.0 for row in mine)  # the noise of one model can be anything
        spent = [float(row[4]) for row in mine]
        assert spent == sorted(spent)
        assert spent[-1] <= 1.0
    assert re.search(r"^Live dashboard, for as long as this runs: http://127\.0\.0\.1:\d+$", out, re.MULTILINE)
    assert re.search(r"the worst record has spent ε = [\d.]+ of 2; 2 are reserved", out)
    figures = A_FIGURE.findall(out)
    assert len(figures) >= 5, "five blocks, and publications that may wait for their first model"
    assert all(float(low) <= float(high) for low, high in figures)
    assert ET.parse(chart).getroot().tag.endswith("svg")
    assert left_behind(tmp_path) == []


@pytest.mark.more
@pytest.mark.slow
def test_interrupted_it_stops_what_it_started(tmp_path):
    demo = start(tmp_path, "--chart", str(tmp_path / "releases.svg"))
    assert demo.stdout is not None
    for line in demo.stdout:
        if A_ROW.match(line):
            break
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate()
    assert demo.returncode == 130
    assert errors == "demo: interrupted; everything is stopped and removed\n"
    assert left_behind(tmp_path) == []
    assert not (tmp_path / "releases.svg").exists()


def test_a_chart_that_cannot_be_written_is_refused_before_anything_starts(tmp_path):
    demo = start(tmp_path, "--chart", str(tmp_path / "missing" / "releases.svg"))
    out, errors = demo.communicate()
    assert demo.returncode == 1
    assert out == ""
    assert "--chart" in errors
