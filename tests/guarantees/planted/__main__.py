"""`python -m tests.guarantees.planted` plants each bug in a process of its own, and prints what can't be planted."""

import os
import sys
from importlib import import_module
from pkgutil import walk_packages

import service
from tests.guarantees.planted import BUGS


def can_be_planted(name: str) -> bool:
    """Return whether the program still has what the bug replaces."""
    if (child := os.fork()) == 0:
        try:
            BUGS[name].plant()
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody reads it
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


for module in walk_packages(service.__path__, "service."):
    if not module.name.endswith("__main__"):
        import_module(module.name)  # once, and not again in each process
planted = [can_be_planted(name) for name in BUGS]
sys.exit(not all(planted))
