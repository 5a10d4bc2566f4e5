"""Bugs in metrics by which operators learn that something is wrong."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_STATE = "tests/monitoring/test_state.py"
_STREAMS = f"{_STATE}::test_each_stream_has_its_own_figures"
_PUBLICATIONS = f"{_STATE}::test_each_publication_has_its_own_figures_and_one_that_ended_only_whether_it_halted"


@bug(_STREAMS)
def a_ledger_that_does_not_verify_and_rings_no_bell() -> None:
    """Nobody looks why nothing is published."""
    from service.metrics import State

    rewrite(
        State._streams,
        (
            "distrusted = [([each.stream.name], each.stream.distrusted is",
            "distrusted = [([each.stream.name], each.stream.halted is",
        ),
    )


@bug(_STREAMS)
def lost_commits_that_ring_no_bell() -> None:
    """PostgreSQL was put back to an earlier state, and nobody learns that charges are missing."""
    from service.metrics import State

    rewrite(State._streams, ("lost_commits(each.stream.distrusted)", "lost_commits(each.stream.halted)"))


@bug(_STREAMS)
def a_backlog_of_another_stream() -> None:
    """An operator looks for what waits at the wrong stream."""
    from service.metrics import State

    rewrite(State._streams, ("backlogs.get(each.stream.log)", "next(iter(backlogs.values()), None)"))


@bug(_PUBLICATIONS)
def a_fit_that_waits_and_is_said_to_run() -> None:
    """Nobody adds the worker that it waits for."""
    from service.metrics import State

    rewrite(
        State._publications,
        ('"fit_running_seconds", "fitting_seconds"', '"fit_running_seconds", "waiting_seconds"'),
        ('next fit", fitting)', 'next fit", waiting)'),
    )


@bug(_PUBLICATIONS)
def a_halted_publication_that_rings_no_bell() -> None:
    """It has ended, and nobody learns that it publishes nothing more."""
    from service.metrics import State

    rewrite(
        State._publications,
        ('it publishes nothing more, and says why", overview.publications)', 'it publishes no more", running)'),
    )


@bug(f"{_STATE}::test_the_log_is_up_while_every_primary_answers[up1-0]")
def a_log_that_is_up_while_any_primary_answers() -> None:
    """The streams of a primary that is away accept nothing, and no bell rings."""
    from service.metrics import State

    rewrite(State.collect, ("all(up.values()) and bool(up)", "any(up.values())"))


@bug(f"{_STATE}::test_figures_of_an_evaluation_are_shown_when_they_are_0_too")
def an_accuracy_of_nothing_that_is_not_shown() -> None:
    """A publication that predicts nothing right looks like one that nobody evaluates."""
    from service.metrics import State

    rewrite(State._evaluations, ("(value := getattr(each, name)) is not None", "(value := getattr(each, name))"))
