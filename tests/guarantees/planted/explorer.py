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
