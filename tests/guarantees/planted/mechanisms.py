"""Bugs in schedules and mechanisms: what is read when, what is charged for it, and what a restart goes on with."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from tests.guarantees.planted.bug import ACTIVE, AUDIT, bug, rewrite, wrap

_OF_A_BATCH = "tests/mechanisms/online_leader/test_steps_of_a_batch.py"
_SLOTS = (
    "tests/mechanisms/linear_queries/test_linear_queries.py::test_every_slot_pays_once_for_each_instance_that_was_open"
)


@bug("tests/schedules/test_scheduled_black_box.py::test_epsilons_add_up_to_epsilon_exactly")
def runs_charged_by_an_index_off_by_one() -> None:
    """γ²(i + 1)q^(i+1), as if runs were numbered from 1 in one place and from 0 in the other."""
    from service.schedules.scheduled_black_box import ScheduledBlackBox

    wrap(ScheduledBlackBox, "tail", lambda true, self, run: true(self, run) * (1 + self.growth))


@bug("tests/schedules/test_improving_black_box.py::test_what_is_left_never_grows_and_every_run_gets_some")
def a_sum_without_its_first_run() -> None:
    """Σ_{t > n} (n/t)^2a ≤ n/(2a - 1) alone: the run at n is one more."""
    from service.schedules.improving_black_box import ImprovingBlackBox

    def share_from(true: Any, self: Any, time: int) -> Fraction:
        return true(self, time) * (1 + Fraction(self.every, self.first))

    wrap(ImprovingBlackBox, "share_from", share_from)


@bug("tests/mechanisms/scheduled/test_scheduled.py::test_a_fit_reads_what_it_charges_and_nothing_else")
def a_range_that_is_off_by_one() -> None:
    """The papers' closed intervals: one record more is read than is charged."""
    from service.mechanisms.scheduled.mechanism import Scheduled

    def step(true: Any, self: Any, time: int, chain: Any, version: int, read: Any) -> Any:
        return true(self, time, chain, version, lambda start, end: read(max(0, start - 1), end))

    wrap(Scheduled, "step", step)


@bug(f"{AUDIT}[continual gaussian]")
def a_charge_forgotten() -> None:
    """Fits get four times the budget that is written down."""
    from service.mechanisms.scheduled.mechanism import Scheduled

    wrap(Scheduled, "_charge", lambda true, self, share: true(self, 4 * share))


@bug("tests/mechanisms/scheduled/test_scheduled.py::test_a_long_run_charges_no_record_more_than_the_capacity")
def theorem_4() -> None:
    """Half of ε for every base of B and every update of b_0: 1.5 ε for the worst record (paper-audit.md 1.3)."""
    from service.schedules import shares

    wrap(shares, "equal", lambda true, *arguments: replace(true(*arguments), unit=Fraction(1, 2)))


@bug("tests/mechanisms/scheduled/test_scheduled.py::test_a_long_run_charges_no_record_more_than_the_capacity")
def updates_that_take_what_bases_will_need() -> None:
    """Improving shares whose updates get the whole budget of an epoch, and forget the infinitely many bases to come."""
    from service.schedules import shares

    wrap(shares, "_smallest", lambda true, rule, epoch: true(rule, epoch) / (1 - rule.bases(epoch)))


@bug("tests/mechanisms/scheduled/test_scheduled.py::test_a_long_run_charges_no_record_more_than_the_capacity")
def a_warm_up_that_nobody_pays() -> None:
    """The records of the first window are charged for the window's fits in full, and once more before."""
    from service.schedules import sliding_window

    wrap(sliding_window, "_divide", lambda _, *arguments: (0, Fraction(1), Fraction(1)))


@bug(
    "tests/mechanisms/lifelong/test_lifelong.py::test_a_record_is_read_with_its_batch_only_and_charged_everything_once"
)
def tasks_that_share_a_record() -> None:
    """Closed intervals again: a batch that begins with the last record of the one before."""
    from service.mechanisms.lifelong.mechanism import Lifelong

    def step(true: Any, self: Any, time: int, chain: Any, version: int, read: Any) -> Any:
        return true(self, time, chain, version, lambda start, end: read(max(0, start - 1), end))

    wrap(Lifelong, "step", step)


@bug(
    "tests/mechanisms/lifelong/test_lifelong_encoder.py::"
    "test_a_record_teaches_the_encoder_or_is_counted_and_is_charged_everything_once"
)
def records_that_teach_an_encoder_and_are_counted_too() -> None:
    """Its records are not worth less for having been read once: the first task is from the start."""
    from service.mechanisms.lifelong.mechanism import Lifelong

    def step(true: Any, self: Any, time: int, chain: Any, version: int, read: Any) -> Any:
        before = self.schedule.before
        return true(self, time, chain, version, lambda start, end: read(0 if start == before else start, end))

    wrap(Lifelong, "step", step)


@bug(
    "tests/mechanisms/online_leader/test_averages.py::"
    "test_neither_averages_nor_steps_know_more_of_records_than_the_estimate_that_is_released"
)
def steps_that_know_the_gradients_without_their_noise() -> None:
    """Steps are longer where the true sums of gradients agree, which nobody paid for."""
    from service.mechanisms.online_leader.online_gradient import OnlineGradient

    rewrite(OnlineGradient.advance, ("self._response(mean, ", "self._response(total / n, "))


@bug(f"{_OF_A_BATCH}::test_an_erased_record_leaves_every_other_part_as_it_is[0]")
def parts_of_a_batch_by_the_records_that_are_there() -> None:
    """An erased record moves the records after it to other parts, so that it moves several sums."""
    from service.learning.records import Records

    def between(true: Any, self: Any, start: int, end: int, first: int, last: int) -> Any:
        return self[np.arange(start - first, min(end - first, len(self.y)))]

    wrap(Records, "between", between)


@bug(f"{_OF_A_BATCH}::test_every_step_is_that_of_a_smaller_batch[False-2-blt]")
def every_step_of_a_batch_reads_all_of_it() -> None:
    """A record is in as many sums as a batch makes steps, and pays for one."""
    from service.learning.records import Records

    wrap(Records, "between", lambda true, self, *_: self)


@bug(f"{_OF_A_BATCH}::test_from_released_models_comes_white_noise_of_the_right_size[2]")
def steps_of_a_batch_in_the_same_place_of_their_run() -> None:
    """The second step of a batch takes back the noise that the first one has taken back."""
    from service.mechanisms.online_leader.mechanism import OnlineLeader

    rewrite(OnlineLeader.step, ("number + index", "number"))


@bug(f"{_OF_A_BATCH}::test_a_unit_has_one_contribution_a_step_and_a_part_has_a_record")
def several_steps_of_units() -> None:
    """A unit whose records are in several parts of a batch moves several sums, and is charged for one."""
    from service.mechanisms.online_leader.mechanism import OnlineLeader

    rewrite(OnlineLeader.check_units, ("self.steps > 1", "False"))


@bug("tests/mechanisms/online_leader/test_online_leader.py::test_every_restart_goes_on_exactly")
def noise_that_a_restart_draws_again() -> None:
    """The memory gets fresh noise when it is read back."""
    from service.mechanisms.mechanism import StatePart
    from service.mechanisms.online_leader.mechanism import OnlineLeader

    def step(true: Any, self: Any, time: int, chain: Any, *more: Any) -> Any:
        read_back = [each for each in chain if not each.values.flags.writeable]
        fresh = np.random.default_rng()
        again = [
            StatePart(number=each.number, values=each.values + fresh.normal(size=each.values.shape)) for each in chain
        ]
        return true(self, time, again if read_back else chain, *more)

    wrap(OnlineLeader, "step", step)


@bug(
    "tests/mechanisms/online_leader/test_online_leader.py::"
    "test_a_record_is_declassified_by_the_release_that_has_its_gradient_in_the_clear_and_not_before[leaf]"
)
def a_ledger_that_tells_of_declassification_a_release_too_late() -> None:
    """The ledger calls records protected until the next release, though they are in the clear already."""
    from service.mechanisms.online_leader.mechanism import OnlineLeader

    wrap(OnlineLeader, "declassified", lambda true, self, time: true(self, max(0, time - 1)))


@bug(f"{ACTIVE}::test_every_slot_is_charged_once_for_its_coin_and_its_update[labelled-bernoulli-pure-fixed_window]")
def who_is_not_selected_pays_nothing() -> None:
    """A window in which nobody is selected is free."""
    from service.mechanisms.active_learning.mechanism import ActiveLearning

    def step(true: Any, *args: Any) -> Any:
        made = true(*args)
        return made if made.releases else replace(made, charges=())

    wrap(ActiveLearning, "step", step)


@bug(f"{ACTIVE}::test_what_was_selected_survives_a_restart[labelled-fixed_batch]")
def coins_that_a_restart_tosses_again() -> None:
    """The memory that is read back is a step behind."""
    from service.mechanisms.active_learning.mechanism import Batch

    true = Batch.of.__func__  # type: ignore[attr-defined]

    def of(cls: Any, chain: Any) -> Any:
        batch = true(cls, chain)
        read_back = any(not each.values.flags.writeable for each in chain if hasattr(each, "values"))
        return replace(batch, seen=batch.seen - 1) if read_back and 0 < batch.seen - batch.start < 5 else batch

    Batch.of = classmethod(of)  # type: ignore[assignment]


@bug(f"{_SLOTS}[hits-pure]")
def records_that_arrive_pay_nothing() -> None:
    """Only those pay for an instance that were there when it opened."""
    from service.mechanisms.linear_queries.mechanism import LinearQueries

    def step(true: Any, self: Any, time: int, *others: Any) -> Any:
        return replace(taken, charges=()) if (taken := true(self, time, *others)) and time > self.first else taken

    wrap(LinearQueries, "step", step)


@bug("tests/learning/test_intercept_scale.py::test_no_row_is_longer_than_the_norm_bound")
def a_row_with_an_intercept_on_top() -> None:
    """The intercept gets its share of the norm bound, and the features keep all of it."""
    from service.learning import records

    rewrite(records.row_scales, ("* (1.0 - 2.0**-40), intercept_scale", "* 0.0 + 1.0, intercept_scale"))


_CANDIDATES = (
    "tests/mechanisms/window_statistics/test_candidates.py::"
    "test_no_candidate_depends_on_records_but_through_the_estimates"
)


@bug(_CANDIDATES)
def candidates_whose_ridge_is_by_the_records() -> None:
    """A pull as long as the records of the block are, which nothing was charged for."""
    from service.mechanisms.window_statistics.window_model import WindowModel

    def advance(true: Any, self: Any, state: Any, records: Any, *others: Any) -> Any:
        length = float(np.linalg.norm(records.x))
        candidates = tuple(replace(each, ridge=length) for each in self.candidates)
        return true(replace(self, candidates=candidates), state, records, *others)

    wrap(WindowModel, "advance", advance)


@bug("tests/mechanisms/test_sufficient_statistics.py::test_no_sum_is_longer_than_its_rounding_is_reckoned_for")
def rounding_of_one_record_for_all() -> None:
    """Noise that later blocks take back is for sums as short as those of one record are."""
    from service.mechanisms.sufficient_statistics import Statistics

    rewrite(Statistics.perturbation, ("MARGIN * records * norm", "MARGIN * norm"))


_OF_BLOCKS = "tests/mechanisms/test_timing.py::test_only_what_is_proved_to_be_fitted_of_blocks_is_fitted_of_blocks"


@bug(_OF_BLOCKS)
def units_that_are_fitted_of_blocks() -> None:
    """Blocks tell no units: a person's records count in full, with noise for one of them."""
    from service.mechanisms.scheduled.mechanism import Scheduled

    rewrite(Scheduled.reads_blocks, ("able and self.unit is None and", "able and"))


@bug(_OF_BLOCKS)
def any_solver_for_blocks() -> None:
    """The model is the exact one, and the noise is for a few steps of gradient descent."""
    from service.mechanisms.scheduled.mechanism import Scheduled

    rewrite(Scheduled.reads_blocks, ("learner.takes_blocks and ", ""))
