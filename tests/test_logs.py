"""Whatever happens in a process, it logs one JSON object per line, without what a user sent."""

import json
import subprocess
import sys

import pytest

CONFIGURED = "import ctypes, gc, threading; from service import logs; logs.configure('info')\n"
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
