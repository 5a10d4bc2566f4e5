"""`python -m tests.guarantees.planted` plants every bug, and prints what can't be planted."""

import os
import sys
from importlib import import_module
from pkgutil import walk_packages

import service
from tests.guarantees.planted import BUGS


def planted(names: list[str]) -> int:
    """Plant these in a process of their own, one after the other, until one can't be; return how many could be."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        for name in names:
            try:
                BUGS[name].plant()
            except BaseException as error:  # noqa: BLE001 - whatever it is, somebody reads it
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
    # Maybe only another bug stands in the way of the next one: it comes first in a process without the others.
    many = planted(names)
    all_can_be &= many > 0
    names = names[max(many, 1) :]
sys.exit(not all_can_be)
