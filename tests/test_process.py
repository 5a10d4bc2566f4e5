"""How processes load their modules, and what they are given."""

import subprocess
import sys
from contextlib import suppress

import pytest

PROGRAM = """
import sys
from service.process import loading

with loading():
    import structlog
print("rich" in sys.modules)
import rich
print("rich" in sys.modules)
"""


def test_a_library_that_only_draws_tracebacks_is_not_loaded_with_the_others():
    printed = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "True"]


def test_a_process_that_leaves_no_crash_dumps_never_may_again_nor_what_it_starts():
    lines = [
        "import resource, subprocess, sys",
        "from service.process import leave_no_crash_dumps",
        "leave_no_crash_dumps()",
        "print(*resource.getrlimit(resource.RLIMIT_CORE))",
        "child = 'import resource; print(*resource.getrlimit(resource.RLIMIT_CORE))'",
        "sys.exit(subprocess.run([sys.executable, '-c', child]).returncode)",
    ]
    command = [sys.executable, "-u", "-c", "\n".join(lines)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert set(printed.split()) <= {"0", "1"}, "one byte is none, and collectors of dumps get none either"
    assert len(printed.split()) == 4


@pytest.mark.parametrize("process", ["a comparison", "a reader of large bodies"])
def test_a_process_that_needs_no_server_is_given_no_setting(monkeypatch, process):
    from service.api.http.large_bodies import LargeBodies
    from service.worker.explorer import _process

    given = []

    def note(*_, **options):
        given.append(options["env"])
        raise OSError

    monkeypatch.setenv("PERENNIAL_ADMIN_KEY", "secret")
    monkeypatch.setattr(subprocess, "Popen", note)
    with suppress(OSError):
        if process == "a comparison":
            with _process(b""):
                pass
        else:
            LargeBodies()._start()
    (environment,) = given
    assert "PERENNIAL_ADMIN_KEY" not in environment
