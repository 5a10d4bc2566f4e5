"""Bugs that others shipped or the papers invite, each with the test that must catch it.

`pytest --planted` plants one after the other in a fresh process (`pytest --plant NAME`) and wants the named test to
fail there, and to pass without. A plant replaces what it names in the running program, before anything uses it.
"""

from importlib import import_module
from pkgutil import iter_modules

from tests.guarantees.planted.bug import BUGS

__all__ = ["BUGS"]

for module in iter_modules(__path__):
    if module.name != "__main__":
        import_module(f"{__name__}.{module.name}")
