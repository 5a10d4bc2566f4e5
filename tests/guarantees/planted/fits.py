"""Bugs in how a worker runs fits: whose turn it is, what a fit's process may know, how its end is taken."""

from __future__ import annotations

from tests.guarantees.planted.bug import ACTIVE, bug, rewrite, wrap

_FITS = "tests/worker/test_fits.py"


@bug(f"{_FITS}::test_after_its_second_death_the_publication_halts_and_says_how")
def a_killed_fit_that_is_drawn_again_and_again() -> None:
    """Which of its results is shown depends on what killed the others."""
    from service.worker.publisher import Publisher

    rewrite(Publisher._drawn, ("except _FORESEEN:", "except (*_FORESEEN, FitDied):"))


@bug("tests/worker/test_refused_fits.py::test_models_before_a_refused_fit_are_charged_and_released")
def a_refusal_that_nobody_pays_for() -> None:
    """Whether a fit is refused tells of the model that it starts from, which is dropped: an answer for nothing."""
    from service.mechanisms.scheduled.mechanism import Fitting

    rewrite(Fitting.step, ("if not releases:", "if True:"))


@bug(f"{_FITS}::test_it_knows_no_server_and_no_key")
def a_fit_that_knows_the_database() -> None:
    """An attacker who takes over a fit reads every stream."""
    from service.worker import fits

    rewrite(fits._started, ('if not name.startswith("PERENNIAL_")', ""))


@bug("tests/worker/test_due_fits.py::test_that_it_has_ended_is_not_seen_before_its_tick")
def a_fit_whose_end_is_shown() -> None:
    """How long a fit took tells of its records."""
    from sqlalchemy import and_, exists

    from service.store import due_fits
    from service.store.tables import parked, publications

    due_fits.IS_DUE = and_(due_fits.IS_DUE, ~exists().where(parked.c.publication_id == publications.c.id))


@bug(
    "tests/learning/optimization/test_sums.py::test_the_gradient_at_a_fit_is_as_short_as_promised[30000-8192-0.01-logistic-2]"
)
def a_certificate_in_single_precision() -> None:
    """The minimiser of blocks is farther away than its noise reckons with."""
    from service.learning.optimization.sums import SummedObjective

    wrap(SummedObjective, "_pass", lambda true, problem, **options: true(problem, **options | {"roughly": True}))


@bug("tests/worker/test_large_fits.py::test_a_fit_ends_where_records_are_erased_while_it_reads")
def a_fit_whose_records_change_while_it_reads() -> None:
    """A record's influence on one pass decides which records another pass reads."""
    from service.segments.blocks import LocatedBlocks

    rewrite(LocatedBlocks._locate_again, ("again.erased != self._located.erased", "False"))


@bug("tests/worker/test_dask_blocks.py::test_a_fit_has_the_same_bytes_on_dask_and_in_process")
def blocks_that_are_added_twice() -> None:
    """A record counts as often as its block is answered: on the Dask cluster, and once more in the process."""
    from service.worker.dask_blocks import DaskBlocks

    rewrite(DaskBlocks.add_up, ("left.remove(group)", "pass"))


@bug("tests/worker/test_erasing.py::test_erased_records_contribute_nothing_and_their_bytes_go")
def erased_records_that_a_fit_reads_if_it_begins_among_them() -> None:
    """A fit that begins in the middle of an erased range reads the rest of that range."""
    from service.store import segments

    rewrite(segments.located, ("(max(start, low), min(stop, high))", "(low, min(stop, high))"))


@bug("tests/worker/test_units.py::test_a_fit_reads_a_units_records_as_parts_of_one_by_the_pattern")
def a_pattern_without_erased_records() -> None:
    """Which slots have a coin depends on whether their records are there."""
    from service.segments import records

    rewrite(records.load, ("pattern.counting.copy()", "pattern.counting"))


_PREPARED = "tests/publishing/test_prepared.py"
_NUMBERS = f"{_PREPARED}::test_all_numbers_of_a_step_count_from_the_start_of_the_stream"


@bug(_NUMBERS)
def a_fit_that_is_charged_to_records_from_before_the_start() -> None:
    """A publication that began later charges records which it did not read."""
    from service.publishing import prepared

    rewrite(
        prepared.prepare,
        (
            "NewCharge(start=start + each.fit[0], stop=start + each.fit[1]",
            "NewCharge(start=each.fit[0], stop=each.fit[1]",
        ),
    )


@bug(_NUMBERS)
def a_release_that_is_paid_for_twice() -> None:
    """Records that paid when they arrived are charged for the release again."""
    from service.publishing import prepared

    rewrite(prepared.prepare, ("        if not each.at_arrival\n", ""))


@bug(_NUMBERS)
def labels_that_are_asked_for_of_other_records() -> None:
    """People see records that no coin chose."""
    from service.publishing import prepared

    rewrite(prepared.prepare, ("asks=tuple(start + each for each in step.asks)", "asks=step.asks"))


@bug(f"{_PREPARED}::test_each_step_goes_on_from_what_the_one_before_it_left")
def parts_of_a_memory_that_stay_as_they_were() -> None:
    """A step that follows on a parked one takes back noise that was never drawn."""
    from service.publishing import prepared

    rewrite(prepared.remembered_after, ("{**memory.parts, **step.left.new}", "{**step.left.new, **memory.parts}"))


@bug(f"{_PREPARED}::test_the_end_of_a_publication_moves_nothing_else_of_it")
def a_halt_that_passes_records_over() -> None:
    """A publication that halted seems to have read records that it did not, and an evaluation counts on that."""
    from service.publishing import prepared

    rewrite(prepared.halting, ("position=publication.position", "position=publication.due"))


_FOR_ITS_SLOTS = (
    "tests/learning/optimization/test_sums.py::test_a_fit_is_certified_for_as_many_slots_as_its_noise_reckons_with"
)


@bug(_FOR_ITS_SLOTS)
def a_certificate_for_half_the_slots() -> None:
    """A fit may be twice as far from its minimiser as its noise reckons with."""
    from service.learning.optimization.solvers import Exact

    rewrite(Exact.solve, ("_accuracy(setting, records)", "_accuracy(setting, max(1, records // 2))"))


@bug(f"{ACTIVE}::test_a_release_states_the_coin_and_the_noise_of_its_own_batch")
def a_later_step_that_states_the_first_coin() -> None:
    """Another threshold is taken to recompute what a record lost by a coin."""
    from service.mechanisms.active_learning.mechanism import ActiveLearning

    rewrite(ActiveLearning._learnt, ("self._perturbation(update)", "self._perturbation(1)"))
