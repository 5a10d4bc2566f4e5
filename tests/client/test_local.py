"""A service of one's own that can't start, or loses its client. One that is closed is in test_page.py."""

import os
import signal
import subprocess
import sys

import pytest

import perennial
from tests.conftest import wait_until

pytestmark = pytest.mark.slow
NOTEBOOK = """
import sys, time, perennial
client = perennial.local(sys.argv[1])
print(client.url, flush=True)
time.sleep(1000)
"""


def test_a_service_ends_with_a_process_that_is_killed(tmp_path):
    """What it kept stays in the folder."""
    notebook = subprocess.Popen([sys.executable, "-c", NOTEBOOK, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert notebook.stdout is not None
    with notebook.stdout:
        url = notebook.stdout.readline().strip()
    key = (tmp_path / "perennial-data" / "admin.key").read_text()
    assert _answers(url, key)
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.wait()
    wait_until(lambda: not _answers(url, key))
    assert (tmp_path / "perennial-data").is_dir()


def _answers(url: str, key: str) -> bool:
    try:
        perennial.connect(url, key).close()
    except perennial.Unreachable:
        return False
    return True


def test_a_service_that_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(perennial.LocalServiceFailed, match=r"pip install '\.\[embedded\]' \./client"):
        perennial.local(tmp_path)


def test_a_service_that_cannot_start_says_why(service, tmp_path):
    port = int(service.url.rpartition(":")[2])
    with pytest.raises(perennial.LocalServiceFailed, match="can't listen on"):
        perennial.local(tmp_path, port=port)
