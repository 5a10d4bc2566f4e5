"""Bugs in bounds on what rounding does: a term halved or left out, where the others hide it."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_BOUNDS = "tests/learning/test_error_bounds.py"
_GRADIENT = f"{_BOUNDS}::test_a_computed_gradient_is_as_near_as_its_formula_says"


@bug(f"{_GRADIENT}[small]")
def half_a_unit_of_rounding() -> None:
    """A double is said to be twice as exact as it is."""
    from service.learning import solvers

    solvers.UNIT = 2.0**-54


@bug(f"{_GRADIENT}[small]")
def products_of_errors_that_nobody_covers() -> None:
    """The sum of all errors is taken once, not twice."""
    from service.learning.solvers import Setting

    rewrite(Setting.error, ("2.0\n        * UNIT", "1.0\n        * UNIT"))


@bug(f"{_GRADIENT}[wide]")
def half_the_error_of_scores() -> None:
    """A dot product of length D is said to round D/2 times."""
    from service.learning.solvers import Setting

    rewrite(Setting.error, ("(features + 2)", "(features / 2 + 1)"))


@bug(f"{_GRADIENT}[classes]")
def slopes_that_are_evaluated_exactly() -> None:
    """The bound leaves out the rounding of a derivative."""
    from service.learning.solvers import Setting

    rewrite(Setting.error, ("+ self.norm_bound * self.loss.slope_error(rows)", ""))


@bug(f"{_GRADIENT}[tilt]")
def a_tilt_that_is_added_exactly() -> None:
    """The bound leaves out the rounding of the tilt."""
    from service.learning.solvers import Setting

    rewrite(Setting.error, ("(self.lipschitz + self.tilt + self.regularization * radius)", "(self.lipschitz)"))


@bug(f"{_GRADIENT}[step]")
def half_the_error_of_a_step() -> None:
    """The bound halves the rounding of a step of gradient descent."""
    from service.learning.solvers import Setting

    rewrite(Setting.error, ("+ 8.0 * smoothness * weights", "+ 4.0 * smoothness * weights"))


@bug(f"{_BOUNDS}::test_a_minimiser_is_certified_as_its_formula_says")
def a_certificate_of_half_its_tolerance() -> None:
    """On long ranges a minimiser is called nearer than it is known to be."""
    from service.learning import solvers

    rewrite(solvers._accuracy, ("5.0 * error", "2.5 * error"))


@bug(f"{_BOUNDS}::test_a_solver_that_counts_its_steps_moves_as_its_formula_says")
def step_sizes_that_are_exact() -> None:
    """The bound leaves out the rounding of step sizes."""
    from service.privacy import sensitivity

    rewrite(sensitivity.permutation_sgd, ("_ROUNDED * 2 * Fraction(lipschitz)", "2 * Fraction(lipschitz)"))


@bug(f"{_BOUNDS}::test_a_solver_that_counts_its_steps_moves_as_its_formula_says")
def an_iterate_that_is_off_on_one_side() -> None:
    """The bound takes one of two neighbours as computed exactly."""
    from service.privacy import sensitivity

    rewrite(sensitivity.gradient_descent, ("+ 2 * Fraction(tolerance) / alpha", "+ Fraction(tolerance) / alpha"))


@bug(f"{_BOUNDS}::test_a_sum_of_clipped_gradients_moves_as_its_formula_says")
def half_the_error_of_clipped_gradients() -> None:
    """A sum of many gradients is said to be twice as exact as it is."""
    from service.learners import noisy_gradient_descent

    rewrite(noisy_gradient_descent.clipped_sum, ("2.0 * UNIT * records * per_record", "UNIT * records * per_record"))


@bug(f"{_BOUNDS}::test_statistics_move_as_their_formula_says")
def statistics_that_are_off_on_one_side() -> None:
    """The bound takes one of two neighbours as added up exactly."""
    from service.mechanisms.sufficient_statistics import Statistics

    rewrite(Statistics.perturbation, ("+ 2.0 * error", "+ error"))


@bug(f"{_BOUNDS}::test_the_gradients_of_an_encoder_move_as_their_formula_says")
def half_the_slack_of_an_encoder() -> None:
    """A batch's sum is said to be twice as exact as it is."""
    from service.mechanisms.lifelong.encoder_pass import EncoderPass

    rewrite(EncoderPass.perturbation, ("max(SLACK,", "max(SLACK / 2.0,"))


@bug(f"{_BOUNDS}::test_the_output_of_a_tilted_minimiser_moves_as_its_formula_says")
def half_the_output_of_a_tilted_minimiser() -> None:
    """The bound takes one of two neighbours as fitted exactly."""
    from service.learners.objective_perturbation import ObjectivePerturbation

    rewrite(ObjectivePerturbation.perturbation, ("MARGIN * 2.0 * tolerance", "MARGIN * tolerance"))


@bug(f"{_BOUNDS}::test_rounding_moves_correlated_noise_as_its_formula_says")
def half_the_rounding_of_correlated_noise() -> None:
    """The bound takes the memory as twice as exact as it is."""
    from service.privacy.noise import correlated

    rewrite(correlated._moved, ("(4 * column.rounding + 1)", "(2 * column.rounding + 1)"))


@bug(f"{_BOUNDS}::test_an_epsilon_covers_32_roundings_of_each_of_its_terms")
def half_the_inflation_of_an_epsilon() -> None:
    """The ε that ρ implies is rounded up by half of what its terms may be off."""
    from service.privacy import currency

    currency._INFLATION = 2.0**-49


_LONGEST_TILT = (
    "tests/learners/test_objective_perturbation.py::"
    "test_the_solver_is_as_near_as_for_the_longest_tilt_and_the_centre_of_the_fit"
)


@bug(_LONGEST_TILT)
def a_solver_that_reckons_with_half_the_tilt() -> None:
    """Rounding beside the longest tilts is more than the output noise is for."""
    from service.learners.objective_perturbation import ObjectivePerturbation

    rewrite(ObjectivePerturbation._promise, ("tilt=longest,", "tilt=longest / 2,"))


@bug(_LONGEST_TILT)
def a_solver_that_reckons_with_a_centre_of_zeros() -> None:
    """The same, near a model of long weights."""
    from service.learners.objective_perturbation import ObjectivePerturbation

    rewrite(ObjectivePerturbation._promise, ("center_norm=center_norm", "center_norm=0.0"))


@bug("tests/mechanisms/test_configuration.py::test_a_loss_is_never_stated_below_the_charges_that_it_is_of[0]")
def a_loss_to_the_nearest_double() -> None:
    """A plan states less than a record loses."""
    from service.mechanisms.mechanism import Mechanism

    rewrite(Mechanism.loss_of, ("round_up(amount)", "float(amount)"))


@bug("tests/mechanisms/test_units.py::test_rounding_is_reckoned_for_the_noise_of_the_charge_that_a_slot_of_a_unit_gets")
def rounding_beside_the_noise_of_a_whole_charge() -> None:
    """A slot of a unit may be charged a part of the capacity, and beside that noise rounding is another part."""
    from service.mechanisms import units

    rewrite(units.of_carried_noise, ("noisy = charged(factor)", "noisy = planned"))


_DESCENT = "tests/learning/test_descent.py"


@bug(f"{_DESCENT}::test_an_iterate_is_pulled_back_from_wherever_it_leaves_the_ball")
def a_ball_that_iterates_leave() -> None:
    """Outside of it the squared loss is steeper than its noise reckons with."""
    from service.learning import descent

    rewrite(descent._projected, ("if length > setting.reach else", "if length > 2 * setting.reach else"))


@bug(f"{_DESCENT}::test_a_step_is_never_longer_than_what_brings_points_together[0.3]")
def a_step_to_the_nearest_double() -> None:
    """It is longer than the longest for which two neighbours come nearer to each other."""
    from service.learning import descent

    rewrite(descent._step, ("round_down(", "float("))


@bug("tests/learning/test_records.py::test_some_of_the_records_keep_all_that_is_known_of_each")
def records_that_are_parts_of_other_units() -> None:
    """Some records of a range each take the number of another one's unit."""
    from service.learning.records import Records

    rewrite(Records.__getitem__, ("None if self.owners is None else self.owners[which]", "self.owners"))


@bug("tests/privacy/test_groups.py::test_no_autocorrelation_is_rounded_down[1-0.5]")
def an_autocorrelation_that_is_rounded_down() -> None:
    """The records of a unit are said to share a little less noise than they do."""
    from service.privacy.accounting import carried_groups

    rewrite(carried_groups._of_toeplitz, ("* (1 + Fraction(", "/ (1 + Fraction("))


@bug(
    "tests/learners/test_objective_perturbation.py::"
    "test_a_coarse_lattice_of_the_tilt_moves_the_minimiser_by_half_a_diagonal_of_its_cells"
)
def a_lattice_of_the_tilt_that_counts_for_one_weight() -> None:
    """The bound takes the tilt of all weights together as rounded as that of one."""
    from service.learners.objective_perturbation import ObjectivePerturbation

    rewrite(ObjectivePerturbation.perturbation, ("tilt.grid * math.sqrt(self.dimension)", "tilt.grid"))
