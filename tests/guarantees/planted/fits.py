"""Bugs in how a worker runs fits: whose turn it is, what a fit's process may know, how its end is taken."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite, wrap

_FITS = "tests/worker/test_fits.py"


@bug(f"{_FITS}::test_after_its_second_death_the_publication_halts_and_says_how")
def a_killed_fit_that_is_drawn_again_and_again() -> None:
    """Which of its results is shown depends on what killed the others."""
    from service.worker.publisher import Publisher

    rewrite(Publisher._drawn, ("DatabaseUnavailable, NotWanted", "DatabaseUnavailable, NotWanted, FitDied"))


@bug(f"{_FITS}::test_it_knows_no_server_and_no_key")
def a_fit_that_knows_the_database() -> None:
    """An attacker who takes over a fit reads every stream."""
    from service.worker import fits

    rewrite(fits._process.__wrapped__, ('if not name.startswith("PERENNIAL_")', ""))


@bug(f"{_FITS}::test_short_steps_never_wait_for_long_ones")
def a_long_fit_among_the_short_ones() -> None:
    """Two long fits and a third one, and nothing else is published for as long as they take."""
    from service.worker.publisher import Publisher

    wrap(Publisher, "_takes", lambda _true, _publisher, _seconds: True)


@bug("tests/worker/test_due_fits.py::test_that_it_has_ended_is_not_seen_before_its_tick")
def a_fit_whose_end_is_shown() -> None:
    """How long a fit took tells of its records."""
    from sqlalchemy import false

    from service.store import due_fits

    due_fits.IS_FITTING = false()
