"""Bugs in what `ledger verify` compares of a publication with its stream."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_PROMISES = "tests/store/test_promises.py"
_UNITS = f"{_PROMISES}::test_charges_are_counted_for_the_units_of_their_stream"
_FEATURES = f"{_PROMISES}::test_features_are_of_the_publication_that_settings_name"


@bug(_UNITS)
def charges_that_are_counted_for_units_of_another_stream() -> None:
    """A publication counts for units whose records may lie nearer to each other."""
    from service.ledger.verify import promises

    rewrite(promises.of_units, ('if name != "factor"', 'if name == "max_records"'))


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


@bug(_FEATURES)
def features_that_no_settings_name() -> None:
    """Features come from a publication that the stream does not have, and its settings name none."""
    from service.ledger.verify import promises

    rewrite(promises.of_features, (" or (source is None) != (publication.features_from is None)", ""))


@bug(f"{_PROMISES}::test_a_delay_is_the_one_that_was_asked_for")
def answers_that_ought_to_have_waited() -> None:
    """A publication without ticks is said to be another than was made."""
    from service.ledger.verify import promises

    rewrite(promises._delay, ("Decimal(1) if publication.owes.ticks else Decimal(0)", "Decimal(1)"))
