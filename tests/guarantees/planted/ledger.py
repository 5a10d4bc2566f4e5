"""Bugs in the ledger: its chain of charges, its sums, what stays reserved, and the high-water mark."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_SPENDING = "tests/store/test_spending.py::test_every_sum_is_that_of_all_charges_record_by_record[fine-one kind]"
_HISTORIES = (
    "tests/privacy/test_budget.py::test_whoever_starts_and_stops_no_record_passes_the_budget_and_all_else_comes_back"
)
_CONFIRMATION = "tests/worker/test_confirmation.py"


@bug("tests/worker/test_audit.py::test_a_chain_that_does_not_end_as_it_was_left_is_not_added_to[head]")
def a_chain_that_goes_on_wherever_it_ends() -> None:
    """Charges that were cut off, or put in the place of others, are gone on from."""
    from service.ledger import charging

    rewrite(charging.charge, ("(last.id or 0, last.hash) != (stream.charges, stream.head)", "False"))


@bug("tests/worker/test_audit.py::test_a_chain_that_does_not_end_as_it_was_left_is_not_added_to[amount]")
def a_changed_charge_that_is_added_to() -> None:
    """The newest charge is not compared with its hash before another follows it."""
    from service.ledger import charging

    rewrite(charging.charge, ("last.id is not None and not intact(served(last))", "False"))


@bug("tests/worker/test_labelling.py::test_a_window_is_asked_for_waited_for_and_learnt_from")
def charges_that_are_no_chain() -> None:
    """Each charge is hashed by itself."""
    from service.ledger import charging

    rewrite(charging.charge, ('"previous_hash": previous,', '"previous_hash": None,'))


@bug(_SPENDING)
def a_budget_that_forgets_what_has_ended() -> None:
    """New publications may spend again what stopped ones have spent."""
    from service.ledger import reservations

    rewrite(
        reservations._reserved_from, ("total + ended[bisect_right(ended, record, key=itemgetter(0)) - 1][1]", "total")
    )


@bug(_SPENDING)
def a_budget_of_the_first_record_alone() -> None:
    """Records on which more is reserved from some later start on are not looked at."""
    from service.ledger import reservations

    rewrite(reservations._reserved_from, ("for each in running if each.start > start", "for each in ()"))


@bug(_SPENDING)
def a_budget_that_may_be_passed_in_delta() -> None:
    """The sum of reservations counts epsilon alone."""
    from service.ledger import reservations

    rewrite(
        reservations._reserved_from,
        (
            "budget.cap(each.accounting, each.epsilon, each.delta, units=each.unit_factor is not None)",
            "PrivacyLoss(epsilon=PrivacyLoss.of(each.epsilon, 0).epsilon)",
        ),
    )


@bug(_HISTORIES)
def a_budget_in_rho_that_gives_back_what_was_charged() -> None:
    """A publication that has ended keeps nothing reserved."""
    from service.privacy.accounting.composition import ZcdpComponent

    rewrite(ZcdpComponent.reserved_after_end, ("return self.loss(amount)", "return PrivacyLoss()"))


@bug(_HISTORIES)
def a_budget_in_rho_whose_pure_charges_are_half_squares() -> None:
    """A pure charge counts ε²/2 when it is spent, and ε·tanh(ε/2) when it is reserved."""
    from service.privacy.accounting.composition import ZcdpComponent

    rewrite(
        ZcdpComponent.loss,
        (
            "in_rho(self.currency, self.factor * amount, units=self.units)",
            "self.currency.worth(amount)",
        ),
    )


@bug("tests/api/test_unit_publications.py::test_no_unit_has_spent_more_than_is_said_of_all[gaussian]")
def a_unit_that_has_spent_what_one_of_its_records_has() -> None:
    """A stream with units is shown with what the worst record has spent, wherever the others of its unit are."""
    from service.ledger import summaries

    rewrite(summaries._spent, ("worst.at_least(every.at_most(worst + gaussian))", "worst"))


@bug(_HISTORIES)
def a_budget_in_rho_that_asks_publications_in_the_place_of_records() -> None:
    """The charges of ended publications count at their worst record, wherever that is."""
    from service.privacy.accounting import composition

    everywhere = "[Range(start=0, end=None, spent=PrivacyLoss(), reserved=worst(each.reserved for each in ranges))]"
    rewrite(composition.worst_from, ("for stretch in ranges:", f"for stretch in {everywhere}:"))


@bug("tests/privacy/test_budget.py::test_a_publication_by_its_epsilon_and_delta_reserves_their_rho")
def a_delta_that_is_added_twice() -> None:
    """A publication reserves the ρ that implies its ε at twice its δ."""
    from service.privacy.accounting import budget

    rewrite(budget.cap, ("capacity(epsilon, delta)", "capacity(epsilon, 2 * delta)"))


@bug("tests/privacy/test_budget.py::test_what_is_shown_is_rounded_against_the_budget")
def a_delta_that_is_not_added() -> None:
    """A ρ is shown as its ε at δ = 1/2, not at the δ of the budget."""
    from service.privacy.accounting.budget import Budget

    rewrite(Budget._delta.fget, ("Fraction(self.delta) - LARGEST_DELTA", "Fraction(1, 2)"))


@bug("tests/api/test_budget_in_rho.py::test_all_draws_together_stay_within_the_slack")
def a_slack_that_is_left_out() -> None:
    """Publications are admitted whatever their draws add to δ."""
    from service.ledger import admission

    rewrite(admission.admit, ("not is_small(Fraction(stream.epsilon), draws)", "False"))


@bug("tests/store/test_spending.py::test_every_sum_is_that_of_all_charges_record_by_record[in rho-one kind]")
def a_budget_in_rho_that_misses_a_range() -> None:
    """Only the last of the charges on several ranges counts."""
    from service.ledger import spending

    rewrite(spending.count, ("for low, high, amount in new:", "for low, high, amount in new[-1:]:"))


@bug("tests/store/test_verify.py::test_a_publication_that_was_changed_stays_so_when_it_ends")
def an_end_that_mends_a_seal() -> None:
    """An attacker who changed a publication has it sealed anew by stopping it."""
    from service.ledger import ending

    rewrite(ending.end, ("if publications.is_untampered(publication):", "if True:"))


@bug(
    f"{_CONFIRMATION}::test_a_database_that_lacks_what_the_mark_holds_is_distrusted_before_anything_is_drawn[erasures]"
)
def a_mark_without_erasures() -> None:
    """A backup from before an erasure brings the erased records back."""
    from service.ledger import high_water_mark

    rewrite(
        high_water_mark._lost, ('("records", "erasures", "charges", "releases")', '("records", "charges", "releases")')
    )


@bug(f"{_CONFIRMATION}::test_where_there_was_a_mark_and_is_none_nothing_is_published")
def a_mark_that_may_be_missing() -> None:
    """On an empty folder everything is as if nothing had ever been seen."""
    from service.ledger import high_water_mark

    rewrite(high_water_mark.compare, ("elif stream.marked and", "elif False and"))


@bug("tests/worker/test_restored.py::test_what_can_not_be_read_is_no_leave_to_publish[]")
def a_mark_that_may_be_unreadable() -> None:
    """A mark that can't be read is none."""
    from service.ledger import high_water_mark

    rewrite(high_water_mark.compare, ("if stored[stream.log] is not None:", "if False:"))


@bug("tests/worker/test_audit.py::test_a_chain_that_does_not_end_as_it_was_left_is_not_added_to[head]")
def a_distrusted_stream_that_is_published_on() -> None:
    """The worker says that a ledger does not verify, and publishes on."""
    from service.publishing import commit
    from service.store import due_steps
    from service.worker.publication_state import PublicationState

    rewrite(due_steps._due, ("streams.c.distrusted.is_(None),", ""))
    rewrite(PublicationState.is_due, ("and self.stream.distrusted is None", ""))
    rewrite(commit.check, ("entry.stream.distrusted is not None", "False"))


_KINDS = "tests/store/test_spending.py::test_every_sum_is_that_of_all_charges_record_by_record[fine-both kinds]"


@bug(_KINDS)
def both_kinds_of_slots_on_one_account() -> None:
    """An evaluation is charged to slots that it never reads."""
    from service.ledger import spending

    rewrite(spending._of_kind, ("if each[0].slots is slots", ""))


@bug(_KINDS)
def evaluation_slots_that_reserve_nothing() -> None:
    """Evaluations may be asked for until all of a record is told."""
    from service.ledger import reservations

    rewrite(
        reservations.reserved_of_each,
        ("for kind in Slots if slots is None else (slots,)", "for kind in (Slots.TRAINING,)"),
    )


@bug("tests/store/test_spending.py::test_each_kind_of_slots_holds_the_whole_budget_by_itself")
def an_evaluation_that_ends_gives_back_what_it_spent() -> None:
    """The check looks up what ended publications keep for the slots of fits alone."""
    from service.ledger import reservations

    rewrite(reservations.refused, ("kept_stairs(connection, stream.id, slots)", "[(0, PrivacyLoss())]"))


@bug("tests/store/test_spending.py::test_the_tighter_bound_counts_what_is_reserved_and_what_ended_ones_spent")
def a_unit_that_is_bounded_by_what_one_of_its_records_paid() -> None:
    """A unit's records may have been charged by an ended publication up to its whole cap together."""
    from service.ledger import reservations

    rewrite(reservations._tighter, ("if reserves_wholly(each)", 'if each.state == "running"'))


@bug("tests/store/test_spending.py::test_verify_finds_charges_that_are_counted_on_slots_of_the_other_kind[training]")
def fits_that_are_charged_to_evaluation_slots() -> None:
    """So a fit and another fit may each have all of a record."""
    from service.ledger.verify import promises

    rewrite(promises.of_slots, ("if publication.slots is not expected", "if False"))


_HALT = "tests/worker/test_confirmation.py::test_a_halt_is_seen_only_once_what_it_charged_is_confirmed"


@bug(_HALT)
def an_end_that_is_shown_before_its_charge_is_confirmed() -> None:
    """An end that fresh noise decided is seen, and the database may lose the charge that paid for it."""
    from service.ledger import ending

    rewrite(ending.end, ("streams.get(connection, publication.stream_id).all_confirmed", "True"))


@bug(_HALT)
def a_reservation_that_is_given_back_before_the_end_is_shown() -> None:
    """The budget that is left tells that a publication has halted."""
    from service.ledger import reserving

    rewrite(reserving.reserves_wholly, ('publication.visible_state == "running"', 'publication.state == "running"'))


@bug("tests/store/test_spending.py::test_verify_finds_draws_that_add_too_much_to_a_budget_in_rho")
def draws_that_a_stop_gives_back() -> None:
    """An operator who stops and starts publications adds to δ without bound."""
    from service.ledger import reservations

    rewrite(reservations.drawn, (" or each.worst_amount", ""))


@bug("tests/worker/test_publishing.py::test_every_door_to_the_ledger_locks_what_it_says")
def a_step_that_is_charged_without_the_streams_lock() -> None:
    """Two publications charge at the same moment, and each adds to the chain that it read."""
    from service.store import locks

    locks._ALL = locks._ALL.with_for_update(of=(locks.lease_rows, locks.publication_rows))


@bug("tests/worker/test_publishing.py::test_every_door_to_the_ledger_locks_what_it_says")
def a_publication_that_is_ended_without_its_lock() -> None:
    """Another transaction charges for it meanwhile, as if it had not ended."""
    from service.store import locks

    locks._PUBLICATION = locks.publications.one()


@bug("tests/worker/test_labelling.py::test_who_did_not_pay_on_arrival_is_found")
def the_newest_charge_of_any_publication() -> None:
    """A model is published for what the records of another publication have paid."""
    from service.store import charges

    rewrite(charges.newest, (", charges.c.publication_id == publication.id", ""))


@bug("tests/store/test_spending.py::test_each_kind_of_slots_holds_the_whole_budget_by_itself")
def an_evaluation_that_is_admitted_by_what_fits_leave() -> None:
    """Evaluations start as long as training slots have budget, whatever evaluation slots have spent."""
    from service.ledger import admission

    rewrite(admission.admit, ("new.start, new.obligations.slots", "new.start"))


@bug("tests/api/test_budget_in_rho.py::test_pure_noise_counts_more_for_a_unit_than_for_a_record")
def pure_noise_that_is_reserved_for_a_unit_as_for_a_record() -> None:
    """On a stream with units a publication is admitted for less than it will charge."""
    from service.ledger import admission

    rewrite(admission.admit, (", units=new.obligations.unit is not None", ""))


@bug("tests/worker/test_units.py::test_slots_that_count_against_the_order_of_their_units_are_found")
def slots_of_an_erased_unit_that_nobody_verifies() -> None:
    """`ledger verify` finds nothing where an erased unit counts more often than it may."""
    from service.ledger.verify.unit_counts import Tally

    rewrite(Tally.add, ("np.where(erased, counting & ~due, counting != due)", "~erased & (counting != due)"))


@bug(_SPENDING)
def a_unit_that_is_shown_what_is_not_confirmed() -> None:
    """Somebody sees a charge of a unit that PostgreSQL may still forget."""
    from service.ledger import spending

    rewrite(spending.of_unit, ("charged += charged_rows.unconfirmed(connection, stream, start, stop)", "pass"))


@bug(_SPENDING)
def a_unit_whose_lost_slots_came_after_the_first_that_is_there() -> None:
    """Charges before that slot are not counted, though the lost slots may have paid them."""
    from service.ledger import spending

    rewrite(spending.of_unit, ("0 if lost.slots else slots[0]", "slots[0]"))


_RESTORED = "tests/worker/test_restored.py"
_LEFT = f"{_RESTORED}::test_a_row_that_is_not_of_the_newest_charge_and_release_is_written_down_nowhere"


@bug(f"{_LEFT}[head]")
def a_mark_of_a_charge_that_there_is_not() -> None:
    """The mark is written as a stream's row says that its chain ends, whatever the newest charge is."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer._committed, ("if each.id in otherwise", "if False"))


@bug(f"{_LEFT}[newest_release]")
def releases_that_no_mark_is_compared_with() -> None:
    """Another release of the same number is taken for the one that was seen."""
    from service.ledger import high_water_mark

    rewrite(high_water_mark._other, ("elif mark.releases and row.digest != mark.newest_release", "elif False"))


@bug(f"{_RESTORED}::test_a_mark_that_a_power_cut_may_take_back_is_written_again")
def a_mark_of_charges_alone_that_a_power_cut_takes_back() -> None:
    """It counts as written once it is read again, where no release came with the charges."""
    from service.publishing.confirmation import Committed

    rewrite(Committed.advances, ("now.confirmed_charges < self.mark.charges or ", ""))
