"""Bugs in a worker's audit: whose ledgers it has walked, and what it does on those that it has not."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_WALKS = "tests/worker/test_walks.py"


@bug(f"{_WALKS}::test_a_long_ledger_is_not_published_on_before_it_is_walked")
def a_long_ledger_that_is_published_on_unwalked() -> None:
    """A worker that starts believes what it has not looked at."""
    from service.worker.audit import Audit

    rewrite(Audit.look, ("return self._vouched_for(stream)", "return True"))


@bug("tests/worker/test_audit.py::test_nor_does_it_publish_at_a_tick_before_that[bench0]")
def a_tick_on_a_ledger_that_was_not_walked() -> None:
    """A worker that starts publishes what another has parked, and believes the ledger."""
    from service.worker.ticker import Ticker

    rewrite(Ticker._is_ready, (" and self._audit.look(stream, also)", ""))


@bug(f"{_WALKS}::test_a_note_that_does_not_fit_is_not_believed[another ledger]")
def a_note_of_another_ledger() -> None:
    """A walk of a ledger vouches for the one that was put in its place."""
    from service.ledger import high_water_mark

    rewrite(high_water_mark.walked_ago, (" or not holds(connection, mark, stream)", ""))


@bug(f"{_WALKS}::test_a_note_that_does_not_fit_is_not_believed[old]")
def a_note_that_holds_for_ever() -> None:
    """Nobody walks a ledger again as long as workers are restarted often enough."""
    from service.worker.audit import Audit

    rewrite(Audit._vouched_for, ("not 0 <= age < SECONDS_BETWEEN_AUDITS", "False"))


@bug(f"{_WALKS}::test_after_a_note_the_whole_ledger_is_walked_all_the_same")
def a_note_in_the_place_of_a_walk() -> None:
    """The audit misses changes since the walk that the note records."""
    from service.worker.audit import Audit

    rewrite(Audit.look, ("self._waiting[stream] = None", "pass"))
    rewrite(
        Audit._vouched_for,
        ("self._due.setdefault(log, 0.0)", "self._due[log] = time.monotonic() + SECONDS_BETWEEN_AUDITS"),
    )


@bug(f"{_WALKS}::test_every_stream_that_is_older_than_its_mark_is_named")
def one_old_stream_that_hides_the_others() -> None:
    """Numbers are given again on a stream that was put back together with another one."""
    from service.ledger import high_water_mark

    rewrite(
        high_water_mark.behind_of_each,
        ("and (lost := _lost(mark, now))", "and not reasons and (lost := _lost(mark, now))"),
    )
