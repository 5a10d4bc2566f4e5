"""Defines a planted bug, and the tests that catch several of them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from textwrap import dedent
from types import CodeType
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

    changes: what is replaced, and by what. It must come exactly once: in the function's text or, where it was moved out
        of that, in the text of another function of the same file.
    """
    edited: dict[Callable[..., Any], str] = {}
    for old, new in changes:
        holder = _holder(inspect.unwrap(function), old)
        edited[holder] = edited.get(holder, _source(holder)).replace(old, new)
    for holder, source in edited.items():
        module = compile(source, "planted", "exec", flags=holder.__code__.co_flags & _FUTURE, dont_inherit=True)
        (holder.__code__,) = (code for code in _codes(module) if code.co_name == holder.__name__)


_FUTURE = 0x1000000  # `from __future__ import annotations`


def _holder(function: Callable[..., Any], quote: str) -> Callable[..., Any]:
    """Return the function whose text has the quote: this one, or another one of its file."""
    if _source(function).count(quote) == 1:
        return function
    module = inspect.getmodule(function)
    owners = [module, *(kind for kind in vars(module).values() if inspect.isclass(kind))]
    members = [inspect.unwrap(member) for owner in owners for member in vars(owner).values() if callable(member)]
    functions = {member for member in members if inspect.isfunction(member) and inspect.getmodule(member) is module}
    holders = [other for other in functions if _source(other).count(quote) == 1]
    assert len(holders) == 1, f"{_source(function).count(quote)} times, and in {len(holders)} other functions: {quote}"
    return holders[0]


def _source(function: Callable[..., Any]) -> str:
    return dedent(inspect.getsource(function))


def _codes(module: CodeType) -> Iterator[CodeType]:
    """Yield the functions at the top of a module's code."""
    yield from (code for code in module.co_consts if isinstance(code, CodeType))
