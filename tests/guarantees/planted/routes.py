"""Bugs in what routes of the API look at before they answer."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_EXPLORER = "tests/api/test_explorer.py"
_TABLE = f"{_EXPLORER}::test_a_table_has_the_settings_of_each_line_and_scores_in_the_last_row_of_each_run"


@bug("tests/api/test_access.py::test_a_limited_admin_can_revoke_no_key")
def a_limited_administrator_who_revokes_the_keys_of_others() -> None:
    """An administrator of one stream locks everybody out of all others."""
    from service.api.routes import keys

    rewrite(keys.revoke_key, ("_unlimited(admin)", "pass"))


@bug("tests/api/test_sessions.py::test_a_revoked_key_is_dead_where_it_is_remembered_and_no_notification_comes")
def a_revoked_key_that_goes_on_until_a_notification_comes() -> None:
    """A thief goes on after an administrator was told that the key is revoked."""
    from service.api.routes import keys

    rewrite(keys.revoke_key, ("shared.keys.look_again()", "pass"))


@bug("tests/api/test_services.py::test_one_idempotency_key_runs_at_once_on_two_streams_and_only_once_on_each")
def one_idempotency_key_for_all_streams() -> None:
    """A producer that names its batches alike on two streams is refused on one of them."""
    from service.api.routes import records

    rewrite(records._running, ('request = f"{stream.log}:{scope}"', "request = scope"))


@bug("tests/api/test_labels.py::test_who_waits_looks_again_for_what_another_let_lie")
def a_record_that_lies_until_another_one_comes() -> None:
    """Somebody took a record and went home, and others who wait do not get it."""
    from service.api.routes import labels

    rewrite(labels.next_label_request, ("min(left, LOOK_AGAIN_SECONDS)", "left"))


@bug(_TABLE)
def a_table_with_the_scores_in_the_first_row() -> None:
    """Scores of the last model stand beside the number of records of the first one."""
    from service.api.routes import explorer

    rewrite(explorer.get_table, ("number == len(each.curve)", "number == 1"))


@bug(_TABLE)
def a_table_whose_rows_are_all_of_the_first_line() -> None:
    """Somebody chooses a mechanism by the results of another one."""
    from service.api.routes import explorer

    rewrite(explorer.get_table, ('["lines"][each.line]', '["lines"][0]'))


@bug(f"{_EXPLORER}::test_the_column_of_classes_is_the_one_that_is_named")
def a_column_of_classes_that_is_named_in_vain() -> None:
    """Another column is predicted than was asked for."""
    from service.api.routes import explorer

    rewrite(explorer.add_dataset, ("datasets.read_csv(body, label)", "datasets.read_csv(body)"))


@bug(f"{_EXPLORER}::test_only_so_many_comparisons_wait")
def comparisons_without_bound() -> None:
    """One key keeps the explorer busy for weeks."""
    from service.api.routes import explorer

    rewrite(explorer.explore, ("most_waiting=MOST_UNDER_WAY", "most_waiting=2**31"))


@bug(f"{_EXPLORER}::test_the_run_under_way_counts_as_far_as_it_is")
def a_comparison_that_stands_still_for_a_whole_run() -> None:
    """Somebody cancels it, because it seems to hang."""
    from service.api.routes import explorer

    rewrite(explorer._info, ("exploration.done + running", "exploration.done"))


@bug(f"{_EXPLORER}::test_what_cannot_run_is_refused_by_its_field[change5-lines.1.learner.kind]")
def lines_of_which_the_first_one_alone_is_looked_at() -> None:
    """A comparison is taken that fails minutes later."""
    from service.api.routes import explorer

    rewrite(explorer.explore, ("range(len(request.lines))", "range(1)"))
