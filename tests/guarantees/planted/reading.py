"""Bugs in what is read of one stream, publication or comparison: that of others too, or what is not confirmed."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_READING = "tests/store/test_reading_one.py"
_ENDING = "tests/store/test_ending.py"
_PAGES = f"{_READING}::test_pages_and_newer_models_are_of_one_publication_and_confirmed"
_OUTLINE = f"{_READING}::test_an_outline_is_of_one_publication_and_confirmed"
_FIGURES = f"{_READING}::test_figures_are_of_evaluations_that_run_and_confirmed"
_SIZES = f"{_READING}::test_sizes_of_fits_are_those_of_publications_that_run_on_visible_streams"
_SHORT = f"{_READING}::test_ledgers_are_walked_together_that_are_short_together"
_LOG = f"{_READING}::test_what_a_log_held_is_of_one_stream"
_FREE = f"{_READING}::test_a_request_is_free_that_is_open_confirmed_and_leased_to_nobody"
_COMPARISON = f"{_READING}::test_what_was_found_is_of_one_comparison"


@bug(_PAGES)
def newer_models_that_are_not_confirmed() -> None:
    """A client that waits for a model gets one that the database may lose, and that is drawn again."""
    from service.store import releases

    rewrite(releases.models_after, ("            is_visible(),\n", ""))


@bug(_PAGES)
def newer_models_that_are_none() -> None:
    """A client that follows a publication gets what its models are made of."""
    from service.store import releases

    rewrite(releases.models_after, ('releases.c.role == "model",', ""))


@bug(_PAGES)
def newer_models_of_all_publications() -> None:
    """A key that may see one publication gets the models of every stream."""
    from service.store import releases

    rewrite(releases.models_after, ("releases.c.publication_id == publication,", ""))


@bug(_PAGES)
def a_newer_model_that_is_known_already() -> None:
    """A client that follows a publication gets the same model without end."""
    from service.store import releases

    rewrite(releases.models_after, ("releases.c.version > version", "releases.c.version >= version"))


@bug(_PAGES)
def a_page_that_begins_where_the_one_before_ended() -> None:
    """A client that reads page after page gets a release twice."""
    from service.store import releases

    rewrite(releases._page, ("releases.c.version < bindparam", "releases.c.version <= bindparam"))


@bug(_PAGES)
def a_newest_version_that_is_not_confirmed() -> None:
    """A publication names a version that nobody may see yet."""
    from service.store import publications

    rewrite(publications.newest_visible, ("released.c.number <= streams.c.confirmed_releases", "released.c.number > 0"))


@bug(_PAGES)
def units_of_all_publications() -> None:
    """The walk of one publication looks for units that others state."""
    from service.store import releases

    rewrite(releases.of_units, ("publication_id = :publication AND ", ""))


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


@bug(_OUTLINE)
def an_outline_with_the_charge_of_the_record_before() -> None:
    """A record is said to have spent what another one has."""
    from service.store import releases

    rewrite(releases.outlined, ("record < charges.c.stop", "record <= charges.c.stop"))


@bug(_OUTLINE)
def an_outline_with_charges_of_other_streams() -> None:
    """Charges of all streams with the same numbers are added up."""
    from service.store import releases

    rewrite(releases.outlined, ("charges.c.stream_id == releases.c.stream_id, charges", "charges"))


@bug(_FIGURES)
def figures_that_are_not_confirmed() -> None:
    """Prometheus gets counts whose noise may be drawn again."""
    from service.store import evaluations

    rewrite(evaluations.of_running, (", releases.c.number <= streams.c.confirmed_releases", ""))


@bug(_FIGURES)
def figures_of_evaluations_that_have_ended() -> None:
    """An alarm rings for ever about a publication that nobody counts any more."""
    from service.store import evaluations

    rewrite(evaluations.of_running, ('publications.c.state == "running",', ""))


@bug(_FIGURES)
def figures_of_the_oldest_block() -> None:
    """No alarm rings when a publication becomes worse."""
    from service.store import evaluations

    rewrite(evaluations.of_running, (".order_by(releases.c.version.desc())", ".order_by(releases.c.version)"))


@bug(_FIGURES)
def counts_of_another_evaluation() -> None:
    """An evaluation shows the parameters of the model with its version's number."""
    from service.store import releases

    rewrite(releases._counts, ("releases.c.publication_id == rows[0].publication_id, ", ""))


@bug(_SIZES)
def sizes_of_fits_on_streams_that_are_not_visible() -> None:
    """A key learns how large the fits of other streams are."""
    from service.store import publications

    rewrite(publications.running_fit_sizes, (".where(streams.c.name.in_(only))", ""))


@bug(_SIZES)
def sizes_of_fits_that_have_ended() -> None:
    """A plan says that a model comes later for publications that run no more."""
    from service.store import publications

    rewrite(publications.running_fit_sizes, ('.where(publications.c.state == "running")', ""))


@bug(_SHORT)
def ledgers_that_are_walked_again_with_others() -> None:
    """Each publisher that asks walks all ledgers anew, and none comes to publish."""
    from service.store import changes

    rewrite(changes.short_ledgers, (" and ledgers[each].log not in but", ""))


@bug(_SHORT)
def ledgers_that_are_long_together() -> None:
    """A transaction reads so many ledgers that the database ends it."""
    from service.store import changes

    rewrite(changes.short_ledgers, ("charges -= row.charges", "pass"))


@bug(_SHORT)
def ledgers_that_are_too_many_together() -> None:
    """A transaction looks at all streams at once."""
    from service.store import changes

    rewrite(changes.short_ledgers, (" or len(short) == most", ""))


@bug(_LOG)
def dead_letters_of_all_streams() -> None:
    """A key that may see one stream gets what could not be numbered of the others."""
    from service.store import numbering

    rewrite(numbering.page_of_dead_letters, (".where(dead_letters.c.stream_id == stream)", ""))


@bug(_LOG)
def dead_letters_that_are_called_strange() -> None:
    """A batch that was accepted and lost is listed as one that nobody sent."""
    from service.store import numbering

    rewrite(numbering.page_of_dead_letters, ("sequence.isnot(None)", "sequence.is_(None)"))


@bug(_LOG)
def dead_letters_that_are_listed_twice() -> None:
    """Each page begins with the last letter of the one before."""
    from service.store import numbering

    rewrite(numbering.page_of_dead_letters, ("dead_letters.c.id < before", "dead_letters.c.id <= before"))


@bug(_LOG)
def batches_of_all_streams() -> None:
    """A producer that asks which numbers a batch got gets those of a batch of another stream, or an error."""
    from service.store import numbering

    rewrite(numbering.find_entry, ("entries.c.stream_id == stream, ", ""))


@bug(_FREE)
def a_record_that_two_people_label() -> None:
    """Somebody is asked for a record that another person looks at."""
    from service.store import labels

    rewrite(labels._free, ("leased_until <= func", "leased_until > func"))


@bug(_FREE)
def a_record_whose_time_is_over_that_is_shown() -> None:
    """Somebody looks at a record whose label is not learnt from any more."""
    from service.store import labels

    rewrite(labels._free, ("is_open(), ", ""))


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


@bug(_COMPARISON)
def cells_of_all_comparisons() -> None:
    """A comparison says that it is further than it is."""
    from service.store import explorations

    rewrite(explorations._query, (".where(findings.c.exploration_id == explorations.c.id)", ""))


@bug(f"{_ENDING}::test_each_stream_is_where_its_own_log_is")
def a_stream_that_stays_where_its_slot_was() -> None:
    """A log that was moved into a cluster is looked for where it was in a list."""
    from service.store import streams

    rewrite(
        streams.place_all, ("row.place != (right := place(row.log))", "row.place is None and (right := place(row.log))")
    )


@bug(f"{_ENDING}::test_each_stream_is_where_its_own_log_is")
def streams_that_are_all_at_one_place() -> None:
    """All streams are looked for where the log of the last one is."""
    from service.store import streams

    rewrite(streams.place_all, (".where(streams.c.id == row.id)", ""))


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
    from service.worker.turn import Turn

    rewrite(
        Turn.has_promised_features,
        (
            '(named["from"], self.publication.stream_id) == (source.name, source.stream_id)',
            'named["from"] == source.name',
        ),
    )
