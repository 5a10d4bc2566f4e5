"""Bugs in who answers linear queries: which thresholds are compared with, by whom, and when."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_ANSWERING, _CLOSED = "tests/queries/test_answering.py", "tests/queries/test_closed_thresholds.py"
_RESTORED = "tests/queries/test_restored.py"


@bug(f"{_ANSWERING}::test_what_is_erased_counts_no_more")
def erased_records_that_count_on() -> None:
    """Counts are kept from before an erasure."""
    from service.queries.answering import Answerer

    rewrite(Answerer._count, ("held.erasures != held.newest_erasure or held.time > stop", "False"))


@bug(f"{_ANSWERING}::test_only_records_from_its_start_on_count_and_pay")
def records_from_before_the_start_that_count() -> None:
    """Records that were never charged are counted."""
    from service.queries.answering import Answerer

    rewrite(Answerer._count, ("state.stream, start, low, high", "state.stream, 0, low, high"))


@bug(f"{_CLOSED}::test_after_a_crash_the_open_instance_is_closed_first_for_a_new_charge")
def an_instance_that_a_dead_process_left_open() -> None:
    """A yes that died with a process is compared with again."""
    from service.queries.answering import Answerer

    rewrite(Answerer._hold, ("held.abandoned = True", "pass"))


@bug(f"{_CLOSED}::test_who_ends_in_order_leaves_the_instance_open_unless_a_yes_is_kept")
def a_lease_that_is_given_back_with_a_yes() -> None:
    """The next process compares with a threshold that has answered."""
    from service.queries.answering import Answerer

    rewrite(Answerer._give_back, (" or held.closing is not None or held.abandoned", ""))


@bug(f"{_ANSWERING}::test_with_a_threshold_from_a_backup_nothing_is_compared_even_before_a_worker_looks")
def a_threshold_from_a_backup() -> None:
    """A threshold that has answered since is compared with again."""
    from service.queries import instances

    rewrite(instances.read, ("trusted = not contradicted and _trusted(", "trusted = _trusted("))


@bug(f"{_ANSWERING}::test_with_a_threshold_that_is_not_as_it_was_left_nothing_is_compared")
def a_threshold_that_is_not_as_it_was_left() -> None:
    """An operator who changed it chooses the answers."""
    from service.queries import instances

    rewrite(instances._trusted, ("or not remembers(publication, mechanism, memory)", ""))


@bug(f"{_ANSWERING}::test_while_something_is_known_against_it_nothing_is_compared")
def a_distrusted_stream_whose_records_are_compared() -> None:
    """Queries go on to be measured though the ledger that they are charged in was found to be broken."""
    from service.queries import instances

    rewrite(instances._trusted, ("or publication.distrusted is not None", ""))


_MEANWHILE = f"{_ANSWERING}::test_what_is_found_against_it_while_a_query_is_measured_stops_the_commit"


@bug(f"{_MEANWHILE}[its mark]")
def an_answer_that_is_committed_to_an_older_database() -> None:
    """The mark has come further since the query was compared, and the answer is charged a second time."""
    from service.queries import instances

    rewrite(instances.close, ("        high_water_mark.check(connection, files, mark, stream)\n", ""))


@bug(f"{_ANSWERING}::test_records_whose_charge_is_not_confirmed_are_not_compared")
def records_that_are_compared_before_their_charge_is_confirmed() -> None:
    """A failover takes the charge back, and not what was answered."""
    from service.store import publications

    publications._SEE = (
        publications.select_all()
        .add_columns(~publications._UNRELEASED.exists(), publications._ERASURE.scalar_subquery())
        .where(publications.publications.c.id == publications.bindparam("publication"))
    )


@bug(f"{_MEANWHILE}[a finding]")
def a_yes_that_is_forgotten_while_nothing_is_compared() -> None:
    """Where nothing is compared any more, the threshold that has answered seems closed; it is compared with later."""
    from service.queries.instances import State

    rewrite(State.is_closed, ("self.trusted and ", ""))


@bug(f"{_CLOSED}::test_a_turn_counts_on_its_lease_only_as_long_as_the_database_says")
def a_lease_that_is_lost_and_counted_on() -> None:
    """In a long turn two processes compare with one threshold."""
    from service.queries.answering import Answerer

    rewrite(Answerer._keep_lease, ("renewed and held.lease is lease", "True"))


@bug(f"{_ANSWERING}::test_when_the_budget_is_spent_answers_go_on_and_say_so")
def a_last_answer_that_is_told_before_it_is_confirmed() -> None:
    """Anybody sees that the last instance was closed by a commit that may still be lost."""
    from service.queries.instances import State

    rewrite(State.frozen.fget, (" and self.confirmed", ""))  # type: ignore[attr-defined]


@bug(f"{_CLOSED}::test_after_a_yes_that_could_not_be_committed_nothing_is_compared_until_it_is[hold-nobody foresaw]")
def an_error_that_is_logged_word_for_word() -> None:
    """The text of an error that nobody foresaw may hold records."""
    from service.queries import answering

    rewrite(answering._log_failure, ("type(error).__name__", "str(error)"))


@bug(f"{_RESTORED}::test_records_that_a_restored_database_does_not_have_are_counted_no_more")
def records_that_count_though_their_database_is_gone() -> None:
    """Queries are compared with records that have not paid for it in the database that was put back."""
    from service.queries.answering import Answerer

    rewrite(Answerer._count, (" or held.time > stop", ""))
