"""Bugs in bounds on what rounding does: a term halved or left out, where the others hide it."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_BOUNDS = "tests/learning/optimization/test_error_bounds.py"
_GRADIENT = f"{_BOUNDS}::test_a_computed_gradient_is_as_near_as_its_formula_says"


@bug(f"{_GRADIENT}[tilt]")
def a_tilt_that_is_added_exactly() -> None:
    """The bound leaves out the rounding of the tilt."""
    from service.learning.optimization.solvers import Setting

    rewrite(Setting.error, ("(self.lipschitz + self.tilt + self.regularization * radius)", "(self.lipschitz)"))


@bug(f"{_BOUNDS}::test_a_minimiser_is_certified_as_its_formula_says")
def a_certificate_of_half_its_tolerance() -> None:
    """On long ranges a minimiser is called nearer than it is known to be."""
    from service.learning.optimization import solvers

    rewrite(solvers._accuracy, ("5.0 * error", "2.5 * error"))


@bug(f"{_BOUNDS}::test_a_sum_of_clipped_gradients_moves_as_its_formula_says")
def half_the_error_of_clipped_gradients() -> None:
    """A sum of many gradients is said to be twice as exact as it is."""
    from service.learning import noisy_gradient_descent

    rewrite(noisy_gradient_descent.clipped_sum, ("2.0 * UNIT * records * per_record", "UNIT * records * per_record"))


@bug(f"{_BOUNDS}::test_the_output_of_a_tilted_minimiser_moves_as_its_formula_says")
def half_the_output_of_a_tilted_minimiser() -> None:
    """The bound takes one of two neighbours as fitted exactly."""
    from service.learning.objective_perturbation import ObjectivePerturbation

    rewrite(ObjectivePerturbation.perturbation, ("MARGIN * 2.0 * tolerance", "MARGIN * tolerance"))


@bug(f"{_BOUNDS}::test_rounding_moves_correlated_noise_as_its_formula_says")
def half_the_rounding_of_correlated_noise() -> None:
    """The bound takes the memory as twice as exact as it is."""
    from service.privacy.noise import correlated

    rewrite(correlated._moved, ("(4 * column.rounding + 1)", "(2 * column.rounding + 1)"))


_LONGEST_TILT = (
    "tests/learning/test_objective_perturbation.py::"
    "test_the_solver_is_as_near_as_for_the_longest_tilt_and_the_centre_of_the_fit"
)


@bug(_LONGEST_TILT)
def a_solver_that_reckons_with_half_the_tilt() -> None:
    """Rounding beside the longest tilts is more than the output noise is for."""
    from service.learning.objective_perturbation import ObjectivePerturbation

    rewrite(ObjectivePerturbation._promise, ("tilt=longest,", "tilt=longest / 2,"))


@bug("tests/mechanisms/test_configuration.py::test_a_loss_is_never_stated_below_the_charges_that_it_is_of[0]")
def a_loss_to_the_nearest_double() -> None:
    """A plan states less than a record loses."""
    from service.mechanisms.mechanism import Mechanism

    rewrite(Mechanism.loss_of, ("round_up(amount)", "float(amount)"))


_DESCENT = "tests/learning/optimization/test_descent.py"


@bug(f"{_DESCENT}::test_an_iterate_is_pulled_back_from_wherever_it_leaves_the_ball")
def a_ball_that_iterates_leave() -> None:
    """Outside of it the squared loss is steeper than its noise reckons with."""
    from service.learning.optimization import descent

    rewrite(descent._projected, ("if length > setting.reach else", "if length > 2 * setting.reach else"))


@bug(f"{_DESCENT}::test_a_step_is_never_longer_than_what_brings_points_together[0.3]")
def a_step_to_the_nearest_double() -> None:
    """It is longer than the longest for which two neighbours come nearer to each other."""
    from service.learning.optimization import descent

    rewrite(descent._step, ("round_down(", "float("))


@bug("tests/learning/test_records.py::test_some_of_the_records_keep_all_that_is_known_of_each")
def records_that_are_parts_of_other_units() -> None:
    """Some records of a range each take the number of another one's unit."""
    from service.learning.records import Records

    rewrite(Records.__getitem__, ("None if self.owners is None else self.owners[which]", "self.owners"))
