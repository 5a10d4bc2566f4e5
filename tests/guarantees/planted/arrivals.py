"""Bugs in the verifier: of charges, of what is remembered of units, and of erased bytes."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite


@bug("tests/worker/test_labelling.py::test_records_that_count_and_never_paid_for_a_coin_are_found")
def the_last_records_that_need_not_have_paid_for_their_coins() -> None:
    """A publication says that it has come further than its records have paid."""
    from service.ledger.verify import arrivals

    rewrite(arrivals.coins, ("if paid != publication.position:", "if False:"))


@bug("tests/worker/test_labelling.py::test_a_batch_that_two_models_learnt_from_is_found")
def a_batch_that_two_models_may_have_learnt_from() -> None:
    """Records that paid for one update are in two."""
    from service.ledger.verify import released

    rewrite(released.chain, ('row["fit_start"] < batched', "False"))


_COMMITTED = "tests/store/test_verify.py::test_what_is_otherwise_than_it_was_committed_is_named"


@bug(f"{_COMMITTED}[of another version]")
def a_release_that_another_version_paid_for() -> None:
    """A release is taken to be paid for by whatever charge it names."""
    from service.ledger.verify import released

    rewrite(
        released.paid_for,
        ('(row["charged_publication_id"], row["charged_version"]) != (publication.id, version)', "False"),
    )


@bug(f"{_COMMITTED}[further]")
def a_clock_that_is_ahead_of_the_last_release() -> None:
    """Records that a publication never read count as read."""
    from service.ledger.verify import released

    rewrite(released.chain, ("time != reached if releases_always else time > reached", "time > reached"))


@bug(
    "tests/worker/test_unit_publications.py::"
    "test_charges_that_pass_the_cap_only_as_often_as_a_unit_pays_them_are_found[leader]"
)
def a_unit_that_may_pay_more_than_was_promised() -> None:
    """Charges are compared with the cap as if each were of another unit."""
    from service.ledger.verify import charges

    rewrite(charges.sums, ("highest * Fraction(publication.unit_factor or 1) > cap", "highest > cap"))


@bug(
    "tests/store/test_verified_noise.py::"
    "test_noise_of_units_is_for_as_many_as_a_release_states_and_for_one_where_there_is_none"
)
def noise_of_units_that_is_taken_for_that_of_as_many_records() -> None:
    """Noise that is too little for few units is enough for many records."""
    from service.ledger.verify import released

    rewrite(released._counted, ('min(records, max(1, int(row["model"]["units"])))', "records"))


@bug("tests/worker/test_units.py::test_counts_that_somebody_changed_are_found[bench0]")
def a_unit_whose_last_slot_is_not_there() -> None:
    """Nobody notices that a unit's next slots count too late."""
    from service.ledger.verify import numbering

    rewrite(numbering.units, (" | (table.c.last >= stream.records)", ""))


@bug("tests/worker/test_erasing.py::test_labels_of_erased_records_that_came_back_are_found")
def labels_of_erased_records_that_nobody_looks_for() -> None:
    """They are called deleted, and stay."""
    from service.ledger.verify import segments

    rewrite(segments._still_there, ('rows.keys() & {"x", "y"}', 'rows.keys() & {"x"}'))


_PROMISES = "tests/store/test_promises.py"
_UNITS = f"{_PROMISES}::test_charges_are_counted_for_the_units_of_their_stream"
_FEATURES = f"{_PROMISES}::test_features_are_of_the_publication_that_settings_name"


@bug(_UNITS)
def charges_that_need_not_be_counted_for_units() -> None:
    """A publication on a stream with units promises each record what it owes to a person."""
    from service.ledger.verify import promises

    rewrite(
        promises.of_units, ('if bound != stream.schema.get("unit")', 'if bound not in (None, stream.schema["unit"])')
    )


@bug(_FEATURES)
def features_of_another_publication_that_nobody_misses() -> None:
    """Charges of another publication's release pay for the features."""
    from service.ledger.verify import promises

    rewrite(promises.of_features, ('source != (named and named["from"]) or ', ""))


@bug("tests/privacy/test_groups.py::test_what_a_verifier_makes_of_a_release_counts_its_rounding_too[blt]")
def a_verifier_that_forgets_rounding() -> None:
    """A group factor that leaves out what rounding costs all slots of a unit together is taken for enough."""
    from service.privacy.accounting import unit_factors

    rewrite(
        unit_factors.factor_of, ("carried(event.factor, batching, rounding=share)", "carried(event.factor, batching)")
    )
