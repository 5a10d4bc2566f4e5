"""Bugs in what is kept of comparisons and of dead letters."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_READING = "tests/store/test_reading_one.py"


@bug(f"{_READING}::test_old_comparisons_go_with_a_new_one_of_the_same_key_alone")
def comparisons_that_go_with_a_new_one_of_another_key() -> None:
    """A key that compares much deletes what others have found."""
    from service.store import explorations

    rewrite(explorations.add, ("ended = explorations.c.key_id == key, ", "ended = explorations.c.id > 0, "))


@bug(f"{_READING}::test_a_dead_letter_was_dropped_when_it_first_was")
def a_dead_letter_that_was_dropped_when_somebody_last_tried_to() -> None:
    """Nobody can tell any more since when records are known to be lost."""
    from service.store import numbering

    rewrite(numbering.drop_dead_letter, ("func.coalesce(dead_letters.c.dropped_at, func.now())", "func.now()"))
