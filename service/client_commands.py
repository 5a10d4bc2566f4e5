"""Run commands of the Python client in place of `perennial`, without loading the service's modules.

A command that handed over once typer and the settings were there took 0.35 s of processor time more.
"""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

EXTRAS = {"load": "arrow", "bridge": "nats"}  # each command, and the client's extra that it needs
NOT_INSTALLED = 78
# Batches are copied, not multiplied: numpy's threads would only take time, and memory is there for the next batch.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**26)}


def become(command: str, arguments: Sequence[str]) -> None:
    """Run the client's command in place of this process. Exits where the client is not installed."""
    if find_spec("perennial") is None:
        missing = f"install it from the project's folder, pip install './client[{EXTRAS[command]}]'"
        print(f"perennial: `{command}` is the Python client's: {missing}", file=sys.stderr)  # noqa: T201
        sys.exit(NOT_INSTALLED)
    whole = [sys.executable, "-m", "perennial", command, *arguments]
    os.execve(sys.executable, whole, _ENVIRONMENT | os.environ)  # noqa: S606
