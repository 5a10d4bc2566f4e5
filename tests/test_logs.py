"""Whatever happens in a process, it logs one JSON object per line, without what a user sent."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CONFIGURED = """
import ctypes, gc, threading
from service.process import loading
with loading():
    from service import logs
logs.configure("info")
"""
FREED_IN_USE = """
memory = bytearray(8)
ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.create_string_buffer(256), 0)
ctypes.pythonapi.Py_DecRef(ctypes.py_object(memory))
del memory
"""
IN_A_FINALIZER = """
class Broken:
    def __del__(self):
        raise ValueError("a secret")
Broken()
"""
IN_A_THREAD = """
thread = threading.Thread(target=lambda: int("a secret"))
thread.start()
thread.join()
"""


@pytest.mark.more
@pytest.mark.parametrize(
    ("program", "error"),
    [
        (FREED_IN_USE, "SystemError"),  # deallocated bytearray object has exported buffers
        (IN_A_FINALIZER, "ValueError"),
        (IN_A_THREAD, "ValueError"),
        ("int('a secret')", "ValueError"),
    ],
    ids=["memory freed in use", "finalizer", "thread", "program"],
)
def test_an_error_that_nobody_caught_is_a_line_like_all_others(program, error):
    done = subprocess.run([sys.executable, "-c", CONFIGURED + program], capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["event"], line["error"], line["level"]) for line in lines] == [("unexpected_error", error, "error")]
    assert "secret" not in done.stderr


def started(folder: Path, **environment: str) -> list[dict[str, Any]]:
    """Return what the log holds when a process and one that it forks have begun it, as `perennial up` and a part do."""
    program = (
        "import os\nfrom service.process import loading\nwith loading():\n"
        "    from service import logs; from service.settings import Settings\n"
        "logs.begin(Settings())\n"
        "if os.fork() == 0: os.environ['PERENNIAL_PORT'] = '1'; logs.begin(Settings()); os._exit(0)\n"
        "os.wait()"
    )
    given = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")}
    given |= {"PYTHONPATH": str(Path(__file__).parents[1])} | environment
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=folder, env=given
    )
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.more
def test_a_short_admin_key_is_warned_of_once_and_not_repeated(tmp_path):
    (line,) = started(tmp_path, PERENNIAL_ADMIN_KEY="easily-guessed-" + "x" * 16)
    assert (line["event"], line["level"], line["setting"]) == (
        "admin_key_short",
        "warning",
        "PERENNIAL_ADMIN_KEY",
    )
    assert "openssl rand -base64 33" in line["advice"]
    assert "easily" not in str(line)
    assert started(tmp_path, PERENNIAL_ADMIN_KEY="easily-guessed-" + "x" * 17) == []


@pytest.mark.more
def test_a_misspelt_setting_is_warned_of_once_with_the_nearest_one_and_without_its_value(tmp_path):
    (tmp_path / ".env").write_text("PERENNIAL_MAX_CONECTIONS=secret\nPOSTGRES_PASSWORD=secret\nPERENNIAL_PORT=8001\n")
    lines = started(
        tmp_path, PERENNIAL_PUBLISHER="secret", perennial_operator="x", PERENNIAL_X="secret", PERENNIAL_Y=""
    )
    assert {(line["event"], line["level"]) for line in lines} == {("unknown_setting", "warning")}
    assert [(line["variable"], line["nearest"]) for line in lines] == [
        ("PERENNIAL_MAX_CONECTIONS", "PERENNIAL_MAX_CONNECTIONS"),
        ("PERENNIAL_PUBLISHER", "PERENNIAL_PUBLISHERS"),
        ("PERENNIAL_X", None),
    ]
    assert "secret" not in str(lines)
