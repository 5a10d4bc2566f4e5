"""Bugs where records are longer than 1, or slots are set aside: factors that are 1 in most tests."""

from __future__ import annotations

from tests.guarantees.planted.bug import ACTIVE, bug, rewrite, wrap

_STREAMS = "tests/mechanisms/test_equivalent_streams.py"
_LONGER = f"{_STREAMS}::test_longer_records_within_a_longer_norm_have_weights_that_are_shorter_by_as_much"
_SELECTED = f"{_STREAMS}::test_who_is_selected_is_the_same_of_longer_records"
_SET_ASIDE = f"{_STREAMS}::test_where_every_second_slot_is_set_aside_models_are_those_of_the_others_alone"


@bug(f"{_SET_ASIDE}[window]")
def a_window_of_slots_that_are_set_aside() -> None:
    """Its model is of twice as many records, half of them zeros."""
    from service.mechanisms.window_statistics.mechanism import WindowStatistics

    rewrite(WindowStatistics.step, ("self.slots_of(fit),", "records,"))


@bug(f"{_SET_ASIDE}[tasks]")
def tasks_of_slots_that_are_set_aside() -> None:
    """The same, of tasks."""
    from service.mechanisms.lifelong.mechanism import Lifelong

    rewrite(Lifelong.step, ("self.slots_of(fit)", "fit.end - fit.start"))


@bug(_SELECTED)
def iterates_that_leave_what_selection_is_for() -> None:
    """The ball of iterates does not shrink as records grow, so that scores, and steps, are as much larger."""
    from service.mechanisms.active_learning import family

    rewrite(family._gradient, ("1.0 / linear.norm_bound", "1.0"))


@bug(f"{_LONGER}[tasks, agem]")
def weights_of_an_encoder_in_other_units() -> None:
    """Models are learnt of records of length 1, and released as if these were as long as the stream's."""
    from service.mechanisms.lifelong.task_statistics import TaskStatistics

    rewrite(TaskStatistics.advance, ("model[0].T / self.norm_bound * self.turned", "model[0].T * self.turned"))


@bug(f"{_LONGER}[tasks, agem]")
def a_pull_of_an_encoder_in_other_units() -> None:
    """The longer records may be, the more nothing is learnt."""
    from service.mechanisms.lifelong.task_statistics import TaskStatistics

    rewrite(TaskStatistics._means, ("(self.norm_bound**2 * curvature)", "curvature"))


@bug(f"{_LONGER}[window]")
def a_pull_of_sums_in_other_units() -> None:
    """The same, of models that are solved from sums."""
    from service.mechanisms.sufficient_statistics import Statistics

    rewrite(Statistics.strength, (" * self.unit**2", ""))


@bug(f"{ACTIVE}::test_a_label_is_asked_for_as_long_as_is_said_and_of_the_next_person_sooner")
def seconds_of_a_label_for_those_of_a_person() -> None:
    """A label is given up when the first person is late."""
    from service.mechanisms.active_learning import family

    rewrite(
        family._asking,
        ("settings.label_seconds or LABEL", "settings.lease_seconds or LABEL"),
        ("settings.lease_seconds or LEASE", "settings.label_seconds or LEASE"),
    )


@bug(f"{ACTIVE}::test_a_label_is_asked_for_as_long_as_is_said_and_of_the_next_person_sooner")
def seconds_of_a_label_that_are_owed_as_those_of_a_person() -> None:
    """The plan says the one, and the service does the other."""
    from service.mechanisms.active_learning import mechanism

    wrap(
        mechanism,
        "Labelling",
        lambda true, *, seconds, lease_seconds: true(seconds=lease_seconds, lease_seconds=seconds),
    )


@bug(f"{ACTIVE}::test_nobody_is_asked_about_a_slot_that_is_set_aside[fixed_batch]")
def coins_for_slots_that_are_set_aside() -> None:
    """People are asked for labels of records that no model may be fitted to, and batches are half empty."""
    from service.mechanisms.active_learning.mechanism import ActiveLearning

    rewrite(ActiveLearning._tossed, ("self.training.among(seen, end)", "None"))


@bug(_SELECTED)
def a_slab_in_other_units() -> None:
    """The longer records may be, the fewer of them are near the hyperplane, and the fewer are selected."""
    from service.mechanisms.active_learning import family

    rewrite(family._slab, ("0.2 * norm_bound", "0.2"))


@bug(f"{ACTIVE}::test_a_batch_may_run_over_as_many_slots_as_its_widest_slab_asks_for")
def batches_that_close_as_soon_as_later_ones_would() -> None:
    """While the slab is wide few slots are selected, and a batch is learnt from before it is full."""
    from service.mechanisms.active_learning.active_gradient import ActiveGradient

    rewrite(ActiveGradient.least_probability, ("for update in (1, 2**62)", "for update in (2**62,)"))


@bug(f"{_STREAMS}::test_tasks_of_which_one_may_have_no_slot_of_its_own_are_refused")
def tasks_that_are_all_taken_for_as_long_as_the_longest() -> None:
    """A publication is accepted that halts at a task whose slots are all set aside."""
    from service.mechanisms.lifelong.mechanism import Lifelong

    rewrite(Lifelong.fewest_slots, ("self.schedule.smallest", "self.schedule.largest"))


@bug(f"{_LONGER}[leader]")
def steps_in_other_units() -> None:
    """The longer records may be, the farther a step moves a score."""
    from service.mechanisms.online_leader.online_gradient import OnlineGradient

    rewrite(OnlineGradient.rate, ("return logit(self) / self.norm_bound * min(", "return logit(self) * min("))


@bug(f"{_LONGER}[descent]")
def a_descent_in_other_units() -> None:
    """The same, of fits along noisy gradients."""
    from service.learners.noisy_gradient_descent import NoisyGradientDescent

    rewrite(NoisyGradientDescent.perturbation, ("/ (2.0 * clip * self.norm_bound)", "/ (2.0 * clip)"))


@bug(f"{_LONGER}[output]")
def a_pull_of_fits_in_other_units() -> None:
    """The longer records may be, the more noise is in their scores."""
    from service.learners.output_perturbation import OutputPerturbation

    rewrite(OutputPerturbation.pull, ("per_slope = 2.0 * self.norm_bound * spread", "per_slope = 2.0 * spread"))
