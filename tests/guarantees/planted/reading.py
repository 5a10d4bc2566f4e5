"""Bugs by which a stream, publication or comparison shows or changes what is another's, or is not confirmed."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_READING = "tests/store/test_reading_one.py"
_ENDING = "tests/store/test_ending.py"
_PAGES = f"{_READING}::test_pages_and_newer_models_are_of_one_publication_and_confirmed"
_OUTLINE = f"{_READING}::test_an_outline_is_of_one_publication_and_confirmed"
_SIZES = f"{_READING}::test_sizes_of_fits_are_those_of_publications_that_run_on_visible_streams"
_LOG = f"{_READING}::test_what_a_log_held_is_of_one_stream"
_FREE = f"{_READING}::test_a_request_is_free_that_is_open_confirmed_and_leased_to_nobody"
_COMPARISON = f"{_READING}::test_what_was_found_is_of_one_comparison"


@bug(_PAGES)
def newer_models_that_are_not_confirmed() -> None:
    """A client that waits for a model gets one that the database may lose, and that is drawn again."""
    from service.store import releases

    rewrite(releases.models_after, ("            is_visible(),\n", ""))


@bug(_PAGES)
def newer_models_of_all_publications() -> None:
    """A key that may see one publication gets the models of every stream."""
    from service.store import releases

    rewrite(releases.models_after, ("releases.c.publication_id == publication,", ""))


@bug(_PAGES)
def a_newest_version_that_is_not_confirmed() -> None:
    """A publication names a version that nobody may see yet."""
    from service.store import publications

    rewrite(publications.newest_visible, ("released.c.number <= streams.c.confirmed_releases", "released.c.number > 0"))


@bug(_OUTLINE)
def an_outline_of_what_is_not_confirmed() -> None:
    """The dashboard shows the noise of a release that may be drawn again."""
    from service.store import releases

    rewrite(releases.outlined, (", is_visible())\n        .group_by", ")\n        .group_by"))


@bug(_OUTLINE)
def an_outline_of_all_publications() -> None:
    """A key that may see one publication gets the charges of all others."""
    from service.store import releases

    rewrite(
        releases.outlined, ("releases.c.publication_id == publication, is_visible())\n        .g", "is_visible()).g")
    )


@bug(_SIZES)
def sizes_of_fits_on_streams_that_are_not_visible() -> None:
    """A key learns how large the fits of other streams are."""
    from service.store import publications

    rewrite(publications.running_fit_sizes, (".where(streams.c.name.in_(only))", ""))


@bug(_LOG)
def dead_letters_of_all_streams() -> None:
    """A key that may see one stream gets what could not be numbered of the others."""
    from service.store import numbering

    rewrite(numbering.page_of_dead_letters, (".where(dead_letters.c.stream_id == stream)", ""))


@bug(_LOG)
def batches_of_all_streams() -> None:
    """A producer that asks which numbers a batch got gets those of a batch of another stream, or an error."""
    from service.store import numbering

    rewrite(numbering.find_entry, ("entries.c.stream_id == stream, ", ""))


@bug(_FREE)
def a_record_that_two_people_label() -> None:
    """Somebody is asked for a record that another person looks at."""
    from service.store import labels

    rewrite(labels._free, ("until <= now", "until > now"))


@bug(_FREE)
def a_record_that_is_shown_before_its_coin_is_confirmed() -> None:
    """People see which records were drawn, and the coins are tossed again."""
    from service.store import labels

    rewrite(labels._free, ("_visible([publication])", "label_requests.c.publication_id == publication"))


@bug(_COMPARISON)
def findings_of_all_comparisons() -> None:
    """A comparison shows what those of other keys found."""
    from service.store import explorations

    rewrite(explorations.findings_by_cell, (".where(findings.c.exploration_id == identity)", ""))


@bug(f"{_ENDING}::test_a_secret_that_is_not_the_one_that_was_promised_counts_as_lost")
def a_secret_of_units_that_is_another() -> None:
    """Each unit gets a second pseudonym, and may lose twice what is promised."""
    from service.store import streams

    rewrite(streams.secret_of_units, ("hashlib.sha256(secret).hexdigest() != stream.unit_secret_digest", "not secret"))


@bug(f"{_ENDING}::test_what_becomes_of_a_stream_changes_no_other")
def a_unit_that_is_not_closed() -> None:
    """Records of a unit that was erased count again as soon as they come."""
    from service.store import erasing

    rewrite(erasing.close_unit, ("units.close(connection, stream, pseudonym)", "pass"))


@bug(f"{_ENDING}::test_what_becomes_of_a_stream_changes_no_other")
def a_unit_whose_records_are_not_looked_for() -> None:
    """The records of a unit that is erased stay, since none is said to have a number."""
    from service.store import erasing

    rewrite(erasing.close_unit, ("return records", "return 0"))


@bug("tests/worker/test_features.py::test_features_of_another_publication_than_was_promised_are_refused")
def features_of_another_stream() -> None:
    """A publication is fitted on features that another stream's records made, which were not charged for it."""
    from service.worker.publication_state import PublicationState

    rewrite(
        PublicationState.has_promised_features,
        (
            '(named["from"], self.publication.stream_id) == (source.name, source.stream_id)',
            'named["from"] == source.name',
        ),
    )


_NUMBERING = "tests/store/test_numbering.py"
_PUBLISHED = f"{_ENDING}::test_what_is_published_on_a_stream_changes_no_other"


@bug(_PUBLISHED)
def a_new_publications_promise_that_all_have() -> None:
    """Nobody can tell any more what the other publications have promised, and all of them halt."""
    from service.store import publications

    rewrite(
        publications.create,
        ("        .where(publications.c.id == identity)\n        .values(promise", ".values(promise"),
    )


_CHARGES = "tests/store/test_reading_one.py::test_charges_are_those_of_one_stream"


@bug(_CHARGES)
def a_page_of_charges_of_all_streams() -> None:
    """A reader of one stream is told what records of others have spent."""
    from service.store import charges

    rewrite(charges.page, ("charges.c.stream_id == stream, charges", "charges"))


_LAST_ENTRY = f"{_NUMBERING}::test_a_log_is_numbered_up_to_its_last_entry_and_no_other_is"
_HOLDING = f"{_NUMBERING}::test_segments_that_hold_a_range_are_those_of_its_stream"


@bug(_LAST_ENTRY)
def entries_that_are_in_the_order_of_their_letters() -> None:
    """A log is read again from the ninth batch of a millisecond, and its records get numbers twice."""
    from service.store import numbering

    rewrite(numbering.seal, (", key=_order)", ")"))


@bug(_LAST_ENTRY)
def streams_that_are_numbered_together() -> None:
    """All streams that stand where this one stands count its records as theirs."""
    from service.store import numbering

    rewrite(numbering._move.__wrapped__, ('streams.c.id == bindparam("of")', 'bindparam("of", type_=BigInteger) > 0'))


@bug(_HOLDING)
def a_segment_that_the_sealer_takes_from_another_stream() -> None:
    """Segments of two streams are put together."""
    from service.store import segments

    rewrite(segments.first_from, ("segments.c.stream_id == stream, ", ""))
