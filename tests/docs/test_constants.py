"""No number and no word at the top of a module that computes changes by itself."""

from tests.docs.constants import WRITTEN, lines


def test_constants_are_as_they_are_written_down() -> None:
    assert lines() == WRITTEN.read_text().splitlines()
