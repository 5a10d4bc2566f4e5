"""Bugs in what a guarantee is made of: losses, noise, sensitivities, sums and comparisons."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.guarantees.planted.bug import ACTIVE, AUDIT, RELEASED, bug, rewrite, wrap

if TYPE_CHECKING:
    from collections.abc import Callable

_DENSITY = "tests/learning/test_objective_perturbation.py::test_densities_differ_by_the_charge_and_no_more"
_LEADER = "tests/mechanisms/online_leader/test_online_leader.py"
_RUNNING = f"{_LEADER}::test_from_released_models_comes_white_noise_of_the_right_size"
_MOMENTS = "tests/mechanisms/test_sufficient_statistics.py"
_TASKS = "tests/mechanisms/lifelong/test_lifelong.py"
_NODES = "tests/privacy/test_window_tree.py::test_a_window_of_4_leaf_by_leaf_is_that_of_mechanisms_md"


@bug(f"{AUDIT}[every block by itself pure]")
def half_the_noise_pure() -> None:
    """A scale that is halved by somebody who forgot a factor."""
    half_the_noise()


@bug(f"{AUDIT}[continual gaussian]")
def half_the_noise() -> None:
    """The same."""
    from service.privacy.noise import additive as noise

    wrap(noise, "calibrate", lambda true, *a, **k: (law := true(*a, **k)) and replace(law, scale=law.scale / 2))


@bug(f"{RELEASED}[continual-pure-logistic]")
def a_third_too_little_noise() -> None:
    """The sampler draws less noise than the release states."""
    from service.privacy.noise import additive as noise

    wrap(noise, "add", lambda true, values, law: true(values, replace(law, scale=law.scale * 2 / 3)))


@bug(f"{RELEASED}[sliding window-gaussian-softmax]")
def a_third_too_little_noise_gaussian() -> None:
    """The same."""
    a_third_too_little_noise()


@bug(f"{RELEASED}[continual-pure-logistic]")
def an_exponential_radius() -> None:
    """Paper B's equation 11 read as the law of the radius."""
    from service.privacy.noise import additive as noise

    def add(_true: Any, values: Any, law: Any) -> Any:
        direction = np.random.default_rng().normal(size=values.shape)
        return values + np.random.default_rng().exponential(law.scale) * direction / np.linalg.norm(direction)

    wrap(noise, "add", add)


@bug(f"{RELEASED}[continual-pure-logistic]")
def laplace_noise_per_coordinate() -> None:
    """Paper A's Lap(·) of a vector, with the L2 sensitivity (paper-audit.md N2)."""
    from service.privacy.noise import additive as noise

    wrap(noise, "add", lambda _, values, law: values + np.random.default_rng().laplace(0, law.scale, values.shape))


@bug(f"{AUDIT}[sliding_window gaussian]")
def noise_drawn_again() -> None:
    """A step that is run again after a crash, with fresh noise each time, and all results seen: their mean."""
    from service.privacy.noise import additive as noise

    wrap(noise, "add", lambda true, values, law: np.mean([true(values, law) for _ in range(4)], axis=0))


@bug("tests/privacy/test_noise.py::test_every_draw_is_fresh_even_after_a_fork")
def a_seeded_generator() -> None:
    """256 possible noises, and two workers that draw the same ones."""
    generator = np.random.default_rng(ord(os.urandom(1)))
    os.urandom = generator.bytes


@bug("tests/privacy/test_currency.py::test_rounding_brackets_every_fraction_with_neighbouring_doubles")
def rounding_to_the_nearest() -> None:
    """A charge that is a little less than what was spent."""
    from service.privacy import currency

    currency.round_up = float


@bug("tests/privacy/test_currency.py::test_the_gaussian_mechanism_keeps_what_its_rho_promises")
def an_epsilon_that_is_a_tenth_too_small() -> None:
    """A conversion from ρ that somebody remembered wrongly."""
    from service.privacy import currency

    wrap(currency, "zcdp_epsilon", lambda true, rho, delta: 0.9 * true(rho, delta))


@bug("tests/privacy/test_events.py::test_the_cost_is_the_formulas[ten sums of gradients]")
def an_event_that_is_priced_by_anothers_formula() -> None:
    """Many sums of gradients cost what one costs."""
    from service.privacy.accounting.events.added_noise import NoisyDisjointGradientSums, NoisyGradientSums

    NoisyGradientSums._cost = NoisyDisjointGradientSums._cost


@bug(f"{_DENSITY}[case0-1.0]")
def a_curvature_forgotten() -> None:
    """All of ε on the tilt, and a regularization that is never raised: what the minimiser's Jacobian tells is free."""
    from service.privacy.accounting.events.objective import curvature

    rewrite(curvature, ("return round_up(rank * Fraction(math.log1p(ratio)) * _ROUNDED)", "return 0.0"))


@bug(f"{_DENSITY}[case0-1.0]")
def the_gradient_of_one_record() -> None:
    """The sensitivity of presence or absence, R, for a tilt that has to hide a replacement, 2R."""
    from service.privacy.noise import additive as noise

    wrap(
        noise,
        "calibrate",
        lambda true, kind, *, sensitivity, **k: true(kind, sensitivity=sensitivity / 2, **k),
    )


@bug(f"{_RUNNING}[blt]")
def a_column_of_norm_one() -> None:
    """A record charged for the step that reads it, and not for what later steps tell by taking its noise back."""
    from service.privacy.noise.correlated import Blt

    column = Blt.column.func
    Blt.column = property(lambda self: column(self)._replace(square=Fraction(1)))  # type: ignore[assignment]


@bug(f"{_RUNNING}[toeplitz]")
def running_sums_with_noise_of_their_own() -> None:
    """Every running sum gets fresh noise, and a record pays for the first one it is in."""
    from service.privacy.noise.correlated import Toeplitz

    wrap(Toeplitz, "carried", lambda _, self, memory, step: sum(memory[:step], start=0.0))


@bug(f"{_MOMENTS}::test_some_neighbours_come_close")
def statistics_of_presence_or_absence() -> None:
    """The sensitivity that L2DP-C has where a record is only left out: √(a² + b²) (paper-audit.md 4.2)."""
    _moved_by(lambda second, first, label, count: second**2 + first**2 + label**2 + count**2)


@bug(f"{_MOMENTS}::test_neighbours_never_move_statistics_further")
def second_moments_that_count_twice() -> None:
    """The triangle without its √2, and a sensitivity that is about that: the matrix has every entry of it twice."""
    _moved_by(lambda second, first, label, count: 4 * (first**2 + label**2 + second**2 / 8))


@bug(f"{AUDIT}[lifelong, memory gaussian]")
def the_memory_is_privatised_again() -> None:
    """A batch that every step reads anew from a memory of records, with fresh noise, for one charge: their mean."""
    from service.privacy.noise.correlated import Correlated

    def release(true: Any, self: Any, *arguments: Any) -> Any:
        estimates = [true(self, *arguments) for _ in range(4)]
        return np.mean([each for each, _ in estimates], axis=0), estimates[-1][1]

    wrap(Correlated, "release", release)


@bug(f"{_TASKS}::test_from_released_models_comes_white_noise_of_the_right_size[memory]")
def one_noise_for_all_tasks() -> None:
    """Paper D's χ₁, drawn once: what two perturbed tasks differ by is what the tasks differ by (paper-audit.md 4.1)."""
    from service.privacy.noise.additive import Gaussian

    drawn: dict[int, Any] = {}
    wrap(Gaussian, "sample", lambda true, self: drawn.setdefault(self.dimension, true(self)))


@bug(f"{_TASKS}::test_from_released_models_comes_white_noise_of_the_right_size[memory]")
def labels_that_nobody_perturbs() -> None:
    """Paper D's classifier: noise on the second moments only, and the labels as they are (paper-audit.md 4.1)."""
    from service.privacy.noise import additive as noise

    def add(true: Any, values: Any, law: Any) -> Any:
        noisy = true(values, law)
        noisy[-6:] = values[-6:]  # of two classes, five features and an intercept
        return noisy

    wrap(noise, "add", add)


@bug(f"{AUDIT}[lifelong, encoder gaussian]")
def half_the_noise_of_an_encoder() -> None:
    """A scale that is halved by somebody who forgot a factor."""
    half_the_noise()


@bug("tests/privacy/test_several_records.py::test_a_record_moves_what_it_is_charged_for[window_tree, W = 64]")
def a_column_shifted_wrong() -> None:
    """The nodes that a step completes are taken to be those of the step after it."""
    from service.privacy.noise import correlated

    wrap(correlated, "_completed", lambda true, step: true(step + 1))


@bug("tests/privacy/test_several_records.py::test_the_page_says_what_records_in_neighbouring_batches_cost[independent]")
def independent_noise_that_is_carried_on() -> None:
    """Noise that is said to be independent, and that later batches take back: its line of the page is then too low."""
    from service.privacy.noise.correlated import Blt
    from tests.privacy import test_several_records

    test_several_records.NOISES["independent"] = Blt.decaying(0.97)


_ADMITTED = "tests/mechanisms/test_admission.py"


@bug(f"{_ADMITTED}::test_just_under_the_cap_is_accepted_and_just_above_is_refused[independent_batches]")
def no_cap_on_pure_epsilon() -> None:
    """Any ε is taken, whatever the draws that are only nearly exact add to δ."""
    from service.mechanisms import admission

    admission.is_small = lambda *_: True


@bug(f"{_ADMITTED}::test_just_under_the_cap_is_accepted_and_just_above_is_refused[multi_resolution]")
def draws_of_one_fit_alone() -> None:
    """Draws are counted for each fit, and a record is in many."""
    from service.schedules.multi_resolution import MultiResolution

    MultiResolution.most_fits = lambda self: 1  # type: ignore[method-assign]


@bug("tests/privacy/test_sampler_distance.py::test_the_cap_is_where_the_added_delta_passes_two_to_the_minus_sixty[1]")
def a_distance_that_is_not_blown_up() -> None:
    """A total variation distance is added to δ as it is, without the factor 1 + e^ε."""
    from service.privacy.noise import sampler_distance

    wrap(sampler_distance, "added_delta", lambda true, _, draws: true(Fraction(1, 10**9), draws) / 2)


def _moved_by(square: Callable[..., float]) -> None:
    from service.privacy import sensitivity

    wrap(sensitivity, "sufficient_statistics", lambda _, *, codes, **weights: square(**weights) ** 0.5)


@bug(f"{AUDIT}[online_leader, leaf gaussian noisy_gradient_descent]")
def half_the_noise_of_a_node() -> None:
    """A scale that is halved, in a tree with expiry."""
    from service.privacy.noise import window_tree

    def calibrate(true: Any, kind: Any, **settings: Any) -> Any:
        calibrated = true(kind, **settings)
        return replace(calibrated, noise=replace(calibrated.noise, scale=calibrated.noise.scale / 2))

    wrap(window_tree, "calibrate", calibrate)


@bug(
    "tests/privacy/test_window_tree.py::"
    "test_until_it_is_declassified_a_record_loses_what_it_is_charged_and_some_do_lose_it[leaf]"
)
def a_whole_subtree_without_its_noise() -> None:
    """A root that expires with its first leaf, while others of its leaves are in the window (paper-audit.md 2)."""
    from service.privacy.noise.window_tree import WindowTree

    wrap(WindowTree, "declassified", lambda true, self, step: -(-true(self, step) // self.block) * self.block)


@bug(_NODES)
def in_the_clear_a_step_too_early() -> None:
    """A leaf that is clean at i + W - 1, when it still is the oldest one in the window."""
    from service.privacy.noise.window_tree import WindowTree

    wrap(WindowTree, "declassified", lambda true, self, step: true(self, step + 1))


@bug(
    "tests/privacy/test_window_tree.py::test_what_is_released_is_the_sums_and_the_nodes_of_one_noise_each[(4, 'leaf')]"
)
def noise_of_a_node_drawn_at_each_use() -> None:
    """A record is then charged for so many nodes, and pays for so many steps."""
    from service.privacy.noise.window_tree import Windowed

    def release(true: Any, self: Any, values: Any, memory: Any, step: int) -> Any:
        fresh = np.random.default_rng()
        noisy = [again for again, _ in self.factor.remembered(step)] + [False] * bool(memory)
        drawn = [fresh.normal(size=values.shape) * self.noise.scale * again for again in noisy]
        return true(self, values, tuple(each + more for each, more in zip(memory, drawn, strict=True)), step)

    wrap(Windowed, "release", release)


@bug(
    "tests/guarantees/test_active_learning.py::test_coins_and_models_together_tell_no_more_than_is_charged[exponential]"
)
def coins_of_three_times_epsilon() -> None:
    """Δ taken to be a third of M - b."""
    from service.privacy.noise.selection import Exponential

    wrap(Exponential, "exponent", lambda true, self, distance: 3 * true(self, distance))


@bug(f"{ACTIVE}::test_the_papers_own_setting_is_refused_with_what_it_costs_and_what_would_do")
def not_being_selected_tells_nothing() -> None:
    """Lemma 4.2 without its condition, as in the paper's experiment: only who is selected loses something."""
    from service.privacy.noise.selection import Exponential

    Exponential.loss = lambda self: Fraction(self.epsilon)  # type: ignore[method-assign]


@bug("tests/privacy/test_sparse_vector.py::test_what_an_instance_tells_has_the_stated_law")
def a_third_too_little_noise_in_comparisons() -> None:
    """Thresholds and comparisons with less noise than the scale says."""
    from service.privacy.noise import sparse_vector

    wrap(sparse_vector, "discrete_laplace", lambda true, scale: true(scale * 2 / 3))


@bug("tests/privacy/test_numeric_sparse.py::test_noise_has_the_stated_law_and_a_third_less_has_not[zcdp]")
def a_third_too_little_noise_in_measured_answers() -> None:
    """The same of what is told after a yes."""
    from service.privacy.noise import numeric_sparse

    wrap(numeric_sparse, "discrete_gaussian", lambda true, variance, count: true(variance * 4 / 9, count))


@bug("tests/guarantees/test_queries.py::test_whoever_asks_on_purpose_learns_no_more_than_is_promised[pure]")
def comparisons_without_noise_of_their_own() -> None:
    """The sparse vector technique as some printed it: noise on the threshold alone (Lyu, Su, Li 2017, Algorithm 5)."""
    from service.privacy.noise.sparse_vector import Instance

    Instance.is_above = lambda self, value, height, noise: value >= self.steps(height) + noise  # type: ignore[method-assign]


@bug(
    "tests/mechanisms/linear_queries/test_linear_queries.py::test_a_threshold_is_drawn_once_for_an_instance_and_anew_for_the_next"
)
def a_threshold_that_is_never_drawn_again() -> None:
    """One threshold for all instances: Lyu, Su, Li 2017, what is wrong with their Algorithm 3."""
    from service.privacy.noise.sparse_vector import Instance

    Instance.threshold_noise = lambda self: 7  # type: ignore[method-assign]
