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


@bug(f"{_WALKS}::test_a_stream_that_was_put_in_order_is_trusted_again_though_others_are_walked_with_it")
def a_stream_that_is_distrusted_for_ever() -> None:
    """A walk together with others leaves a verdict on a ledger that was put in order."""
    from service.worker.audit import Audit

    rewrite(Audit._walk_together, (" and each.distrusted is None]", "]"))


_TROUBLE = f"{_WALKS}::test_the_trouble_of_one_stream_holds_up_no_other_and_nobody_waits_for_each_other"


@bug(_TROUBLE)
def streams_that_are_too_many_to_be_confirmed_together() -> None:
    """Those beyond as many as are locked together are forgotten."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer.confirm_each, (", waiting[MOST_TOGETHER:]", ", []"))


@bug(_TROUBLE)
def a_stream_that_is_confirmed_no_more_for_the_trouble_of_another() -> None:
    """Where several streams could not be confirmed together, only the first is confirmed alone."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer.confirm_each, ("for stream in together", "for stream in together[:1]"))


@bug(_TROUBLE)
def an_error_on_one_stream_that_reaches_the_others() -> None:
    """The streams after it are not confirmed."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer._confirm_alone, ("except Exception", "except OSError"))


@bug(_TROUBLE)
def streams_that_are_locked_in_any_order() -> None:
    """Two processes wait for each other's marks for ever."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer.confirm_each, ("sorted(streams)", "list(streams)"))


@bug(f"{_WALKS}::test_who_confirms_outlives_a_database_that_is_away")
def a_failover_that_ends_who_confirms() -> None:
    """Nothing that a worker commits is seen at once any more."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer._confirm_waiting, ("except DatabaseUnavailable", "except OSError"))


_ITS_OWN_MARK = "tests/worker/test_restored.py::test_a_stream_whose_id_another_one_had_is_compared_with_its_own_mark"


@bug(f"{_ITS_OWN_MARK}[not walked]")
def a_walk_that_compares_with_the_mark_of_another_stream() -> None:
    """A database was put back in which an id is another stream's, and a sound stream is distrusted."""
    from service.worker.audit import Audit

    rewrite(Audit.walk, ("not self._confirmer.belongs(row)", "False"))


@bug(f"{_ITS_OWN_MARK}[walked]")
def a_publisher_that_compares_with_the_mark_of_another_stream() -> None:
    """The same where the stream that had the id was walked before."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer.belongs, ("known == stream.log", "True"))


@bug(f"{_WALKS}::test_every_stream_that_is_older_than_its_mark_is_named")
def one_old_stream_that_hides_the_others() -> None:
    """Numbers are given again on a stream that was put back together with another one."""
    from service.ledger import high_water_mark

    rewrite(
        high_water_mark.behind_of_each,
        ("and (lost := _lost(mark, now))", "and not reasons and (lost := _lost(mark, now))"),
    )


@bug(f"{_WALKS}::test_every_stream_that_is_older_than_its_mark_is_named")
def a_mark_without_a_timeline_that_ends_who_reads_it() -> None:
    """A mark that an older version wrote stops all streams, once one of them has lost something."""
    from service.ledger import high_water_mark

    rewrite(high_water_mark._why, ("mark.timeline is not None and ", ""))
