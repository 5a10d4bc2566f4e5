"""What a planted bug is, and the tests that catch several of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

BUGS: dict[str, Bug] = {}

AUDIT = "tests/guarantees/test_audits.py::test_nobody_can_tell_two_records_apart_better_than_promised"
RELEASED = (
    "tests/guarantees/test_released_noise.py::test_releases_are_minimisers_near_released_parents_with_the_stated_noise"
)
ACTIVE = "tests/mechanisms/test_active_learning.py"


@dataclass(frozen=True)
class Bug:
    """What to do to the program, and the test that sees it."""

    plant: Callable[[], None]
    caught_by: str


def bug(caught_by: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(plant: Callable[[], None]) -> Callable[[], None]:
        BUGS[plant.__name__] = Bug(plant, caught_by)
        return plant

    return add


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Put in the place of a function one that is also given the true one first."""
    true = getattr(owner, name)
    setattr(owner, name, lambda *args, **more: wrapper(true, *args, **more))
