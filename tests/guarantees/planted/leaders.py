"""Bugs in steps along noisy gradients: how long they are, of how many records, and how far iterates may go."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_LEADER = "tests/mechanisms/online_leader"
_OF_A_BATCH = f"{_LEADER}/test_steps_of_a_batch.py"


@bug(f"{_OF_A_BATCH}::test_auto_counts_the_slots_of_a_part_that_may_be_fitted")
def steps_for_slots_that_are_set_aside() -> None:
    """A batch makes as many steps as if all its slots were fitted, and each of them is mostly noise."""
    from service.mechanisms.online_leader.mechanism import OnlineLeader

    rewrite(OnlineLeader.most_steps, ("self.training.least(self._batch // steps)", "self._batch // steps"))


@bug(f"{_LEADER}/test_averages.py::test_a_ball_without_a_radius_reaches_as_far_in_a_score_whatever_the_norm_bound[0.5]")
def a_ball_in_weights_in_the_place_of_scores() -> None:
    """Where records are long, weights reach scores far beyond 10,000, and rounding errors are reckoned for that."""
    from service.mechanisms.online_leader import family

    rewrite(family.build, ("reach / linear.norm_bound", "reach"))


@bug(
    f"{_LEADER}/test_averages.py::"
    "test_steps_are_longer_while_gradients_agree_with_the_step_before_and_shorter_while_they_do_not[0.5]"
)
def noise_of_a_whole_gradient_in_a_step_with_momentum() -> None:
    """Steps grow longer and longer with noise alone, which is taken for agreement."""
    from service.mechanisms.online_leader.online_gradient import OnlineGradient

    rewrite(OnlineGradient._response, ("(1.0 - self.momentum) * ", ""))


@bug(f"{_OF_A_BATCH}::test_a_step_is_along_the_mean_of_as_many_units_as_there_are")
def a_mean_over_the_slots_of_units() -> None:
    """A unit of many records counts once in the sum, and as often as it has slots in what the sum is divided by."""
    from service.mechanisms.online_leader.online_gradient import OnlineGradient

    rewrite(OnlineGradient.advance, ("n = max(1, records.units)", "pass"))


@bug("tests/learners/test_noisy_gradient_descent.py::test_rounding_is_reckoned_for_iterates_as_far_out_as_they_may_be")
def rounding_around_zero_in_the_place_of_the_centre() -> None:
    """Near a model of long weights sums of gradients are less exact than their noise reckons with."""
    from service.learners.noisy_gradient_descent import NoisyGradientDescent

    rewrite(NoisyGradientDescent.perturbation, ("weights=center_norm + radius", "weights=radius"))
