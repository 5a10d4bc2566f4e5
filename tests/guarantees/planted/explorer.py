"""Bugs in advice on a public sample."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_BEST = "tests/explorer/test_advice.py::test_the_best_mean_score_with_noise_is_recommended_whatever_is_best_without"


@bug(_BEST)
def advice_by_scores_without_noise() -> None:
    """The mechanism that is recommended is the best one for those who need no privacy."""
    from service.explorer import advice

    rewrite(advice.advise, ("key=lambda each: each.score", "key=lambda each: each.without_noise"))


@bug(_BEST)
def advice_whose_price_of_privacy_is_measured_with_noise() -> None:
    """It says that privacy costs nothing."""
    from service.explorer import advice

    rewrite(advice.advise, ("_scores(schema, candidate, HARDLY_ANY_NOISE,", "_scores(schema, candidate, epsilon,"))


_FILES = "tests/explorer/test_sample_files.py"


@bug(f"{_FILES}::test_values_are_of_their_columns_in_whatever_order_they_come")
def values_in_the_order_in_which_they_come() -> None:
    """Advice is given on columns that are exchanged in some records."""
    from service.explorer import tables

    rewrite(tables._of_objects, ("[values[name] for name in names]", "[*values.values()]"))


@bug(f"{_FILES}::test_of_a_long_file_the_first_records_are_read")
def a_file_that_is_read_to_its_end() -> None:
    """Advice on a large file takes all memory."""
    from service.explorer import sample

    rewrite(sample.read_sample, ("islice(lines, MOST_RECORDS)", "lines"))


@bug("tests/explorer/test_datasets.py::test_the_column_of_classes_may_be_any")
def a_column_that_is_counted_from_nought() -> None:
    """Another column than was named is taken for that of classes."""
    from service.explorer import datasets

    rewrite(datasets._label_column, ("int(label) - 1", "int(label) - 2"))


@bug("tests/explorer/test_datasets.py::test_more_numbers_than_memory_should_hold_are_refused")
def a_table_of_any_size() -> None:
    """A small file of many columns and rows takes all memory."""
    from service.explorer import datasets

    rewrite(datasets._checked, (" or x.size > MOST_NUMBERS", ""))


@bug("tests/explorer/test_comparison.py::test_each_run_has_an_order_of_its_own_if_any_is_asked_for")
def one_order_for_all_runs() -> None:
    """Runs look alike since all of them see the records in one order."""
    from service.explorer import comparison

    rewrite(comparison.run, ("default_rng(cell.run)", "default_rng(0)"))


_EPSILON = "tests/explorer/test_comparison.py::test_a_run_has_its_own_epsilon_and_one_without_noise_the_largest"


@bug(_EPSILON)
def runs_that_all_have_the_largest_epsilon() -> None:
    """A comparison shows that privacy costs nothing, however little may be lost."""
    from service.explorer import comparison

    rewrite(comparison.run, ("cell.epsilon or float(max(comparison.epsilons))", "float(max(comparison.epsilons))"))


@bug(_EPSILON)
def a_run_without_noise_that_stands_and_falls_with_the_smallest_epsilon() -> None:
    """Where a line can't run at the smallest one, nothing without noise stands beside the others."""
    from service.explorer import comparison

    rewrite(comparison.run, ("float(max(comparison.epsilons))", "float(min(comparison.epsilons))"))


@bug("tests/explorer/test_comparison.py::test_a_line_ends_where_a_publication_would_halt")
def a_line_that_goes_on_where_a_publication_halts() -> None:
    """Somebody chooses a mechanism that would halt."""
    from service.explorer import comparison

    rewrite(comparison.releases, ("if step.halts is not None:", "if False:"))


_MARGIN = "tests/explorer/test_advice.py::test_a_score_is_known_to_two_standard_deviations"


@bug(_MARGIN)
def a_margin_of_one_standard_deviation() -> None:
    """One score in three is farther off than it says."""
    from service.explorer import advice

    rewrite(advice.advise, ("2.0 * float(private[0].std())", "float(private[0].std())"))


@bug(_MARGIN)
def a_margin_of_a_single_record() -> None:
    """A score that is known well looks as if nothing were known."""
    from service.explorer import advice

    rewrite(advice.advise, (" / math.sqrt(len(exact))", ""))
