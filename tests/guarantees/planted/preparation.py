"""Bugs in preparations: cells, counts and scales, and who uses which release."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite, wrap

_PREPARATION = "tests/mechanisms/preparation/test_preparation.py"
_WHITENING = "tests/mechanisms/preparation/test_whitening.py"
_FEATURES = "tests/worker/test_features.py"
_AUDIT = "tests/guarantees/test_audits.py::test_nobody_can_tell_two_records_apart_by_a_preparation"


@bug(f"{_PREPARATION}::test_no_record_moves_the_counts_further_than_the_noise_is_for")
def cells_by_data() -> None:
    """The edges are multiples of the largest value: one record moves the cells of all others."""
    from service.mechanisms.preparation import mechanism

    wrap(mechanism, "counts_of", lambda true, x: true(x / max(1.0, abs(x).max(initial=0.0))))
    from tests.mechanisms.preparation import test_preparation

    test_preparation.counts_of = mechanism.counts_of  # type: ignore[attr-defined]


@bug(f"{_AUDIT}[gaussian]")
def noise_for_one_feature_of_several() -> None:
    """The sensitivity is that of one feature's counts, and those of all are released."""
    from service.mechanisms.preparation.mechanism import Preparation

    rewrite(Preparation.change.fget, ("2 * self.features", "2"))  # type: ignore[attr-defined]


@bug(f"{_PREPARATION}::test_records_that_differ_in_the_cell_of_every_feature_move_them_just_as_far")
def noise_for_erasing_a_record_alone() -> None:
    """A record that is replaced leaves a cell and enters another one."""
    from service.mechanisms.preparation.mechanism import Preparation

    rewrite(Preparation.change.fget, ("2 * self.features", "self.features"))  # type: ignore[attr-defined]


@bug(f"{_PREPARATION}::test_the_map_follows_from_what_is_released_alone")
def a_map_from_counts_without_noise() -> None:
    """The noisy counts are released, and the map is that of the true ones."""
    from service.mechanisms.preparation.mechanism import Preparation

    wrap(
        Preparation,
        "released_model",
        lambda true, self, noisy, units=None: true(self, noisy - self.noise().sample()[0], units),
    )


@bug(f"{_PREPARATION}::test_scales_are_those_of_the_quantiles_however_large_or_shifted_columns_are")
def a_map_from_shortened_records() -> None:
    """Records are shortened to the norm bound first, which leaves nothing to scale."""
    import numpy as np

    from service.mechanisms.preparation import mechanism

    wrap(mechanism, "counts_of", lambda true, x: true(x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))))


@bug(f"{_FEATURES}::test_what_waits_for_features_is_not_due_until_their_release_is_confirmed")
def features_of_a_release_that_is_not_confirmed() -> None:
    """A map that the high-water mark does not hold may be lost, and be another one tomorrow."""
    from sqlalchemy import true as always

    from service.store import releases

    wrap(releases, "is_visible", lambda *_: always())


@bug(f"{_FEATURES}::test_a_step_in_a_process_of_its_own_reads_the_same_features")
def records_that_miss_the_released_map() -> None:
    """Records are fitted as segments hold them, and the release says that they were mapped."""
    from service.worker.turn import Turn

    wrap(Turn, "reading", lambda _true, _self, read: read)


@bug(f"{_WHITENING}::test_no_record_moves_the_sum_further_than_the_noise_is_for")
def second_moments_of_rows_as_they_come() -> None:
    """Records are not shortened: a long one moves the sum without limit."""
    from service.mechanisms.preparation.whitening import Whitening

    rewrite(
        Whitening.moments,
        (
            "Prepared.of(x[finite], norm_bound=self.norm_bound, intercept=False, own=True)",
            "(Prepared.as_they_are(x[finite]), None)",
        ),
    )


@bug("tests/guarantees/test_audits.py::test_nobody_can_tell_two_records_apart_by_a_whitening[gaussian]")
def noise_for_a_tenth_of_a_record() -> None:
    """The sensitivity of the sum is that of records ten times as near."""
    from service.privacy import sensitivity

    wrap(sensitivity, "second_moments", lambda true: true() / 10)


@bug(f"{_WHITENING}::test_records_that_are_orthogonal_move_it_just_as_far")
def noise_for_a_record_that_is_removed() -> None:
    """A record that is replaced by an orthogonal one moves the sum √2 times as far."""
    from service.privacy import sensitivity

    wrap(sensitivity, "second_moments", lambda _true: 1.0)


@bug(f"{_WHITENING}::test_noise_alone_shows_no_direction")
def whitening_without_the_floor() -> None:
    """Directions of hardly any noise are made as long as those of records."""
    from service.mechanisms.preparation.whitening import Whitening

    wrap(Whitening, "floor", lambda _true, _self: 1e-9)


@bug(f"{_WHITENING}::test_the_map_follows_from_what_is_released_alone")
def a_matrix_from_moments_with_other_noise() -> None:
    """The matrix follows from values that are not released."""
    from service.mechanisms.preparation.whitening import Whitening

    wrap(Whitening, "map_step", lambda true, self, noisy, slots: true(self, noisy * 1.01, slots))


@bug(f"{_PREPARATION}::test_of_units_it_reads_the_slots_that_it_charges_and_no_others")
def a_slot_of_a_unit_that_is_read_for_nothing() -> None:
    """One slot more than is charged."""
    from service.mechanisms.preparation.once import MapOfFirstRecords

    rewrite(MapOfFirstRecords._pieces, ("read(0, self.records)", "read(0, self.records + 1)"))


@bug(f"{_PREPARATION}::test_the_map_of_units_is_of_as_many_as_there_are[2]")
def scales_of_slots_where_units_were_counted() -> None:
    """Counts of few units are taken for those of all slots, and noise for the rest of them."""
    from service.mechanisms.preparation.mechanism import Preparation

    rewrite(Preparation._scaling, ("full_scales(noisy, slots, ", "full_scales(noisy, self.slots, "))


@bug(f"{_PREPARATION}::test_rule_2_fills_the_norm_with_what_is_left_of_outliers")
def a_gain_that_reckons_with_outliers_as_long_as_they_come() -> None:
    """A few numbers that are clipped anyway make all features as good as zero."""
    from service.mechanisms.preparation import scales

    rewrite(scales._gain, ("* factor, -LIMIT, LIMIT)", "* factor, -np.inf, np.inf)"))


@bug(f"{_WHITENING}::test_where_slots_are_set_aside_the_norm_is_filled_by_those_that_are_read")
def a_matrix_for_slots_that_were_not_read() -> None:
    """Rows are longer than the norm where slots are set aside for evaluations, and most are shortened."""
    from service.mechanisms.preparation.whitening import Whitening

    rewrite(Whitening.matrix, ("self.features * self.slots / shown", "self.features * self.records / shown"))


@bug(f"{_WHITENING}::test_both_of_two_neighbours_may_be_off_by_what_rounding_does")
def moments_that_are_off_on_one_side() -> None:
    """The bound takes one of two neighbours as added up exactly."""
    from service.mechanisms.preparation.whitening import Whitening

    rewrite(Whitening.event, ("+ 2.0 * self._error()", "+ self._error()"))
