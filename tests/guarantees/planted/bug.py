"""Defines a planted bug, and the tests that catch several of them."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from textwrap import dedent
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUGS: dict[str, Bug] = {}

AUDIT = "tests/guarantees/test_audits.py::test_nobody_can_tell_two_records_apart_better_than_promised"
RELEASED = (
    "tests/guarantees/test_released_noise.py::test_releases_are_minimisers_near_released_parents_with_the_stated_noise"
)
ACTIVE = "tests/mechanisms/active_learning/test_active_learning.py"


@dataclass(frozen=True)
class Bug:
    """A change of the program, and the test that sees it."""

    plant: Callable[[], None]
    caught_by: str


def bug(caught_by: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(plant: Callable[[], None]) -> Callable[[], None]:
        assert plant.__name__ not in BUGS, f"two bugs are called {plant.__name__}"
        BUGS[plant.__name__] = Bug(plant, caught_by)
        return plant

    return add


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Put in the place of a function one that is also given the true one first."""
    true = getattr(owner, name)
    setattr(owner, name, lambda *args, **more: wrapper(true, *args, **more))


def rewrite(function: Callable[..., Any], *changes: tuple[str, str]) -> None:
    """Run another text in the place of a function's, for everybody who holds the function.

    changes: what is replaced, which must come exactly once in the function's text, and by what.
    """
    function = inspect.unwrap(function)
    source = dedent(inspect.getsource(function))
    for old, new in changes:
        assert source.count(old) == 1, f"{source.count(old)} times: {old}"
        source = source.replace(old, new)
    module = compile(source, "planted", "exec", flags=function.__code__.co_flags & _FUTURE, dont_inherit=True)
    (function.__code__,) = (code for code in _codes(module) if code.co_name == function.__name__)


def define(module: ModuleType, name: str, *changes: tuple[str, str]) -> None:
    """Give one of a module's names what another text of its definition says; what was made of the old one stays.

    changes: as of `rewrite`.
    """
    whole = inspect.getsource(module)
    assigned = [each for each in ast.parse(whole).body if isinstance(each, (ast.Assign, ast.AnnAssign))]
    (source,) = [
        ast.get_source_segment(whole, each) or ""
        for each in assigned
        if name in {ast.unparse(target) for target in getattr(each, "targets", None) or [each.target]}  # type: ignore[union-attr]
    ]
    for old, new in changes:
        assert source.count(old) == 1, f"{source.count(old)} times: {old}"
        source = source.replace(old, new)
    exec(compile(source, "planted", "exec"), vars(module))


_FUTURE = 0x1000000  # `from __future__ import annotations`


def _codes(module: CodeType) -> Iterator[CodeType]:
    """Yield the functions at the top of a module's code."""
    yield from (each for each in module.co_consts if isinstance(each, CodeType))
