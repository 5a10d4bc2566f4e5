"""Bugs in what a person may lose: the group factor, the ledger of units, and which slots count."""

from __future__ import annotations

from typing import Any

from tests.guarantees.planted.bug import bug, rewrite, wrap

_GROUPS = "tests/privacy/test_groups.py"
_LEDGER = "tests/privacy/test_unit_ledger.py"
_BUDGET = "tests/privacy/test_zcdp_budget.py"
_UNITS = "tests/streams/test_units.py"
_PATTERNS = f"{_GROUPS}::test_no_pattern_costs_more_than_is_stated_and_the_worst_as_much"
_HISTORIES = f"{_LEDGER}::test_nobody_passes_the_budget_whatever_is_started_and_stopped"


@bug(f"{_PATTERNS}[blt-2-3-one contribution]")
def a_separation_that_is_rounded_up_to_batches() -> None:
    """Slots one batch and a half apart are said to be two batches apart."""
    from service.privacy.accounting.groups import Batching

    rewrite(
        Batching.batches_apart,
        ("steps * self.bound.min_separation // self.batch", "steps * -(-self.bound.min_separation // self.batch)"),
    )


@bug(f"{_PATTERNS}[independent-2-1-each its own]")
def a_unit_that_is_once_in_a_batch_without_being_combined() -> None:
    """Records of a unit in one batch count as if their mean was taken."""
    from service.privacy.accounting.groups import Batching

    rewrite(Batching.contributions, ("batches if self.one_contribution else slots", "batches"))


@bug(f"{_PATTERNS}[tree of 8-1-1-one contribution]")
def a_tree_whose_nodes_hold_a_unit_once() -> None:
    """Each node is said to be moved by its left half alone."""
    from service.privacy.accounting import carried_groups

    rewrite(
        carried_groups._tree,
        ("+ (factor.levels - levels + 1) * squares", "+ (factor.levels - levels) * squares + np.arange(records + 1)"),
    )


@bug(f"{_GROUPS}::test_a_full_batch_and_a_rest_do_not_hide_what_a_stop_would_leave")
def a_group_factor_of_all_slots_only() -> None:
    """T(m), whatever a publication that is stopped earlier leaves to another."""
    from service.privacy.accounting import groups

    rewrite(
        groups.group_factor,
        ("max(costs) * max(cost / slots for slots, cost in costs.items())", "costs[max(costs)]"),
    )


@bug(f"{_GROUPS}::test_neighbouring_batches_of_a_decaying_blt[2-3.27]")
def a_group_factor_of_another_noise() -> None:
    """The factor is that of independent noise, where noise is carried on."""
    from service.privacy.accounting import carried_groups

    rewrite(carried_groups._toeplitz, ("most**2 * pairs + ", ""))


@bug(f"{_GROUPS}::test_rounding_is_counted_for_every_slot[blt-1e-05]")
def rounding_that_is_counted_once_for_all_slots() -> None:
    """The bound adds the rounding of one record."""
    from service.privacy.accounting import carried_groups

    rewrite(carried_groups._with_rounding, ("slots * rounding", "rounding"))


@bug(f"{_HISTORIES}[assert_within_zcdp]")
def a_unit_whose_charges_count_once() -> None:
    """The group factor makes a publication's noise, but is left out of the sum for all publications."""
    from service.privacy.accounting.unit_ledger import ZcdpLedger

    rewrite(ZcdpLedger._charged, ("publication.factor * self._in_rho", "self._in_rho"))


@bug(f"{_HISTORIES}[assert_within_records]")
def a_stopped_publication_that_gives_all_back() -> None:
    """The ledger forgets its charges as soon as it has ended."""
    from service.privacy.accounting.unit_ledger import ZcdpLedger

    rewrite(ZcdpLedger._counted, ("yield from self._charged(publication)", "return"))


@bug(f"{_BUDGET}::test_the_capacity_leaves_room_for_the_slack_that_is_admitted[delta2]")
def a_budget_that_leaves_no_room_for_slack() -> None:
    """ρ_B is what implies (ε, δ), and what the samplers add comes on top."""
    from service.privacy.accounting import zcdp_budget

    rewrite(zcdp_budget.capacity_of, ("Fraction(delta) - LARGEST_DELTA", "Fraction(delta)"))


@bug(f"{_BUDGET}::test_pure_loss_counts_epsilon_times_tanh_rounded_up")
def a_pure_charge_that_is_rounded_down() -> None:
    """The other bound of e^-ε is taken."""
    from service.privacy.accounting import zcdp_budget

    rewrite(zcdp_budget.pure_rho, ("round_up(count)", "round_down(count)"))


@bug(f"{_UNITS}::test_separation_is_in_slots_of_the_stream")
def a_separation_in_slots_of_the_unit() -> None:
    """The numbers of a unit's own slots are taken for the stream's."""
    from service.streams import units

    rewrite(
        units.counting_slots,
        ("* slots + order  #", "* slots + np.arange(slots) - np.searchsorted(units[order], units[order])  #"),
    )


@bug(f"{_UNITS}::test_in_batches_it_is_the_definition_wherever_they_are_cut")
def counts_that_begin_again() -> None:
    """A unit's count is lost between two batches, as by a restart."""
    from service.streams import units

    rewrite(units.counting_slots, ("counted, last = states.counted.copy()", "counted, last = 0 * states.counted"))


@bug(f"{_UNITS}::test_one_unit[1-1]")
def numbers_that_are_other_units_than_their_digits() -> None:
    """The ids 1 and "1" are two units."""
    from service.streams import units

    rewrite(units.canonical, ("str(number).encode() if", "repr((number,)).encode() if"))


_COUNTING, _PUBLISHED = "tests/worker/test_units.py", "tests/worker/test_unit_publications.py"
_MECHANISMS = "tests/mechanisms/test_units.py"


@bug(f"{_COUNTING}::test_slots_count_by_the_order_of_their_units_however_they_come[1-bench0]")
def counts_that_begin_anew_with_each_segment() -> None:
    """As if a restart had forgotten how many slots of a unit count."""
    from service.store import units
    from service.streams.units import UnitState, UnitStates

    def read(true: Any, connection: Any, stream: int, bound: Any, pseudonyms: Any) -> Any:
        erased, _ = true(connection, stream, bound, pseudonyms)
        return erased, UnitStates.of([UnitState()] * len(pseudonyms))

    wrap(units, "read", read)


@bug(f"{_MECHANISMS}::test_all_slots_of_a_unit_cost_what_queries_were_promised_and_no_more[1e-06-3]")
def queries_whose_slots_of_a_unit_are_said_to_have_noise_each_of_their_own() -> None:
    """The group factor is m, as of fits that a unit enters once."""
    from service.mechanisms.linear_queries.mechanism import LinearQueries

    rewrite(LinearQueries.group_factor, ("group_factor(shared(bound))", "Fraction(bound.max_records)"))


_ASIDE = "tests/worker/test_units_set_aside.py"


@bug(f"{_ASIDE}::test_a_range_is_read_without_the_units_of_the_other_kind[False]")
def units_that_are_set_aside_and_fitted_all_the_same() -> None:
    """Fits and evaluations read all units, so that either spends the whole budget of the same one."""
    from service.segments import records

    rewrite(records._pattern, ("if located.period is not None:", "if False:"))


@bug(f"{_ASIDE}::test_a_range_is_read_without_the_units_of_the_other_kind[True]")
def units_whose_slots_are_set_aside_one_by_one() -> None:
    """Every k-th slot is evaluated, so that a unit has slots of both kinds."""
    import numpy as np

    from service.segments import records

    wrap(records, "set_aside", lambda _true, unit, period: np.arange(len(unit)) % period == period - 1)


@bug("tests/worker/test_unit_publications.py::test_a_unit_whose_slots_are_lost_has_spent_no_less_than_it_has[window]")
def slots_that_are_taken_to_have_paid_the_least() -> None:
    """Slots whose segments were dropped are taken to be those that were charged the least."""
    from service.ledger import spending

    rewrite(spending._charged, ("reverse=True", "reverse=False"))


@bug(f"{_COUNTING}::test_a_fit_reads_a_units_records_as_parts_of_one_by_the_pattern[bench0]")
def weights_by_record() -> None:
    """All records of a unit enter a sum whole."""
    import numpy as np

    from service.segments import records

    wrap(records, "contributions", lambda _true, places: np.ones(len(places)))


@bug(f"{_MECHANISMS}::test_all_records_of_a_unit_together_move_a_sum_as_far_as_one[gradients]")
def gradients_that_each_record_of_a_unit_adds_whole() -> None:
    """Weights are forgotten where gradients are summed up."""
    from service.learning.optimization import objective

    rewrite(objective.summed, ("slopes = slopes * shares[start : start + chunk, None]", "pass"))


@bug(f"{_MECHANISMS}::test_noise_is_for_as_many_units_as_a_fit_has_and_a_plan_knows_the_least_of_it")
def noise_for_as_many_units_as_there_are_slots() -> None:
    """The mean is over the slots of a fit, of which one unit may have many."""
    from service.mechanisms.scheduled.mechanism import Fitting

    rewrite(Fitting.step, ("if present.units is None else present.units", ""))


@bug("tests/learning/optimization/test_descent.py::test_all_records_of_a_unit_enter_the_same_step")
def records_of_a_unit_that_are_permuted_one_by_one() -> None:
    """Each has a place of its own, so that a unit is in several steps of a pass."""
    from service.learning.optimization.descent import PermutationSGD

    rewrite(PermutationSGD._order, ("int(owners.max(initial=-1)) + 1", "len(owners)"), ("[owners]", ""))


@bug(f"{_MECHANISMS}::test_a_slot_may_be_charged_a_factors_part_of_what_a_unit_was_promised[mechanism0-learner0-0-16]")
def a_slot_that_is_charged_what_its_unit_was_promised() -> None:
    """The capacity is not divided by the group factor."""
    from service.mechanisms import building

    rewrite(building.build_for_units, ("context.capacity / terms.factor", "context.capacity"))


@bug(f"{_PUBLISHED}::test_what_is_spent_is_the_units_and_within_what_was_promised[leader, pure]")
def a_charge_that_counts_once_for_its_unit() -> None:
    """The page shows as spent what a slot has spent."""
    from service.privacy.accounting.composition import Component

    rewrite(Component._alone, ("amount *= self.factor", "pass"))


@bug(f"{_PUBLISHED}::test_whoever_stops_a_publication_that_has_charged_gets_nothing_back[leader]")
def a_stopped_publication_on_units_that_gives_back() -> None:
    """Others get what it has not charged, though their units' slots may be those that it has charged."""
    from service.ledger import reserving

    rewrite(reserving.reserves_wholly, ('== "running" or charged', '== "running"'))


@bug(f"{_PUBLISHED}::test_a_factor_that_somebody_changed_is_found[leader]")
def a_group_factor_that_nobody_computes_anew() -> None:
    """The verifier believes the factor that the record states."""
    from service.ledger.verify import released

    rewrite(released.paid_for, ('> Fraction(unit["factor"])', "< 0"))


@bug(f"{_COUNTING}::test_no_slot_of_an_erased_unit_counts_though_it_is_erased_while_it_is_counted[while-bench0]")
def an_erasure_that_comes_while_slots_are_counted() -> None:
    """Slots are numbered by the counts from before it."""
    from service.store import numbering

    rewrite(
        numbering.seal,
        ("locks.stream(connection, stream.id, seconds=None).units_erased != counts.units_erased", "False"),
    )


@bug(f"{_COUNTING}::test_a_unit_is_counted_as_erased_once_however_often_it_is_erased[bench0]")
def a_repeated_erasure_of_a_unit_that_counts_again() -> None:
    """A unit whose erasure is asked for twice counts as two that are erased."""
    from service.store import units

    rewrite(units.close, ("where=units.c.erased.is_(False)", "where=None"))


@bug(f"{_MECHANISMS}::test_a_learner_that_takes_each_record_by_itself_takes_no_units")
def a_learner_that_takes_records_of_a_unit_one_by_one() -> None:
    """The records of a unit enter whole where a learner knows nothing of units."""
    from service.learning.linear import Linear

    rewrite(Linear.prepared, ("if weights is not None:", "if False:"))


@bug(f"{_MECHANISMS}::test_the_curvature_of_all_records_of_a_unit_costs_no_more_than_is_stated")
def a_perturbed_objective_of_the_mean_of_a_units_records() -> None:
    """Two orthogonal records of one unit make a curvature of twice the rank that is allowed for."""
    from service.learning.objective_perturbation import ObjectivePerturbation

    rewrite(
        ObjectivePerturbation.fit,
        ("rows, y = self.prepared(records.one_of_each_unit())", "rows, y, shares = self.weighed(records)"),
        ("tilt=tilt,", "tilt=tilt, shares=shares,"),
    )


@bug(f"{_MECHANISMS}::test_all_records_of_a_unit_together_move_counts_as_far_as_one[preparation]")
def cells_that_count_every_record_of_a_unit() -> None:
    """Histograms take all records of a unit, as of a stream without units."""
    from service.learning.records import Records

    rewrite(Records.one_of_each_unit, ("if self.units is None:", "if True:"))


@bug("tests/privacy/test_budget.py::test_nor_does_a_unit_whose_records_different_publications_read")
def a_slot_whose_rho_counts_once_for_its_unit() -> None:
    """On a stream whose budget is held in ρ the group factor is left out."""
    from service.privacy.accounting.composition import ZcdpComponent

    rewrite(ZcdpComponent.loss, ("self.factor * amount", "amount"))


@bug("tests/privacy/test_budget.py::test_a_slot_that_is_charged_its_part_counts_what_its_unit_was_promised[delta0]")
def pure_charges_of_a_unit_that_count_as_those_of_a_record() -> None:
    """ε·tanh(ε/2), whose sum over a unit's slots bounds nothing."""
    from service.privacy.accounting.composition import ZcdpComponent

    rewrite(ZcdpComponent.loss, ("units=self.units", "units=False"))
