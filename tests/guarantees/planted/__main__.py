"""`python -m tests.guarantees.planted` plants every bug, and prints what can't be planted."""

import os
import sys
from importlib import import_module
from pkgutil import walk_packages

import service
from tests.guarantees.planted import BUGS


def plant_until_one_fails(names: list[str]) -> int:
    """Plant bugs in a process of their own, one after the other, until one fails; return how many were planted."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        for name in names:
            try:
                BUGS[name].plant()
            except BaseException as error:  # noqa: BLE001 - any error is printed
                if name == names[0]:
                    print(f"{name}: {type(error).__name__}: {error}", flush=True)
                os._exit(0)
            os.write(writing, b".")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as dots:
        many = len(dots.read())
    os.waitpid(child, 0)
    return many


for module in walk_packages(service.__path__, "service."):
    if not module.name.endswith("__main__"):
        import_module(module.name)  # once, and not again in each process
names, all_can_be = list(BUGS), True
while names:
    # A bug planted before may be in the way of one that fails: that one is tried again, first in a new process.
    many = plant_until_one_fails(names)
    all_can_be &= many > 0
    names = names[max(many, 1) :]
sys.exit(not all_can_be)
