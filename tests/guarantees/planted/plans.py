"""Bugs in plans: figures that the releases do not have."""

from __future__ import annotations

from typing import Any

from tests.guarantees.planted.bug import bug, rewrite, wrap

_FITS = "tests/mechanisms/scheduled/test_plans.py"


@bug(f"{_FITS}::test_the_noise_is_for_the_slots_that_are_fitted_where_others_are_set_aside")
def a_plan_of_slots_that_are_set_aside() -> None:
    """It promises less noise than releases get, which are of fewer records."""
    from service.mechanisms.on_schedule import OnSchedule

    rewrite(OnSchedule._planned, ("self.training.least(pattern.records)", "pattern.records"))


@bug(f"{_FITS}::test_the_noise_of_a_regression_is_for_the_origin_that_it_starts_from[origin1]")
def a_plan_that_starts_from_zero() -> None:
    """It promises less noise than a regression gets near weights that are long."""
    from service.mechanisms.on_schedule import OnSchedule

    rewrite(OnSchedule._perturbed, ("self.origin if self._has_known_center(pattern) else None", "None"))


@bug(f"{_FITS}::test_the_noise_of_gradients_is_known_of_however_many_units_they_are")
def a_plan_that_does_not_know_the_noise_of_gradients() -> None:
    """People are told that nobody knows what is known."""
    from service.mechanisms.scheduled.mechanism import Scheduled

    wrap(Scheduled, "unknown", lambda true, self, pattern: true(self, pattern) if self.unit is None else "by units")


@bug(f"{_FITS}::test_a_plan_of_a_large_fit_does_not_tell_how_many_steps_its_units_let_it_take")
def a_plan_of_steps_that_few_units_do_not_take() -> None:
    """It states the noise of a fit of as many units as records, whose steps are more and noisier."""
    from service.mechanisms.scheduled.mechanism import Scheduled

    wrap(Scheduled, "_least", lambda _true, self, pattern: self._planned(pattern))


@bug("tests/mechanisms/test_notes.py::test_noise_is_compared_with_the_most_that_records_can_do[gaussian-9-4-0.1]")
def notes_that_forget_the_steps_of_a_fit_of_units() -> None:
    """Noise is said to be larger than it is, by as many times as the root of the number of steps."""
    from service.mechanisms import notes

    rewrite(notes.noise_ratio, ('stated.get("steps") or ', ""))


@bug(f"{_FITS}::test_a_pull_that_depends_on_the_number_of_units_is_not_stated")
def a_plan_of_units_with_the_pull_of_as_many_records() -> None:
    """The pull of each fit follows from how many units it has, which no plan knows."""
    from service.mechanisms.scheduled.mechanism import Scheduled

    def pattern(true: Any, self: Any, kind: Any) -> dict[str, Any]:
        return {**true(self, kind), "strong_convexity": self._planned(kind).regularization}

    wrap(Scheduled, "_pattern", pattern)


_STORED = "tests/mechanisms/test_obligations.py::test_nothing_of_an_obligation_is_lost_when_it_is_stored"


@bug(_STORED)
def obligations_that_forget_which_slots_they_are_of() -> None:
    """An evaluation is taken to charge the slots that models are fitted to."""
    from service.privacy.accounting.obligations import Obligations

    rewrite(Obligations.from_json.__func__, ('slots=Slots(content.get("slots", Slots.TRAINING)),', ""))  # type: ignore[attr-defined]


@bug(_STORED)
def obligations_that_forget_how_many_draws_they_are_of() -> None:
    """Publications that share a slack are admitted as if one of them drew nothing."""
    from service.privacy.accounting.obligations import Obligations

    rewrite(Obligations.from_json.__func__, ('draws=content.get("draws"),', ""))  # type: ignore[attr-defined]


@bug(f"{_FITS}::test_a_histogram_is_planned_to_be_as_far_off_as_its_release_may_be")
def a_histogram_that_is_nearer_than_its_noise_lets_it_be() -> None:
    """A plan says how far off the nearest of all databases is, and not the one that is selected."""
    from service.learners import small_database

    rewrite(small_database.error_bound, (' + scale * math.log(description["candidates"] / FAILURE)', ""))


@bug("tests/mechanisms/test_notes.py::test_who_asks_for_more_than_the_whole_budget_reads_it_in_the_plan")
def a_plan_that_compares_losses_where_a_budget_is_held_in_rho() -> None:
    """It says that pure noise fits, and the publication is refused."""
    from service.mechanisms import notes

    rewrite(notes._of_budget, ("cap(budget.accounting,", 'cap("basic",'))
