"""Bugs in evaluations: which slots they read, which versions they use, and how far one record moves their counts."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_EVALUATION = "tests/mechanisms/evaluation"
_FIGURES = "tests/figures"


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


_SLOTS = "tests/worker/test_evaluation_slots.py"


@bug(f"{_SLOTS}::test_a_worker_fits_no_evaluation_slot")
def a_fit_of_evaluation_slots() -> None:
    """Such a slot is charged by fits and by evaluations, each for all of the budget."""
    from service.segments import records

    rewrite(records.load, ("_may_be_read(located) if pattern", "np.ones(stop - start, dtype=bool) if pattern"))


_RUNNING = "tests/worker/test_evaluating.py"


@bug(f"{_RUNNING}::test_verify_finds_noise_for_one_publication_of_several")
def a_joint_sensitivity_that_nobody_recomputes() -> None:
    """Noise for the counts of one publication is taken for that of all."""
    from service.ledger.verify import released

    rewrite(released._for_what_it_is_added_to, ("isinstance(event, NoisyCounts)", "False"))


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


@bug(f"{_EVALUATION}/test_mechanism.py::test_how_many_slots_there_are_is_the_same_whatever_a_record_holds[nan]")
def slots_that_are_counted_by_what_they_hold() -> None:
    """How many records are not finite is released without noise."""
    from service.mechanisms.evaluation.mechanism import Evaluation

    rewrite(Evaluation._block, ("present += int(evaluated.sum())", "present += int(filled.sum())"))
