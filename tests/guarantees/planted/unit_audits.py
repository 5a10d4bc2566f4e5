"""Bugs of units that audits of releases must notice."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite
from tests.guarantees.planted.units import (
    a_slot_that_is_charged_what_its_unit_was_promised,
    gradients_that_each_record_of_a_unit_adds_whole,
)

_AUDIT = "tests/guarantees/test_unit_audits.py::test_nobody_can_tell_two_persons_apart_better_than_promised"


@bug(f"{_AUDIT}[independent_batches]")
def a_person_who_is_protected_as_a_record_is() -> None:
    """The capacity is not divided by the group factor; an audit of released models has to notice."""
    a_slot_that_is_charged_what_its_unit_was_promised()


@bug(f"{_AUDIT}[online_leader]")
def a_person_who_is_protected_as_a_record_is_where_noise_is_carried_on() -> None:
    """The same, where a unit's records add up in later releases."""
    a_slot_that_is_charged_what_its_unit_was_promised()


@bug("tests/mechanisms/active_learning/test_units.py::test_slots_that_do_not_count_have_no_coin[fixed_batch]")
def parts_of_a_unit_by_the_records_that_are_there() -> None:
    """An empty slot of a unit makes its other records weigh more."""
    from service.mechanisms.active_learning.mechanism import ActiveLearning

    rewrite(
        ActiveLearning._gathered,
        ("contributions(places)[np.concatenate(there)]", "contributions(places[np.concatenate(there)])"),
    )


@bug("tests/mechanisms/lifelong/test_units.py::test_all_records_of_a_unit_move_a_step_of_the_encoder_as_far_as_one")
def steps_of_an_encoder_that_each_record_of_a_unit_enters_whole() -> None:
    """Weights are forgotten where an encoder's gradients are summed up."""
    from service.mechanisms.lifelong.encoder_pass import EncoderPass

    rewrite(EncoderPass.summed, ("shares[mine] * self.clip", "self.clip"))


@bug(f"{_AUDIT}[independent_batches, all in one]")
def a_person_whose_records_in_a_batch_add_up() -> None:
    """Weights are forgotten where gradients are summed up, seen by somebody who looks at the releases."""
    gradients_that_each_record_of_a_unit_adds_whole()


@bug("tests/guarantees/test_unit_audits.py::test_nobody_can_tell_two_persons_apart_by_counts[evaluation]")
def a_person_who_is_counted_as_a_record_in_every_block() -> None:
    """The capacity is not divided by the group factor, so that each block costs a unit all that it was promised."""
    a_slot_that_is_charged_what_its_unit_was_promised()


_PARTS = "tests/guarantees/test_unit_parts.py::test_nobody_can_tell_two_persons_apart_by_a_part_better_than_promised"


@bug(f"{_PARTS}[updates, gaussian]")
def a_person_who_is_protected_as_a_record_is_when_its_records_are_selected() -> None:
    """The same, of updates from selected records."""
    a_slot_that_is_charged_what_its_unit_was_promised()


@bug(f"{_PARTS}[coins]")
def a_person_whose_coins_are_those_of_a_record() -> None:
    """The same, of the coins by which records are selected."""
    a_slot_that_is_charged_what_its_unit_was_promised()


@bug(f"{_PARTS}[answers]")
def a_person_who_is_protected_as_a_record_is_in_answers() -> None:
    """The same, of measured answers to linear queries."""
    a_slot_that_is_charged_what_its_unit_was_promised()


@bug(f"{_PARTS}[comparisons]")
def a_person_who_is_protected_as_a_record_is_in_comparisons() -> None:
    """The same, of what tells which query is hard."""
    a_slot_that_is_charged_what_its_unit_was_promised()
