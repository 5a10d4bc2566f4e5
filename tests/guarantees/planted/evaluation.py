"""Bugs in evaluations: which slots they read, which versions they use, and how far one record moves their counts."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_EVALUATION = "tests/mechanisms/evaluation"


@bug(
    f"{_EVALUATION}/test_tables.py::"
    "test_one_record_moves_the_counts_of_all_publications_as_far_as_stated_and_no_farther[2 tables]"
)
def noise_for_one_publication_of_several() -> None:
    """The sensitivity is that of one table, and all tables together are released."""
    from service.mechanisms.evaluation.tables import ClassCounts

    rewrite(ClassCounts.change.fget, ("self.publications * (1 + self.bins)", "(1 + self.bins)"))  # type: ignore[attr-defined]


@bug(
    f"{_EVALUATION}/test_tables.py::"
    "test_one_record_moves_the_counts_of_all_publications_as_far_as_stated_and_no_farther[bins]"
)
def bins_that_nobody_pays() -> None:
    """The bins are released beside the table, and the noise is for the table."""
    from service.mechanisms.evaluation.tables import ClassCounts

    rewrite(ClassCounts.change.fget, ("(1 + self.bins)", "1"))  # type: ignore[attr-defined]


@bug(
    f"{_EVALUATION}/test_tables.py::"
    "test_one_record_moves_the_counts_of_all_publications_as_far_as_stated_and_no_farther[shortened]"
)
def shortened_records_counted_for_nothing() -> None:
    """Counts of shortened records are released beside the table, and the noise is for the table."""
    from service.mechanisms.evaluation.tables import ClassCounts

    rewrite(ClassCounts.change.fget, ("moved + self.publications * self.shortened", "moved"))  # type: ignore[attr-defined]


@bug(f"{_EVALUATION}/test_tables.py::test_verify_recomputes_the_same_change_from_what_a_release_says")
def a_verifier_that_forgets_shortened_records() -> None:
    """It takes too little noise for enough."""
    from service.ledger.verify import counted

    rewrite(counted.change_of, ('publications if model.get("shortened", False) else 0', "0"))


@bug(f"{_EVALUATION}/test_tables.py::test_an_empty_slot_adds_nothing[all]")
def an_empty_slot_that_is_counted() -> None:
    """It counts as a record of class 0: whether a slot came empty is public then."""
    from service.mechanisms.evaluation.tables import ClassCounts

    right = "y = np.where(known, labels, 0).astype(np.int64)"
    rewrite(ClassCounts.count, (right, f"{right}; known = np.ones_like(known)"))


@bug(f"{_EVALUATION}/test_mechanism.py::test_versions_do_not_depend_on_what_was_released_since")
def the_version_that_is_newest_by_the_clock() -> None:
    """A block that is counted late uses models that were fitted to its records."""
    from service.mechanisms.evaluation import models

    rewrite(models.version_used, (" and each.time <= first_slot", ""))


@bug(f"{_EVALUATION}/test_mechanism.py::test_a_greater_version_of_an_earlier_time_is_not_the_newest")
def the_greatest_version_of_any_time() -> None:
    """Versions are numbered as they are made, not by what they stand for."""
    from service.mechanisms.evaluation import models

    rewrite(models.version_used, ("max(usable)[1]", "max(version for _, version in usable)"))


@bug(f"{_EVALUATION}/test_mechanism.py::test_a_block_waits_until_a_publication_has_passed_its_first_slot_or_has_ended")
def a_block_that_does_not_wait() -> None:
    """Which version it uses depends on which worker was faster."""
    from service.mechanisms.evaluation import models

    rewrite(models.has_passed, ("progress.ended or progress.passed >= first_slot", "True"))


@bug("tests/streams/test_slots.py::test_a_range_is_split_into_evaluation_and_training_slots")
def evaluation_slots_counted_as_training_slots() -> None:
    """A fit's n, and so its noise, is that of records it does not read."""
    from service.streams.slots import EvaluationSlots

    rewrite(EvaluationSlots.training, ("stop - start - self.evaluation(start, stop)", "stop - start"))


@bug(f"{_EVALUATION}/test_mechanism.py::test_a_step_shows_models_the_evaluation_slots_of_its_block_and_no_other[7]")
def training_slots_that_are_evaluated() -> None:
    """Slots are counted from the publication's start: other slots than those that no fit reads."""
    from service.mechanisms.evaluation.mechanism import Evaluation

    rewrite(Evaluation._block, ("records.in_slots(start, stop) + self.start", "records.in_slots(start, stop)"))


@bug(
    f"{_EVALUATION}/test_intervals.py::test_a_share_narrows_with_records_and_widens_with_noise_and_with_what_may_be_missed"
)
def blocks_added_up_with_the_noise_of_one() -> None:
    """Each block brings noise of its own."""
    from service.mechanisms.evaluation import intervals

    rewrite(intervals._least, ("cells * counted.blocks", "cells"))


_SLOTS = "tests/worker/test_evaluation_slots.py"


@bug(f"{_SLOTS}::test_a_worker_fits_no_evaluation_slot")
def a_fit_of_evaluation_slots() -> None:
    """Such a slot is charged by fits and by evaluations, each for all of the budget."""
    from service.publishing import records

    rewrite(records.load, ("_may_be_read(located) if pattern", "np.ones(stop - start, dtype=bool) if pattern"))


@bug(f"{_SLOTS}::test_a_range_is_read_without_the_slots_of_the_other_kind[True-rest1]")
def an_evaluation_of_training_slots() -> None:
    """A slot that models were fitted to is counted, too."""
    from service.publishing import records

    rewrite(records._may_be_read, ("evaluated if located.evaluates else ~evaluated", "~evaluated | located.evaluates"))


@bug("tests/worker/test_large_fits.py::test_blocks_hold_training_slots_alone")
def blocks_of_all_slots() -> None:
    """A fit that is too large for memory reads evaluation slots, too."""
    from service.publishing import blocks

    rewrite(blocks.part_of, ("replace(located, ", "replace(located, period=None, "))


_RUNNING = "tests/worker/test_evaluating.py"


@bug(f"{_RUNNING}::test_a_block_waits_until_every_publication_has_passed_its_first_slot")
def an_evaluation_that_waits_for_nobody() -> None:
    """Which version is counted depends on which worker was faster."""
    from service.worker.turn import Turn

    rewrite(Turn.is_due, ("and self.mechanism.is_ready(self.time_due())", ""))


@bug(f"{_RUNNING}::test_verify_finds_noise_for_one_publication_of_several")
def a_joint_sensitivity_that_nobody_recomputes() -> None:
    """Noise for the counts of one publication is taken for that of all."""
    from service.ledger.verify import released

    rewrite(released._for_what_it_is_added_to, ("isinstance(event, NoisyCounts)", "False"))


@bug("tests/mechanisms/test_memory.py::test_no_record_makes_a_step_hold_more[evaluated]")
def blocks_that_a_long_record_copies() -> None:
    """A block is predicted at once, and copied where a record is so long that it has to be shortened first."""
    from service.mechanisms.evaluation import predicting

    predicting._AT_ONCE = 2**62


@bug(f"{_RUNNING}::test_of_a_publication_that_has_ended_the_newest_model_is_counted[stopped]")
def an_ended_publication_whose_newest_model_is_not_confirmed() -> None:
    """The version that is counted depends on when the worker looks."""
    from service.publishing.evaluated import ReleasedModels

    rewrite(ReleasedModels.progress, (" and (publication.visible_version or 0) == publication.version", ""))


@bug("tests/mechanisms/test_units.py::test_all_records_of_a_unit_together_move_counts_as_far_as_one[evaluation]")
def a_unit_that_is_counted_once_in_each_piece_of_a_block() -> None:
    """A block that is read in several pieces counts a unit in all of them."""
    from service.mechanisms.evaluation.mechanism import Evaluation

    rewrite(Evaluation._block, ("AT_ONCE if self.unit is None else time - begin", "AT_ONCE"))


@bug(f"{_EVALUATION}/test_tables.py::test_no_record_moves_the_sums_farther_than_stated")
def an_error_that_counts_more_than_the_largest() -> None:
    """A record whose label is far beyond the bound moves a sum twice as far as its noise is for."""
    from service.mechanisms.evaluation.tables import ErrorSums

    rewrite(ErrorSums.count, ("share <= 1.0", "share <= 2.0"))


_ALL_CLASSES = f"{_EVALUATION}/test_figures.py"


@bug(f"{_ALL_CLASSES}::test_an_end_that_must_hold_for_all_classes_at_once_is_as_much_less_often_missed")
def a_commonest_class_that_is_surer_than_its_classes() -> None:
    """With many classes one of the lower ends is too great far more often than stated, and so is the greatest."""
    from service.mechanisms.evaluation.figures import ClassFigures

    rewrite(ClassFigures.commonest, ("self.counted.error / classes", "self.counted.error"))


@bug(f"{_ALL_CLASSES}::test_an_end_that_must_hold_for_all_classes_at_once_is_as_much_less_often_missed")
def a_lift_that_is_surer_than_its_classes() -> None:
    """The same, of how much better a model is than the commonest class."""
    from service.mechanisms.evaluation.figures import ClassFigures

    rewrite(ClassFigures.lift, ("self.counted.error / classes", "self.counted.error"))


@bug(f"{_EVALUATION}/test_training_slots.py::test_an_evaluation_of_more_counts_than_a_release_may_have_is_refused")
def too_many_counts_that_are_an_error_of_the_service() -> None:
    """Those who ask for them are answered 500, without what to change."""
    from service.mechanisms.evaluation import family

    rewrite(family._counts, ("except ValueError as problem:", "except KeyError as problem:"))


@bug(f"{_EVALUATION}/test_mechanism.py::test_how_many_slots_there_are_is_the_same_whatever_a_record_holds[nan]")
def slots_that_are_counted_by_what_they_hold() -> None:
    """How many records are not finite is released without noise."""
    from service.mechanisms.evaluation.mechanism import Evaluation

    rewrite(Evaluation._block, ("present += int(evaluated.sum())", "present += int(filled.sum())"))


@bug(
    f"{_EVALUATION}/test_predicting.py::"
    "test_only_scores_that_are_probabilities_say_how_sure_a_model_is[huber_hinge-False]"
)
def scores_of_a_hinge_that_count_as_probabilities() -> None:
    """A calibration error is told of a model that has no probabilities."""
    from service.mechanisms.evaluation import predicting

    rewrite(predicting.predictions, ("confidences if certain else None", "confidences"))


@bug(f"{_EVALUATION}/test_drift.py::test_an_alarm_is_as_rare_as_it_is_asked_to_be")
def an_alarm_at_the_rate_of_a_figure() -> None:
    """One block in twenty raises it where nothing has changed, and nobody believes the next one."""
    from service.mechanisms.evaluation import drift

    rewrite(drift._accuracy, ("replace(counted, error=rate)", "counted"))


_INTERVALS = f"{_EVALUATION}/test_intervals.py"


@bug(f"{_INTERVALS}::test_noise_of_several_blocks_is_that_of_as_many_cells")
def errors_of_several_blocks_with_the_noise_of_one() -> None:
    """The interval of a mean error holds it far less often than stated."""
    from service.mechanisms.evaluation.intervals import Counted

    rewrite(Counted.mean, ("total(self.noise, self.blocks, ", "total(self.noise, 1, "))


@bug(f"{_INTERVALS}::test_each_of_several_ratios_has_its_part_of_what_may_be_missed_where_one_is_open")
def ratios_that_are_each_missed_as_often_as_all_together() -> None:
    """With many classes the interval of a balanced accuracy holds it less often than stated."""
    from service.mechanisms.evaluation.intervals import Counted

    rewrite(Counted.mean_ratio, ("self.error / len(parts)", "self.error"))


@bug(f"{_ALL_CLASSES}::test_r_squared_may_be_missed_as_often_as_its_three_sums_together")
def three_sums_that_are_each_missed_as_often_as_all_together() -> None:
    """The same, of R²."""
    from service.mechanisms.evaluation.figures import ErrorFigures

    rewrite(ErrorFigures.r_squared, ("self.counted.error / 3", "self.counted.error"))


@bug(f"{_ALL_CLASSES}::test_how_much_errors_vary_is_bounded_by_the_noise_of_all_blocks_together")
def errors_that_vary_as_those_of_one_block_may() -> None:
    """How much errors vary is said to be known better than noise allows."""
    from service.mechanisms.evaluation.figures import ErrorFigures

    rewrite(ErrorFigures._mean, (" * math.sqrt(self.counted.blocks) / whole", " / whole"))


_SCORES = f"{_EVALUATION}/test_score_noise.py"


@bug(f"{_SCORES}::test_a_tilted_objective_has_the_noise_of_its_output_too")
def a_tilt_without_the_noise_of_its_output() -> None:
    """A prediction is called certain that noise may have flipped."""
    from service.mechanisms.evaluation import score_noise

    rewrite(score_noise.reach, ('(_of_weights(noise["output"], error / 2) or 0.0)', "0.0"))


@bug(f"{_SCORES}::test_a_probability_is_between_what_all_other_classes_scores_may_have_become")
def probabilities_whose_differences_are_each_missed_as_often_as_all() -> None:
    """The interval of a probability holds it less often than stated, the more classes there are."""
    from service.mechanisms.evaluation import score_noise

    rewrite(score_noise.score_noise, ("moved(error / others, differences=True)", "moved(error, differences=True)"))


@bug(
    "tests/mechanisms/evaluation/test_figures.py::"
    "test_an_end_that_must_hold_for_all_classes_at_once_is_as_much_less_often_missed"
)
def a_lift_with_the_noise_of_half_its_cells() -> None:
    """Its interval allows for the noise in right predictions alone."""
    from service.mechanisms.evaluation.figures import ClassFigures

    rewrite(ClassFigures.lift, ("strict.difference(plus, minus, 2 * (", "strict.difference(plus, minus, ("))
