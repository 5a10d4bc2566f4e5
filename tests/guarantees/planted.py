"""Bugs that others shipped or the papers invite, each with the test that must catch it.

`pytest --planted` plants one after the other in a fresh process (`pytest --plant NAME`) and wants the named test to
fail there, and to pass without. A plant replaces what it names in the running program, before anything uses it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

BUGS: dict[str, Bug] = {}

_AUDIT = "tests/guarantees/test_audits.py::test_nobody_can_tell_two_records_apart_better_than_promised"
_RELEASED = (
    "tests/guarantees/test_released_noise.py::test_releases_are_minimisers_near_released_parents_with_the_stated_noise"
)
_DENSITY = "tests/learning/test_objective_perturbation.py::test_densities_differ_by_the_charge_and_no_more"
_CLIPPED = "tests/learning/test_noisy_gradient_descent.py::test_neighbours_never_move_a_sum_further"
_RUNNING = "tests/mechanisms/test_online_leader.py::test_from_released_models_comes_white_noise_of_the_right_size"
_MOMENTS = "tests/learning/test_moments.py"
_TASKS = "tests/mechanisms/test_lifelong.py"
_ENCODER = "tests/learning/test_encoder_pass.py"
_NODES = "tests/privacy/test_window_tree.py::test_a_window_of_4_leaf_by_leaf_is_that_of_mechanisms_md"
_ACTIVE = "tests/mechanisms/test_active_learning.py"
_SLOTS = "tests/mechanisms/test_linear_queries.py::test_every_slot_pays_once_for_each_instance_that_was_open"
_HISTORIES = "tests/faults/test_simulator.py::test_random_histories_keep_every_promise"
_APART = "tests/learning/test_learners.py::test_neighbours_are_never_further_apart"


@dataclass(frozen=True)
class Bug:
    """What to do to the program, and the test that sees it."""

    plant: Callable[[], None]
    caught_by: str


def bug(caught_by: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(plant: Callable[[], None]) -> Callable[[], None]:
        BUGS[plant.__name__] = Bug(plant, caught_by)
        return plant

    return add


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Put in the place of a function one that is also given the true one first."""
    true = getattr(owner, name)
    setattr(owner, name, lambda *args, **more: wrapper(true, *args, **more))


@bug(f"{_AUDIT}[every block by itself pure]")
def half_the_noise_pure() -> None:
    """A scale that is halved by somebody who forgot a factor."""
    half_the_noise()


@bug(f"{_AUDIT}[continual gaussian]")
def half_the_noise() -> None:
    """The same."""
    from service.privacy import noise

    wrap(noise, "calibrate", lambda true, *a, **k: (law := true(*a, **k)) and replace(law, scale=law.scale / 2))


@bug(f"{_AUDIT}[scheduled_black_box gaussian]")
def half_the_noise_of_every_run() -> None:
    """The same."""
    half_the_noise()


@bug(f"{_AUDIT}[improving_black_box gaussian]")
def half_the_noise_of_ever_more_runs() -> None:
    """The same."""
    half_the_noise()


@bug(f"{_RELEASED}[continual-pure-logistic-as it is]")
def a_third_too_little_noise() -> None:
    """What is drawn is less than what is said."""
    from service.privacy import noise

    wrap(noise, "add", lambda true, values, law: true(values, replace(law, scale=law.scale * 2 / 3)))


@bug(f"{_RELEASED}[sliding window-gaussian-softmax-as it is]")
def a_third_too_little_noise_gaussian() -> None:
    """The same."""
    a_third_too_little_noise()


@bug(f"{_RELEASED}[continual-pure-logistic-as it is]")
def an_exponential_radius() -> None:
    """Paper B's equation 11 read as the law of the radius."""
    from service.privacy import noise

    def add(_true: Any, values: Any, law: Any) -> Any:
        direction = np.random.default_rng().normal(size=values.shape)
        return values + np.random.default_rng().exponential(law.scale) * direction / np.linalg.norm(direction)

    wrap(noise, "add", add)


@bug(f"{_RELEASED}[continual-pure-logistic-as it is]")
def laplace_noise_per_coordinate() -> None:
    """Paper A's Lap(·) of a vector, with the L2 sensitivity (mechanisms.md N2)."""
    from service.privacy import noise

    wrap(noise, "add", lambda _, values, law: values + np.random.default_rng().laplace(0, law.scale, values.shape))


@bug(f"{_AUDIT}[sliding_window gaussian]")
def noise_drawn_again() -> None:
    """A step that is run again after a crash, with fresh noise each time, and all results seen: their mean."""
    from service.privacy import noise

    wrap(noise, "add", lambda true, values, law: np.mean([true(values, law) for _ in range(4)], axis=0))


@bug("tests/schedules/test_scheduled_black_box.py::test_epsilons_add_up_to_epsilon_exactly")
def runs_charged_by_an_index_off_by_one() -> None:
    """γ²(i + 1)q^(i+1), as if runs were numbered from 1 in one place and from 0 in the other."""
    from service.schedules.scheduled_black_box import ScheduledBlackBox

    wrap(ScheduledBlackBox, "tail", lambda true, self, run: true(self, run) * (1 + self.growth))


@bug("tests/schedules/test_improving_black_box.py::test_what_is_left_never_grows_and_every_run_gets_some")
def a_sum_without_its_first_run() -> None:
    """Σ_{t > n} (n/t)^2a ≤ n/(2a - 1) alone: the run at n is one more."""
    from service.schedules.improving_black_box import ImprovingBlackBox

    def tail(true: Any, self: Any, time: int) -> Fraction:
        return true(self, time) * (1 + Fraction(self.every, self.first))

    wrap(ImprovingBlackBox, "tail", tail)


@bug(f"{_AUDIT.rpartition('::')[0]}::test_nobody_can_tell_a_record_from_an_empty_slot_by_a_small_database[pure]")
def errors_that_are_not_shares() -> None:
    """The score of the exponential mechanism in slots, its sensitivity still 1/n."""
    from service.learning import small_database

    wrap(small_database, "select", lambda true, errors, rate: true(errors, rate * 4))


@bug("tests/learning/test_small_database.py::test_what_is_released_follows_the_law_of_the_paper[pure-as it is]")
def the_half_of_the_exponential_mechanism() -> None:
    """exp(-ε·error/Δ) for exp(-ε·error/(2Δ))."""
    from service.learning import small_database

    wrap(small_database, "select", lambda true, errors, rate: true(errors, rate * 2))


@bug("tests/privacy/test_noise.py::test_every_draw_is_fresh_even_after_a_fork")
def a_seeded_generator() -> None:
    """256 possible noises, and two workers that draw the same ones."""
    generator = np.random.default_rng(ord(os.urandom(1)))
    os.urandom = generator.bytes


@bug("tests/mechanisms/test_scheduled.py::test_a_fit_reads_what_it_charges_and_nothing_else")
def a_range_that_is_off_by_one() -> None:
    """The papers' closed intervals: one record more is read than is charged."""
    from service.mechanisms.scheduled import Scheduled

    def step(true: Any, self: Any, time: int, chain: Any, version: int, read: Any) -> Any:
        return true(self, time, chain, version, lambda start, end: read(max(0, start - 1), end))

    wrap(Scheduled, "step", step)


@bug(f"{_RELEASED}[continual-gaussian-softmax-as it is]")
def a_parent_without_its_noise() -> None:
    """Fits that start from the exact model before, which was never released."""
    from service.learning.learners import OutputPerturbation

    exact: dict[bytes, Any] = {}

    def release(true: Any, self: Any, records: Any, n: int, center: Any, perturbation: Any) -> Any:
        center = exact.get(center.tobytes(), center)
        released = true(self, records, n, center, perturbation)
        exact[released.tobytes()] = self.fit(records, n, center)
        return released

    wrap(OutputPerturbation, "release", release)


@bug(f"{_AUDIT}[continual gaussian]")
def a_charge_forgotten() -> None:
    """Fits get four times the budget that is written down."""
    from service.mechanisms.scheduled import Scheduled

    wrap(Scheduled, "_charge", lambda true, self, share: true(self, 4 * share))


@bug("tests/mechanisms/test_scheduled.py::test_a_long_run_charges_no_record_more_than_the_capacity")
def theorem_4() -> None:
    """Half of ε for every base of B and every update of b_0: 1.5 ε for the worst record (mechanisms.md 1.3)."""
    from service.schedules import shares

    wrap(shares, "equal", lambda true, *about: replace(true(*about), unit=Fraction(1, 2)))


@bug("tests/mechanisms/test_scheduled.py::test_a_long_run_charges_no_record_more_than_the_capacity")
def updates_that_take_what_bases_will_need() -> None:
    """Improving shares whose updates get the whole budget of an epoch, and forget the infinitely many bases to come."""
    from service.schedules.shares import Improving

    wrap(Improving, "_update", lambda true, self, epoch: true(self, epoch) / (1 - self.bases(epoch)))


@bug("tests/mechanisms/test_scheduled.py::test_a_long_run_charges_no_record_more_than_the_capacity")
def a_warm_up_that_nobody_pays() -> None:
    """The records of the first window are charged for the window's fits in full, and once more before."""
    from service.schedules import sliding_window

    wrap(sliding_window, "_divide", lambda _, *about: (0, Fraction(1), Fraction(1)))


@bug(_APART)
def the_mean_over_the_records_that_are_there() -> None:
    """n falls when a record is erased."""
    from service.learning.learners import OutputPerturbation

    wrap(OutputPerturbation, "fit", lambda true, self, records, n, center: true(self, records, len(records.y), center))


@bug("tests/guarantees/test_released_noise.py")
def the_mean_over_b0() -> None:
    """Algorithm 3 line 2: every update divides by b_0, however many records it reads."""
    from service.learning.learners import OutputPerturbation

    wrap(OutputPerturbation, "fit", lambda true, self, records, n, center: true(self, records, min(n, 4), center))


@bug(_APART)
def a_smoothness_for_a_steepness() -> None:
    """Paper A's experiments: for two classes their L per record is 1/4."""
    from service.learning.losses import Logistic

    wrap(Logistic, "lipschitz", lambda true, *args: true(*args) / 4)


@bug(_APART)
def records_that_are_not_clipped() -> None:
    """A norm bound that nobody enforces."""
    from service.learning.records import Prepared

    wrap(Prepared, "of", lambda true, x, norm_bound, intercept: true(x, norm_bound=1e30, intercept=intercept))


@bug("tests/privacy/test_loss.py::test_rounding_brackets_every_fraction_with_neighbouring_doubles")
def rounding_to_the_nearest() -> None:
    """A charge that is a little less than what was spent."""
    from service.privacy import loss

    loss.round_up = float


@bug("tests/privacy/test_loss.py::test_the_gaussian_mechanism_keeps_what_its_rho_promises")
def an_epsilon_that_is_a_tenth_too_small() -> None:
    """A conversion from ρ that somebody remembered wrongly."""
    from service.privacy import loss

    wrap(loss, "zcdp_epsilon", lambda true, rho, delta: 0.9 * true(rho, delta))


@bug("tests/worker/test_publishing.py::test_what_would_pass_the_cap_halts_the_publication_and_is_not_published")
def a_cap_that_nobody_checks() -> None:
    """Charges are added up, and that is all."""
    from service.store import ledger

    wrap(
        ledger,
        "charge",
        lambda true, connection, stream, publication, _most, new: true(connection, stream, publication, 9, new),
    )


@bug(f"{_AUDIT}[every block by itself gaussian noisy_gradient_descent]")
def steps_that_share_a_charge_each() -> None:
    """Every step of a noisy descent spends the whole charge."""
    from service.learning import noisy_gradient_descent

    wrap(
        noisy_gradient_descent.noises,
        "calibrate",
        lambda true, kind, *, charge, **k: true(kind, charge=24 * charge, **k),
    )


@bug(_CLIPPED)
def gradients_that_are_not_clipped() -> None:
    """A sensitivity that nobody enforces."""
    from service.learning import noisy_gradient_descent

    wrap(noisy_gradient_descent, "summed", lambda true, loss, x, y, weights, steepest: true(loss, x, y, weights))


@bug(f"{_DENSITY}[case0-1.0]")
def a_curvature_forgotten() -> None:
    """All of ε on the tilt, and a regularization that is never raised: what the minimiser's Jacobian tells is free."""
    from service.privacy import claims

    claims.curvature = lambda **_: 0.0


@bug(f"{_DENSITY}[case0-1.0]")
def the_gradient_of_one_record() -> None:
    """The sensitivity of presence or absence, R, for a tilt that has to hide a replacement, 2R."""
    from service.privacy import noise

    wrap(
        noise,
        "calibrate",
        lambda true, kind, *, sensitivity, **k: true(kind, sensitivity=sensitivity / 2, **k),
    )


@bug(f"{_AUDIT}[online_leader gaussian noisy_gradient_descent]")
def half_the_noise_in_running_sums() -> None:
    """A scale that is halved, of noise that is taken back."""
    from service.learning import online_gradient

    _halved(online_gradient.running_sums)


@bug(f"{_RUNNING}[blt-as it is]")
def a_column_of_norm_one() -> None:
    """A record charged for the step that reads it, and not for what later steps tell by taking its noise back."""
    from service.privacy.correlated import Blt

    column = Blt.column.func
    Blt.column = property(lambda self: column(self)._replace(square=Fraction(1)))  # type: ignore[assignment]


@bug(f"{_RUNNING}[toeplitz-as it is]")
def running_sums_with_noise_of_their_own() -> None:
    """Every running sum gets fresh noise, and a record pays for the first one it is in."""
    from service.privacy.correlated import Toeplitz

    wrap(Toeplitz, "carried", lambda _, self, memory, step: sum(memory[:step], start=0.0))


@bug(f"{_AUDIT}[window_statistics gaussian]")
def half_the_noise_in_windows() -> None:
    """The same."""
    from service.learning import moments

    _halved(moments.correlated)


@bug(f"{_MOMENTS}::test_some_neighbours_come_close")
def statistics_of_presence_or_absence() -> None:
    """The sensitivity that L2DP-C has where a record is only left out: √(a² + b²) (mechanisms.md 4)."""
    _moved_by(lambda second, first, label, count: second**2 + first**2 + label**2 + count**2)


@bug(f"{_MOMENTS}::test_neighbours_never_move_statistics_further")
def second_moments_that_count_twice() -> None:
    """The triangle without its √2, and a sensitivity that is about that: the matrix has every entry of it twice."""
    _moved_by(lambda second, first, label, count: 4 * (first**2 + label**2 + second**2 / 8))


@bug(f"{_AUDIT}[lifelong gaussian]")
def half_the_noise_of_tasks() -> None:
    """The same."""
    half_the_noise_in_windows()


@bug(f"{_AUDIT}[lifelong, memory gaussian]")
def the_memory_is_privatised_again() -> None:
    """A batch that every step reads anew from a memory of records, with fresh noise, for one charge: their mean."""
    from service.privacy.correlated import Correlated

    def release(true: Any, self: Any, *about: Any) -> Any:
        estimates = [true(self, *about) for _ in range(4)]
        return np.mean([each for each, _ in estimates], axis=0), estimates[-1][1]

    wrap(Correlated, "release", release)


@bug(f"{_TASKS}::test_from_released_models_comes_white_noise_of_the_right_size[memory-as it is]")
def one_noise_for_all_tasks() -> None:
    """Paper D's χ₁, drawn once: what two perturbed tasks differ by is what the tasks differ by (mechanisms.md 4)."""
    from service.privacy.noise import Gaussian

    drawn: dict[int, Any] = {}
    wrap(Gaussian, "sample", lambda true, self: drawn.setdefault(self.dimension, true(self)))


@bug(f"{_TASKS}::test_from_released_models_comes_white_noise_of_the_right_size[memory-as it is]")
def labels_that_nobody_perturbs() -> None:
    """Paper D's classifier: noise on the second moments only, and the labels as they are (mechanisms.md 4)."""
    from service.privacy import noise

    def add(true: Any, values: Any, law: Any) -> Any:
        noisy = true(values, law)
        noisy[-6:] = values[-6:]  # of two classes, five features and an intercept
        return noisy

    wrap(noise, "add", add)


@bug("tests/mechanisms/test_lifelong.py::test_a_record_is_read_with_its_batch_only_and_charged_everything_once")
def tasks_that_share_a_record() -> None:
    """Closed intervals again: a batch that begins with the last record of the one before."""
    from service.mechanisms.lifelong import Lifelong

    def step(true: Any, self: Any, time: int, chain: Any, version: int, read: Any) -> Any:
        return true(self, time, chain, version, lambda start, end: read(max(0, start - 1), end))

    wrap(Lifelong, "step", step)


@bug(f"{_AUDIT}[lifelong, encoder gaussian]")
def half_the_noise_of_an_encoder() -> None:
    """A scale that is halved by somebody who forgot a factor."""
    half_the_noise()


@bug(f"{_ENCODER}::test_neighbours_never_move_a_sum_further")
def gradients_that_are_clipped_together() -> None:
    """The mean of a batch is clipped, as one would without private records."""
    from service.learning.encoder_pass import EncoderPass

    def summed(true: Any, self: Any, *about: Any) -> Any:
        total, n = true(replace(self, clip=1e9), *about), about[-1]
        return total * min(1.0, n * self.clip / max(np.linalg.norm(total), 1e-300))

    wrap(EncoderPass, "summed", summed)


@bug(f"{_ENCODER}::test_each_batch_has_a_step_of_its_own_and_slots_keep_their_batch")
def an_encoder_that_reads_its_records_twice() -> None:
    """Another epoch, for the price of one."""
    from service.learning.encoder_pass import EncoderPass
    from service.learning.encoders import Encoder

    def release(true: Any, self: Any, *about: Any) -> Any:
        first, initial = true(self, *about)[0], Encoder.initial
        Encoder.initial = lambda *_: first  # type: ignore[method-assign]
        try:
            return true(self, *about)
        finally:
            Encoder.initial = initial  # type: ignore[method-assign]

    wrap(EncoderPass, "release", release)


@bug(
    "tests/mechanisms/test_lifelong_encoder.py::"
    "test_a_record_teaches_the_encoder_or_is_counted_and_is_charged_everything_once"
)
def records_that_teach_an_encoder_and_are_counted_too() -> None:
    """Its records are not worth less for having been read once: the first task is from the start."""
    from service.mechanisms.lifelong import Lifelong

    def step(true: Any, self: Any, time: int, chain: Any, version: int, read: Any) -> Any:
        before = self.schedule.before
        return true(self, time, chain, version, lambda start, end: read(0 if start == before else start, end))

    wrap(Lifelong, "step", step)


def _halved(owner: Any) -> None:
    def calibrate(true: Any, kind: Any, **about: Any) -> Any:
        found = true(kind, **about)
        return replace(found, noise=replace(found.noise, scale=found.noise.scale / 2))

    wrap(owner, "calibrate", calibrate)


def _moved_by(square: Callable[..., float]) -> None:
    from service.privacy import sensitivity

    wrap(sensitivity, "moments", lambda _, *, codes, **weights: square(**weights) ** 0.5)


@bug("tests/mechanisms/test_online_leader.py::test_every_restart_goes_on_exactly")
def noise_that_a_restart_draws_again() -> None:
    """What is remembered gets fresh noise when it is read back."""
    from service.mechanisms.mechanism import Part
    from service.mechanisms.online_leader import OnlineLeader

    def step(true: Any, self: Any, time: int, chain: Any, *more: Any) -> Any:
        read_back = [each for each in chain if not each.values.flags.writeable]
        fresh = np.random.default_rng()
        again = [Part(number=each.number, values=each.values + fresh.normal(size=each.values.shape)) for each in chain]
        return true(self, time, again if read_back else chain, *more)

    wrap(OnlineLeader, "step", step)


@bug(f"{_AUDIT}[online_leader, leaf gaussian noisy_gradient_descent]")
def half_the_noise_of_a_node() -> None:
    """A scale that is halved, in a tree with expiry."""
    from service.privacy import window_tree

    def calibrate(true: Any, kind: Any, **about: Any) -> Any:
        found = true(kind, **about)
        return replace(found, noise=replace(found.noise, scale=found.noise.scale / 2))

    wrap(window_tree, "calibrate", calibrate)


@bug(
    "tests/privacy/test_window_tree.py::"
    "test_until_it_is_declassified_a_record_loses_what_it_is_charged_and_some_do_lose_it[leaf]"
)
def a_whole_subtree_without_its_noise() -> None:
    """A root that expires with its first leaf, while others of its leaves are in the window (mechanisms.md 2)."""
    from service.privacy.window_tree import WindowTree

    wrap(WindowTree, "declassified", lambda true, self, step: -(-true(self, step) // self.block) * self.block)


@bug(_NODES)
def in_the_clear_a_step_too_early() -> None:
    """A leaf that is clean at i + W - 1, when it still is the oldest one in the window."""
    from service.privacy.window_tree import WindowTree

    wrap(WindowTree, "declassified", lambda true, self, step: true(self, step + 1))


@bug(
    "tests/privacy/test_window_tree.py::test_what_is_released_is_the_sums_and_the_nodes_of_one_noise_each[(4, 'leaf')]"
)
def noise_of_a_node_drawn_at_each_use() -> None:
    """A record is then charged for so many nodes, and pays for so many steps."""
    from service.privacy.window_tree import Windowed

    def release(true: Any, self: Any, values: Any, memory: Any, step: int) -> Any:
        fresh = np.random.default_rng()
        noisy = [again for again, _ in self.factor.remembered(step)] + [False] * bool(memory)
        drawn = [fresh.normal(size=values.shape) * self.noise.scale * again for again in noisy]
        return true(self, values, tuple(each + more for each, more in zip(memory, drawn, strict=True)), step)

    wrap(Windowed, "release", release)


@bug(
    "tests/mechanisms/test_online_leader.py::"
    "test_a_record_is_declassified_by_the_release_that_has_its_gradient_in_the_clear_and_not_before[leaf]"
)
def a_ledger_that_tells_of_declassification_a_release_too_late() -> None:
    """Who asks before the next release is told that records are protected which are in the clear already."""
    from service.mechanisms.online_leader import OnlineLeader

    wrap(OnlineLeader, "declassified", lambda true, self, time: true(self, max(0, time - 1)))


@bug("tests/guarantees/test_active_learning.py::test_coins_and_models_together_tell_no_more_than_is_charged[bernoulli]")
def half_the_noise_of_an_update() -> None:
    """A scale that is halved, of the noise that is added to the gradients of who was selected."""
    from service.learning import active_gradient

    wrap(
        active_gradient.noises,
        "calibrate",
        lambda true, *a, **k: (law := true(*a, **k)) and replace(law, scale=law.scale / 2),
    )


@bug(
    "tests/guarantees/test_active_learning.py::test_coins_and_models_together_tell_no_more_than_is_charged[exponential]"
)
def coins_of_three_times_epsilon() -> None:
    """Δ taken to be a third of M - b."""
    from service.privacy.selection import Exponential

    wrap(Exponential, "_exponent", lambda true, self, distance: 3 * true(self, distance))


@bug(f"{_ACTIVE}::test_the_papers_own_setting_is_refused_with_what_it_costs_and_what_would_do")
def not_being_selected_tells_nothing() -> None:
    """Lemma 4.2 without its condition, as in the paper's experiment: only who is selected loses something."""
    from service.privacy.selection import Exponential

    Exponential.loss = lambda self: Fraction(self.epsilon)  # type: ignore[method-assign]


@bug(f"{_ACTIVE}::test_an_erased_slot_is_selected_as_a_record_on_the_hyperplane_and_adds_nothing[fixed_window]")
def an_absent_record_that_is_never_selected() -> None:
    """A coin for those that are there."""
    from service.learning.active_gradient import ActiveGradient

    def select(true: Any, self: Any, records: Any, start: int, end: int, *more: Any) -> Any:
        found, stopped = true(self, records, start, end, *more)
        return [slot for slot in found if slot in records.in_slots(start, end)], stopped

    wrap(ActiveGradient, "select", select)


@bug(f"{_ACTIVE}::test_every_slot_is_charged_once_for_its_coin_and_its_update[labelled-bernoulli-pure-fixed_window]")
def who_is_not_selected_pays_nothing() -> None:
    """A window in which nobody is selected is free."""
    from service.mechanisms.active_learning import ActiveLearning

    def step(true: Any, *args: Any) -> Any:
        made = true(*args)
        return made if made.releases else replace(made, charges=())

    wrap(ActiveLearning, "step", step)


@bug("tests/learning/test_active_gradient.py::test_an_update_is_that_of_mechanisms_md[svm]")
def a_mean_over_the_labels_that_came() -> None:
    """|B| falls with a label that is missing, as the noise does not."""
    from service.learning.active_gradient import ActiveGradient

    def update(true: Any, self: Any, records: Any, _count: int, *more: Any) -> Any:
        return true(self, records, max(1, int(np.isfinite(records.y).sum())), *more)

    wrap(ActiveGradient, "update", update)


@bug(f"{_ACTIVE}::test_what_was_selected_survives_a_restart[labelled-fixed_batch]")
def coins_that_a_restart_tosses_again() -> None:
    """What is read back is a step behind."""
    from service.mechanisms.active_learning import Batch

    true = Batch.of.__func__  # type: ignore[attr-defined]

    def of(cls: Any, chain: Any) -> Any:
        batch = true(cls, chain)
        read_back = any(not each.values.flags.writeable for each in chain if hasattr(each, "values"))
        return replace(batch, seen=batch.seen - 1) if read_back and 0 < batch.seen - batch.start < 5 else batch

    Batch.of = classmethod(of)  # type: ignore[assignment]


@bug(_HISTORIES)
def the_position_is_committed_after_the_segment() -> None:
    """A crash between the two numbers the same batches again."""
    from sqlalchemy import update

    from service.store import streams, tables
    from service.worker.sealer import Sealer

    later: dict[tuple[int, int], dict[str, Any]] = {}

    def move(connection: Any, stream: int, **position: Any) -> None:
        connection.execute(update(tables.streams).where(tables.streams.c.id == stream).values(**position))

    def seal(true: Any, connection: Any, lease: Any, stream: Any, segment: Any, sealed: Any) -> None:
        true(connection, lease, stream, segment, sealed)
        move(connection, stream.id, sealed_entry=stream.sealed_entry, sealed_sequence=stream.sealed_sequence)
        later[stream.id, lease.epoch] = {"sealed_entry": sealed[-1].entry, "sealed_sequence": sealed[-1].sequence}

    def again(true: Any, sealer: Any, stream: Any) -> Any:
        held = sealer._held.get(stream.log)
        if held is not None and (position := later.pop((stream.id, held[0].epoch), None)):
            with sealer._database.transaction() as connection:
                move(connection, stream.id, **position)
        return true(sealer, stream)

    wrap(streams, "seal", seal)
    wrap(Sealer, "_again", again)


@bug(_HISTORIES)
def the_charge_is_committed_before_the_release() -> None:
    """A crash between the two has charged records for a model that there is not."""
    from service.store import ledger

    def append(true: Any, connection: Any, *rest: Any) -> Any:
        charged = true(connection, *rest)
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("BEGIN")
        return charged

    wrap(ledger, "append", append)


@bug(_HISTORIES)
def what_was_answered_is_not_remembered() -> None:
    """A batch that is sent again, because its answer got lost, is stored again."""
    import hashlib

    from service.log import appender

    step = "if body ~= '' then\n  redis.call('HSET', remembered"
    assert appender._APPEND.count(step) == 1
    appender._APPEND = appender._APPEND.replace(step, step.replace("body ~= ''", "false"))
    appender._APPEND_SHA = hashlib.sha1(appender._APPEND.encode(), usedforsecurity=False).hexdigest()


@bug("tests/privacy/test_sparse_vector.py::test_what_an_instance_tells_has_the_stated_law")
def a_third_too_little_noise_in_comparisons() -> None:
    """Thresholds and comparisons with less noise than the scale says."""
    from service.privacy import sparse_vector

    wrap(sparse_vector, "discrete_laplace", lambda true, scale: true(scale * 2 / 3))


@bug("tests/privacy/test_numeric_sparse.py::test_noise_has_the_stated_law_and_a_third_less_has_not[zcdp]")
def a_third_too_little_noise_in_measured_answers() -> None:
    """The same of what is told after a yes."""
    from service.privacy import numeric_sparse

    wrap(numeric_sparse, "discrete_gaussian", lambda true, variance, count: true(variance * 4 / 9, count))


@bug("tests/guarantees/test_queries.py::test_whoever_asks_on_purpose_learns_no_more_than_is_promised[pure]")
def comparisons_without_noise_of_their_own() -> None:
    """The sparse vector technique as some printed it: noise on the threshold alone (Lyu, Su, Li 2017, Algorithm 5)."""
    from service.privacy.sparse_vector import Instance

    Instance.is_above = lambda self, value, height, noise: value >= self.steps(height) + noise  # type: ignore[method-assign]


@bug("tests/mechanisms/test_linear_queries.py::test_a_threshold_is_drawn_once_for_an_instance_and_anew_for_the_next")
def a_threshold_that_is_never_drawn_again() -> None:
    """One threshold for all instances: Lyu, Su, Li 2017, what is wrong with their Algorithm 3."""
    from service.privacy.sparse_vector import Instance

    Instance.threshold_noise = lambda self: 7  # type: ignore[method-assign]


@bug(f"{_SLOTS}[hits-pure]")
def records_that_arrive_pay_nothing() -> None:
    """Only those pay for an instance that were there when it opened."""
    from service.mechanisms.linear_queries import LinearQueries

    def step(true: Any, self: Any, time: int, *others: Any) -> Any:
        return replace(found, charges=()) if (found := true(self, time, *others)) and time > self.first else found

    wrap(LinearQueries, "step", step)


@bug("tests/publishing/test_answering.py::test_of_two_processes_the_first_measures_and_the_other_says_nothing_of_it")
def a_second_yes_from_one_threshold() -> None:
    """Of two processes that found a query hard with one threshold, both measure and tell."""
    from service.publishing import answering

    answering._is = lambda latest, now: True
