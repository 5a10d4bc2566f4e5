"""Bugs in how models are fitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.guarantees.planted.bug import ACTIVE, AUDIT, RELEASED, bug, rewrite, wrap
from tests.mechanisms import cases

_CLIPPED = "tests/learning/test_noisy_gradient_descent.py::test_neighbours_never_move_a_sum_further"
_ENCODER = "tests/mechanisms/lifelong/test_encoder_pass.py"
_SAMPLED = "tests/learning/test_sampled_fits.py"
_OF_A_SAMPLE = f"{AUDIT.rpartition('::')[0]}::test_nobody_can_tell_two_records_apart_by_a_fit_of_a_sample"
_PULLED = "tests/learning/test_pull.py"
_APART = "tests/learning/test_output_perturbation.py::test_neighbours_are_never_further_apart"


@bug(f"{AUDIT.rpartition('::')[0]}::test_nobody_can_tell_a_record_from_an_empty_slot_by_a_small_database[pure]")
def errors_that_are_not_shares() -> None:
    """The score of the exponential mechanism in slots, its sensitivity still 1/n."""
    from service.learning import small_database

    wrap(small_database, "select", lambda true, errors, rate: true(errors, rate * 4))


@bug("tests/learning/test_small_database.py::test_what_is_released_follows_the_law_of_the_paper[pure-as it is]")
def the_half_of_the_exponential_mechanism() -> None:
    """exp(-ε·error/Δ) for exp(-ε·error/(2Δ))."""
    from service.learning import small_database

    wrap(small_database, "select", lambda true, errors, rate: true(errors, rate * 2))


@bug(f"{_PULLED}::test_a_release_is_the_fit_that_its_noise_is_for")
def a_fit_that_is_pulled_less_than_its_noise_says() -> None:
    """The sensitivity of a strong pull, and the fit of a weak one, which a record moves a hundred times as far."""
    from service.learning.output_perturbation import OutputPerturbation

    rewrite(OutputPerturbation.release, ("perturbation.regularization", "self.regularization"))


@bug(f"{_PULLED}::test_neighbours_are_no_further_apart_than_the_noise_is_for")
def a_sensitivity_for_another_pull() -> None:
    """The sensitivity of ten times the pull that the fit gets."""
    from service.learning.output_perturbation import OutputPerturbation

    rewrite(OutputPerturbation.perturbation, ("center, regularization)", "center, 10.0 * regularization)"))


@bug(f"{RELEASED}[continual-gaussian-softmax]")
def a_parent_without_its_noise() -> None:
    """Fits that start from the exact model before, which was never released."""
    from service.learning.output_perturbation import OutputPerturbation

    exact: dict[bytes, Any] = {}

    def release(true: Any, self: Any, records: Any, n: int, center: Any, perturbation: Any) -> Any:
        center = exact.get(center.tobytes(), center)
        released = true(self, records, n, center, perturbation)
        exact[released.tobytes()] = self.fit(records, n, center)
        return released

    wrap(OutputPerturbation, "release", release)


@bug(_APART)
def the_mean_over_the_records_that_are_there() -> None:
    """n falls when a record is erased."""
    from service.learning.output_perturbation import OutputPerturbation

    wrap(OutputPerturbation, "fit", lambda true, self, records, n, center: true(self, records, len(records.y), center))


@bug("tests/guarantees/test_released_noise.py")
def the_mean_over_b0() -> None:
    """Algorithm 3 line 2: every update divides by b_0, however many records it reads."""
    from service.learning.output_perturbation import OutputPerturbation

    wrap(OutputPerturbation, "fit", lambda true, self, records, n, center: true(self, records, min(n, 4), center))


@bug(_APART)
def a_smoothness_for_a_steepness() -> None:
    """Paper A's experiments: for two classes their L per record is 1/4."""
    from service.learning.optimization.losses import Logistic

    wrap(Logistic, "lipschitz", lambda true, *args: true(*args) / 4)


@bug(_APART)
def records_that_are_not_clipped() -> None:
    """A norm bound that nobody enforces."""
    from service.learning.records import PreparedRows

    wrap(PreparedRows, "of", lambda true, x, norm_bound, intercept: true(x, norm_bound=1e30, intercept=intercept))


@bug(f"{AUDIT}[every block by itself gaussian noisy_gradient_descent]")
def steps_that_share_a_charge_each() -> None:
    """Every step of a noisy descent spends the whole charge."""
    from service.learning import noisy_gradient_descent

    wrap(
        noisy_gradient_descent.noises,
        "calibrate",
        lambda true, kind, *, charge, **k: true(kind, charge=4 * charge, **k),
    )


@bug(_CLIPPED)
def gradients_that_are_not_clipped() -> None:
    """A sensitivity that nobody enforces."""
    from service.learning import noisy_gradient_descent

    wrap(noisy_gradient_descent, "summed", lambda true, loss, x, y, weights, steepest: true(loss, x, y, weights))


@bug(f"{AUDIT}[online_leader gaussian noisy_gradient_descent]")
def half_the_noise_in_running_sums() -> None:
    """A scale that is halved, of noise that is taken back."""
    from service.mechanisms.online_leader import online_gradient

    _halved(online_gradient.running_sums)


@bug(f"{AUDIT}[{' '.join(next(iter(cases.of_families('AUDITS'))))}]")
def half_the_noise_in_windows() -> None:
    """The same."""
    from service.mechanisms import sufficient_statistics

    _halved(sufficient_statistics.correlated)


@bug(f"{_ENCODER}::test_neighbours_never_move_a_sum_further")
def gradients_that_are_clipped_together() -> None:
    """The mean of a batch is clipped, as one would without private records."""
    from service.mechanisms.lifelong.encoder_pass import EncoderPass

    def summed(true: Any, self: Any, *arguments: Any) -> Any:
        total, n = true(replace(self, clip=1e9), *arguments), arguments[-2]
        return total * min(1.0, n * self.clip / max(np.linalg.norm(total), 1e-300))

    wrap(EncoderPass, "summed", summed)


@bug(f"{_ENCODER}::test_each_batch_has_a_step_of_its_own_and_slots_keep_their_batch")
def an_encoder_that_reads_its_records_twice() -> None:
    """Another epoch, for the price of one."""
    from service.learning.encoders import Encoder
    from service.mechanisms.lifelong.encoder_pass import EncoderPass

    def release(true: Any, self: Any, *arguments: Any) -> Any:
        first, initial = true(self, *arguments)[0], Encoder.initial
        Encoder.initial = lambda *_: first  # type: ignore[method-assign]
        try:
            return true(self, *arguments)
        finally:
            Encoder.initial = initial  # type: ignore[method-assign]

    wrap(EncoderPass, "release", release)


def _halved(owner: Any) -> None:
    def calibrate(true: Any, kind: Any, **settings: Any) -> Any:
        calibrated = true(kind, **settings)
        return replace(calibrated, noise=replace(calibrated.noise, scale=calibrated.noise.scale / 2))

    wrap(owner, "calibrate", calibrate)


@bug("tests/guarantees/test_active_learning.py::test_coins_and_models_together_tell_no_more_than_is_charged[bernoulli]")
def half_the_noise_of_an_update() -> None:
    """A scale that is halved, of the noise that is added to the gradients of who was selected."""
    from service.mechanisms.active_learning import active_gradient

    wrap(
        active_gradient.noises,
        "calibrate",
        lambda true, *a, **k: (law := true(*a, **k)) and replace(law, scale=law.scale / 2),
    )


@bug(f"{ACTIVE}::test_an_erased_slot_is_selected_as_a_record_on_the_hyperplane_and_adds_nothing[fixed_window]")
def an_absent_record_that_is_never_selected() -> None:
    """A coin for those that are there."""
    from service.mechanisms.active_learning.active_gradient import ActiveGradient

    def select(true: Any, self: Any, records: Any, start: int, end: int, *more: Any) -> Any:
        selected, stopped = true(self, records, start, end, *more)
        return [slot for slot in selected if slot in records.in_slots(start, end)], stopped

    wrap(ActiveGradient, "select", select)


@bug("tests/mechanisms/active_learning/test_active_gradient.py::test_an_update_is_that_of_mechanisms_md[svm]")
def a_mean_over_the_labels_that_came() -> None:
    """|B| falls with a label that is missing, as the noise does not."""
    from service.mechanisms.active_learning.active_gradient import ActiveGradient

    def update(true: Any, self: Any, records: Any, _count: int, *more: Any) -> Any:
        return true(self, records, max(1, int(np.isfinite(records.y).sum())), *more)

    wrap(ActiveGradient, "update", update)


@bug(_OF_A_SAMPLE)
def half_the_noise_of_a_sample() -> None:
    """A scale that is halved, in a fit that draws its slots."""
    from service.privacy.noise import additive as noise

    wrap(noise, "calibrate", lambda true, *a, **k: (law := true(*a, **k)) and replace(law, scale=law.scale / 2))


@bug(_OF_A_SAMPLE)
def a_sample_that_is_counted_twice() -> None:
    """The learner is told what a sample may spend, and makes more of it once again."""
    from service.learning import output_perturbation

    def twice(true: Any, charge: float, drawn: int, slots: int) -> float:
        return float(true(true(charge, drawn, slots), drawn, slots))

    wrap(output_perturbation, "epsilon_of_sample", twice)


@bug(f"{_SAMPLED}::test_each_slot_is_drawn_as_often_as_any_other_whether_it_is_empty_or_not[at once]")
def a_sample_of_the_records_that_are_there() -> None:
    """An empty slot is never drawn: the last record of a range would always be."""
    from service.learning import samples

    def read_sample(true: Any, records: Any, _slots: int, drawn: int, features: int) -> Any:
        return true(records, len(records.y), drawn, features)

    wrap(samples, "read_sample", read_sample)


@bug("tests/guarantees/test_released_noise.py::test_releases_of_a_sample_have_the_noise_of_its_size[exact]")
def a_sample_whose_mean_is_over_its_range() -> None:
    """The sensitivity of all n slots, for a mean over the h that were drawn."""
    from service.learning.output_perturbation import OutputPerturbation

    wrap(OutputPerturbation, "sensitivity", lambda true, self, records, *center: true(self, max(records, 16), *center))


@bug(f"{_SAMPLED}::test_a_release_is_of_a_fresh_sample_each_time[exact]")
def a_sample_that_is_drawn_once() -> None:
    """All fits of a range have the same sample: whatever was learnt of it makes the next fit cost more."""
    from functools import cache

    from service.privacy import sampling

    sampling.draw = cache(sampling.draw)


@bug("tests/privacy/test_sampling.py::test_a_sample_spends_all_of_a_charge_and_no_more")
def what_a_sample_may_spend_to_the_nearest_double() -> None:
    """Logarithms of doubles: a release costs more than its charge by the last digit."""
    import math

    from service.privacy import sampling

    def nearest(_true: Any, charge: float, drawn: int, slots: int) -> float:
        return math.log1p(slots / drawn * math.expm1(charge))

    wrap(sampling, "epsilon_of_sample", nearest)


@bug("tests/learning/optimization/test_constraint_sets.py::test_a_projection_is_the_nearest_point_of_the_set[simplex]")
def a_projection_from_too_far_away() -> None:
    """It ends a step of which the noise is drawn, for some noise and not for other; then it is drawn once more."""
    from service.learning.optimization import constraint_sets

    rewrite(constraint_sets._left, ("values - values.max()", "values"))


_CERTIFIED = "tests/learning/optimization/test_solvers.py::test_a_point_that_nothing_certifies_is_no_result"


@bug(f"{_CERTIFIED}[1]")
def a_search_whose_last_point_is_taken_for_the_minimiser() -> None:
    """It is farther away than the noise is for."""
    from service.learning.optimization import newton

    rewrite(newton.minimize, ("sizes.append(norm(at.gradient))\n    return None", "pass\n    return at.weights"))


@bug("tests/learning/test_records.py::test_records_of_units_say_what_part_of_which_unit_each_is")
def records_of_a_unit_that_count_in_full() -> None:
    """A learner that is given no parts counts every record whole, with noise for whole units."""
    from service.learning.records import Records

    rewrite(Records.__post_init__, ("(self.weights is None) != (self.units is None)", "False"))


@bug(
    "tests/learning/optimization/test_sums.py::test_a_fit_is_the_same_where_all_slots_are_empty_that_it_would_begin_with"
)
def a_fit_that_ends_because_some_slots_are_empty() -> None:
    """A publication that halts tells which slots these are."""
    from service.learning.optimization.sums import SummedObjective

    rewrite(SummedObjective.sampled, ("if not len(y):", "if False:"))
