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


_FIGURES = "tests/explorer/test_figures.py"
_LINE = f"{_FIGURES}::test_a_line_has_the_norm_and_the_features_of_its_comparison"
_NO_MODEL = f"{_FIGURES}::test_what_needs_no_model_is_said_where_no_model_is_better"


@bug(_LINE)
def a_comparison_of_records_of_length_one() -> None:
    """A comparison shows other noise than a stream with the same norm_bound gets."""
    from service.explorer import comparison

    rewrite(comparison.mechanism, ("norm_bound=comparison.norm_bound", "norm_bound=1.0"))


@bug(_LINE)
def a_comparison_without_its_feature_map() -> None:
    """Mechanisms are compared on other features than were asked for."""
    from service.explorer import comparison

    rewrite(comparison.mechanism, ("feature_map=comparison.feature_map", "feature_map=None"))


@bug(f"{_FIGURES}::test_without_noise_it_is_fitted_to_the_records_that_the_release_stands_for")
def a_fit_without_noise_to_the_last_batch_alone() -> None:
    """Privacy seems to cost nothing, since the model beside it has seen a few records only."""
    from service.explorer import comparison

    rewrite(comparison.run, ("slice(*release.window)", "slice(*release.fit)"))


@bug(f"{_FIGURES}::test_fits_without_noise_are_the_same_in_any_unit")
def a_pull_without_noise_in_other_units() -> None:
    """The longer records may be, the better the model without noise seems beside the others."""
    from service.explorer import comparison

    rewrite(comparison._without_noise, (" * learner.norm_bound**2", ""))


@bug(f"{_FIGURES}::test_a_release_that_is_followed_at_the_next_checkpoint_is_not_shown")
def a_checkpoint_with_the_release_before() -> None:
    """A curve shows an old model beside the number of records of a newer one."""
    from service.explorer import comparison

    rewrite(comparison.run, ("ends[next_end] >= min(", "ends[next_end] > min("))


@bug(f"{_FIGURES}::test_a_line_that_no_noise_can_protect_says_so")
def a_comparison_that_fails_with_one_of_its_lines() -> None:
    """Nothing is found of all other lines, since one can't be made private."""
    from service.explorer import comparison

    rewrite(comparison.run, ("except (Inaccurate, Unaffordable) as", "except Inaccurate as"))


@bug(f"{_FIGURES}::test_a_process_runs_what_is_not_done_yet")
def runs_that_are_done_again() -> None:
    """A comparison that a worker takes over begins anew, and never ends where workers are restarted often."""
    from service.explorer import __main__ as process

    rewrite(process.main, ('if number in request["done"]:', "if False:"))


@bug(f"{_FIGURES}::test_classes_are_numbered_in_the_order_of_their_names")
def classes_in_the_order_in_which_they_come() -> None:
    """Precision and recall are of the other class where the first record has it."""
    from service.explorer import datasets

    rewrite(datasets.read_csv, ("sorted(set(labels))", "list(dict.fromkeys(labels))"))


@bug(_NO_MODEL)
def a_baseline_that_knows_the_label() -> None:
    """Advice says that no model is needed, for data that need one."""
    from service.explorer import advice

    rewrite(advice._baselines, ("sample.y[_first(sample) - 1 : -1]", "sample.y[_first(sample) :]"))


@bug(_NO_MODEL)
def a_baseline_that_nobody_hears_of() -> None:
    """A mechanism is recommended that is worse than a guess, without a word."""
    from service.explorer import report

    rewrite(report.report, ("if baseline >= best.score:", "if False:"))


@bug(_NO_MODEL)
def a_weaker_baseline_than_there_is() -> None:
    """The same, since the worst guess is told in place of the best one."""
    from service.explorer import report

    rewrite(report.report, ("max(advice.baselines.items()", "min(advice.baselines.items()"))


@bug(_NO_MODEL)
def a_price_of_privacy_that_is_a_hundredth_of_it() -> None:
    """Privacy seems to cost half a point where it costs fifty."""
    from service.explorer import report

    rewrite(report.report, ("100 * advice.loss", "advice.loss"))


@bug(_NO_MODEL)
def candidates_that_are_left_out_without_a_word() -> None:
    """Nobody knows that the usual mechanism was not measured."""
    from service.explorer import report

    rewrite(
        report.report,
        ('lines += [f"left out: {reason}" for reason in advice.left_out]', "pass"),
    )


@bug(_NO_MODEL)
def advice_that_fails_with_one_of_its_candidates() -> None:
    """There is no advice, since one candidate can't be made private."""
    from service.explorer import advice

    rewrite(advice.advise, ("(Refused, Inaccurate, Unaffordable)", "(Refused, Inaccurate)"))


@bug(f"{_FIGURES}::test_a_batch_is_no_larger_than_memory_should_hold")
def a_batch_of_a_fortieth_of_any_sample() -> None:
    """Advice on a long file recommends a release after more records than a fit should hold."""
    from service.explorer import advice

    rewrite(advice.advise, ("min(MOST_BATCH, max(LEAST_BATCH,", "max(0, max(LEAST_BATCH,"))


@bug(f"{_FIGURES}::test_only_so_many_records_are_predicted[3]")
def records_without_number_that_are_predicted() -> None:
    """Each of many models predicts a fifth of a large data set, and a comparison takes days."""
    from service.explorer import comparison

    rewrite(comparison.run, ("[:MOST_JUDGED]", ""))
