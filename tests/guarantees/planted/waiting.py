"""Bugs in what people are told of fits that are due, and in when these are seen."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, define, rewrite

_NOTHING = "tests/worker/test_due_fits.py::test_where_nothing_goes_on_there_is_none"


@bug(f"{_NOTHING}[distrusted]")
def a_fit_that_waits_on_a_distrusted_stream() -> None:
    """The API says that a fit waits for a worker, and no worker takes it."""
    from service.store import due_fits

    define(due_fits, "IS_DUE", ("streams.c.distrusted.is_(None),", ""))


@bug(f"{_NOTHING}[halted]")
def a_fit_that_waits_on_a_halted_stream() -> None:
    """The API says that a fit waits for a worker, and it waits until an administrator resumes the stream."""
    from service.store import due_fits

    define(due_fits, "IS_DUE", ("streams.c.halted.is_(None),", ""))


@bug(f"{_NOTHING}[stopped]")
def a_fit_that_waits_though_its_publication_has_ended() -> None:
    """The API says that a fit waits, and it never comes."""
    from service.store import due_fits

    define(due_fits, "IS_DUE", ('publications.c.state == "running",', ""))


@bug("tests/worker/test_features.py::test_what_waits_for_features_is_not_due_until_their_release_is_confirmed")
def a_fit_that_waits_before_its_features_are_seen() -> None:
    """People see that features were committed before these are confirmed."""
    from service.store import due_fits

    define(due_fits, "IS_DUE", ("features.ready(),", ""))


@bug("tests/worker/test_labelling.py::test_a_window_is_asked_for_waited_for_and_learnt_from")
def a_fit_that_waits_for_a_worker_while_labels_are_missing() -> None:
    """People are told that no worker is free, and their own answers are what is waited for."""
    from service.store import due_fits

    define(
        due_fits,
        "IS_DUE",
        ("or_(publications.c.due > publications.c.start + publications.c.position, not_(labels.any_open())),", ""),
    )


@bug(f"{_NOTHING}[stopped]")
def records_that_are_overdue_for_a_publication_that_has_ended() -> None:
    """Metrics alert on records of a publication that has ended."""
    from service.ledger import overview

    rewrite(overview.overview, ('if row.state == "running" and row.tick_has_come', "if row.tick_has_come"))


@bug("tests/worker/test_due_fits.py::test_the_latest_of_metrics_is_a_model")
def a_latest_release_of_metrics_that_is_no_model() -> None:
    """People who watch the service see a young release, while readers of the newest model have an old one."""
    from service.ledger import overview

    define(overview, "_latest", ('releases.c.role == "model",', ""))
    define(overview, "_PUBLICATIONS")


@bug("tests/worker/test_due_fits.py::test_a_publication_of_old_records_is_first_seen_a_delay_after_it_was_made")
def a_publication_of_old_records_that_is_seen_when_its_fit_has_ended() -> None:
    """How long the fit took, and so of the records, shows in the tick at which it appears."""
    from service.store import parked

    define(parked, "_DUE_AT", (", _CREATED", ""))
    define(parked, "_EARLIEST")
    define(parked, "_TICK")


_ORDER = "tests/store/test_reading_one.py::test_steps_at_a_tick_come_in_the_order_in_which_they_became_due"


@bug(_ORDER)
def steps_at_a_tick_in_the_order_of_their_publications() -> None:
    """A step that became due later is numbered and charged before another one."""
    from service.store import parked

    rewrite(parked._due, ("parked.c.due_at.nulls_first(), ", ""))


@bug(_ORDER)
def steps_at_a_tick_without_end() -> None:
    """One transaction publishes more than a worker can keep in mind."""
    from service.store import parked

    rewrite(parked.due, ("row.size + sum(each.size for each in waiting) > MOST_BYTES", "row.size > MOST_BYTES"))
