"""Bugs in models that are solved from private sums: of how many slots they are, and how strong the pull is."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_WINDOW = "tests/mechanisms/window_statistics"


@bug(f"{_WINDOW}/test_window_statistics.py::test_a_window_that_is_not_full_has_the_slots_of_the_blocks_that_there_are")
def a_window_that_is_taken_to_be_full() -> None:
    """The first models are of so many more records as are missing, all of them zeros."""
    from service.mechanisms.window_statistics.window_model import WindowModel

    rewrite(WindowModel.model, ("slots = n * len(window)", "slots = n * self.blocks"))


@bug(f"{_WINDOW}/test_window_statistics.py::test_the_pull_is_by_the_noise_of_the_blocks_that_there_are")
def a_pull_by_the_noise_of_a_full_window() -> None:
    """The first models are pulled back as if there were as much noise in them as in later ones."""
    from service.mechanisms.window_statistics import window_model

    rewrite(window_model._spread, ("known[min(step, len(known) - 1)]", "known[-1]"))


@bug(f"{_WINDOW}/test_candidates.py::test_a_candidate_has_a_pull_of_its_own_whatever_the_window_s_is")
def candidates_with_the_pull_of_the_window() -> None:
    """A candidate that asks for the pull by the noise gets the one that was set for the window."""
    from service.mechanisms.window_statistics import family

    rewrite(family._candidates, ("ridge=each.ridge)", "ridge=each.ridge or settings.ridge)"))


@bug("tests/mechanisms/lifelong/test_units.py::test_what_is_learnt_is_of_as_many_records_as_there_are_units[variant0]")
def tasks_of_slots_where_units_were_added_up() -> None:
    """A unit of many records counts once in the sums, and as often as it has slots in what they are of."""
    from service.mechanisms.lifelong.task_statistics import TaskStatistics

    rewrite(TaskStatistics.advance, ("float(n if records.units is None else records.units)", "float(n)"))


@bug("tests/privacy/test_groups.py::test_what_a_verifier_makes_of_a_release_counts_its_rounding_too[blt]")
def a_verifier_that_forgets_rounding() -> None:
    """A group factor that leaves out what rounding costs all slots of a unit together is taken for enough."""
    from service.privacy.accounting import unit_factors

    rewrite(
        unit_factors.factor_of, ("carried(event.factor, batching, rounding=share)", "carried(event.factor, batching)")
    )


@bug("tests/mechanisms/lifelong/test_lifelong.py::test_the_pull_is_by_the_noise_of_all_batches_together")
def a_pull_by_noise_that_is_never_taken_back() -> None:
    """Models of many batches are pulled back for noise that is not in them."""
    from service.mechanisms.lifelong.task_statistics import TaskStatistics

    rewrite(TaskStatistics.pull, ("spread(perturbation.factor, batches)", "batches**0.5"))
