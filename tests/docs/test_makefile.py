"""`make venv` takes a Python that was built to be fast, if the machine has one."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT

SYSTEM = "/usr/bin/python3"
USABLE = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"


def taken(path: Path, *arguments: str) -> str:
    """Return the Python that would make the virtual environment where `path` is looked at first."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "PYTHON")}
    environment["PATH"] = f"{path}:{environment['PATH']}"
    command = ["make", "--dry-run", "--always-make", "venv", *arguments]
    shown = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    return shown.partition(" -m venv ")[0].split()[-1]


def pretends(folder: Path, options: str) -> None:
    """Put a python3 into a folder that says that it was built with these options."""
    code = f'import sys, sysconfig; sysconfig.get_config_var = lambda name: "{options}"; exec(sys.argv[2])'
    (folder / "python3").write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
    (folder / "python3").chmod(0o755)


def test_a_python3_that_was_built_with_optimisations_is_taken(tmp_path: Path):
    pretends(tmp_path, "--prefix=/opt --enable-optimizations")
    assert taken(tmp_path) == "python3"


def test_instead_of_another_python3_the_systems_is_taken_if_that_can_be(tmp_path: Path):
    pretends(tmp_path, "--prefix=/opt")
    usable = Path(SYSTEM).exists() and not subprocess.run([SYSTEM, "-c", USABLE], check=False).returncode
    assert taken(tmp_path) == (SYSTEM if usable else "python3")


def test_whoever_names_a_python_gets_it(tmp_path: Path):
    pretends(tmp_path, "--prefix=/opt")
    assert taken(tmp_path, "PYTHON=/opt/python3.13") == "/opt/python3.13"
