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


@bug(f"{_FEATURES}::test_what_waits_for_features_is_not_due_until_their_release_is_confirmed")
def features_of_a_release_that_is_not_confirmed() -> None:
    """A map that the high-water mark does not hold may be lost, and be another one tomorrow."""
    from sqlalchemy import true as always

    from service.store import releases

    wrap(releases, "is_visible", lambda *_: always())


@bug(f"{_WHITENING}::test_no_record_moves_the_sum_further_than_the_noise_is_for")
def second_moments_of_rows_as_they_come() -> None:
    """Records are not shortened: a long one moves the sum without limit."""
    from service.mechanisms.preparation.whitening import Whitening

    rewrite(
        Whitening.moments,
        (
            "PreparedRows.of(x[finite], norm_bound=self.norm_bound, intercept=False, own=True)",
            "(PreparedRows.as_they_are(x[finite]), None)",
        ),
    )


@bug(f"{_WHITENING}::test_records_that_are_orthogonal_move_it_just_as_far")
def noise_for_a_record_that_is_removed() -> None:
    """A record that is replaced by an orthogonal one moves the sum √2 times as far."""
    from service.privacy import sensitivity

    wrap(sensitivity, "second_moments", lambda _true: 1.0)


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
