"""Bugs by which what is done to one stream or publication is done to others too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guarantees.planted.bug import bug, define, rewrite

if TYPE_CHECKING:
    from types import ModuleType

_ENDING, _NUMBERING = "tests/store/test_ending.py", "tests/store/test_numbering.py"
_PUBLISHED = f"{_ENDING}::test_what_is_published_on_a_stream_changes_no_other"
_REMEMBERED = f"{_ENDING}::test_what_is_remembered_is_of_one_publication"
_TICK = f"{_ENDING}::test_a_tick_is_counted_from_what_its_own_stream_numbered"
_LABELS = f"{_ENDING}::test_people_label_records_of_one_publication"


@bug(_PUBLISHED)
def a_chain_of_charges_that_ends_alike_on_all_streams() -> None:
    """A release on one stream has all others distrusted, as their chains do not end where it is written."""
    from service.store import streams

    define(streams, "_MOVE", ('streams.c.id == bindparam("of")', 'bindparam("of", type_=BigInteger) > 0'))


@bug(_PUBLISHED)
def a_new_streams_promise_that_all_have() -> None:
    """Nobody can tell any more what the other streams have promised."""
    from service.store import streams

    rewrite(streams.create, ("update(streams).where(streams.c.id == row.id)", "update(streams)"))


@bug(_PUBLISHED)
def a_new_publications_promise_that_all_have() -> None:
    """Nobody can tell any more what the other publications have promised, and all of them halt."""
    from service.store import publications

    rewrite(
        publications.create,
        ("        .where(publications.c.id == identity)\n        .values(promise", ".values(promise"),
    )


@bug(_PUBLISHED)
def a_clock_that_goes_on_for_all_publications() -> None:
    """A step of one publication takes the others over records that they never learn from."""
    from service.store import publications

    define(publications, "_MOVE", ('publications.c.id == bindparam("of")', 'bindparam("of", type_=BigInteger) > 0'))


@bug(_PUBLISHED)
def a_publication_that_runs_because_another_does() -> None:
    """A publication that has ended counts as running."""
    from service.store import publications

    rewrite(publications.runs, (".where(publications.c.id == identity)", ""))


@bug(_REMEMBERED)
def a_memory_with_the_digest_of_another() -> None:
    """A publication halts since what it remembers is not what another one does."""
    from service.store import parts

    define(parts, "_DIGEST", ("memories.c.publication_id == _MINE", "_MINE > 0"))


@bug(_REMEMBERED)
def a_chain_of_steps_of_all_publications() -> None:
    """A step goes on from what another publication has drawn."""
    from service.store import parked

    define(parked, "CHAIN", (".where(_MINE)", '.where(bindparam("publication", type_=BigInteger) > 0)'))


@bug(_REMEMBERED)
def a_step_that_takes_those_of_others_along() -> None:
    """Steps of other publications that begin at the same position are dropped when one is published."""
    from service.store import parked

    define(parked, "_TAKE", ("        _MINE,\n", '        bindparam("publication", type_=BigInteger) > 0,\n'))


@bug(_TICK)
def a_tick_that_follows_records_of_another_stream() -> None:
    """The time of a release tells when somebody sent records to another stream."""
    from service.store import parked

    own = 'entries.c.stream_id == bindparam("stream")'
    define(parked, "_NUMBERED", (own, 'bindparam("stream", type_=BigInteger) > 0'))
    for name in ("_DUE_AT", "_EARLIEST", "_TICK"):
        define(parked, name)


@bug(_TICK)
def a_tick_that_waits_for_those_of_another_publication() -> None:
    """A publication with rare ticks delays the releases of all others."""
    from service.store import parked

    own = 'parked.c.publication_id == bindparam("publication")'
    define(parked, "_BEFORE", (own, 'bindparam("publication", type_=BigInteger) > 0'))
    define(parked, "_TICK")


@bug(_LABELS)
def a_lease_of_a_record_that_all_publications_give() -> None:
    """Nobody is asked for a record of one publication while somebody labels the same number of another."""
    from service.store import labels

    rewrite(labels.lease, ("label_requests.c.publication_id == publication, label_requests", "label_requests"))


@bug(_LABELS)
def a_lease_that_is_given_back_for_all_publications() -> None:
    """Two people label one record since a third could not be shown another stream's."""
    from service.store import labels

    rewrite(labels.give_back, ("label_requests.c.publication_id == publication", "label_requests.c.publication_id > 0"))


@bug(_LABELS)
def a_label_of_the_record_after_the_last() -> None:
    """A step learns from a record of the next batch."""
    from service.store import labels

    rewrite(labels.answers, ("label_requests.c.record < stop", "label_requests.c.record <= stop"))


@bug(_LABELS)
def a_publication_that_waits_for_labels_of_another() -> None:
    """A batch whose labels are all there waits until every other publication has its own."""
    from service.store import labels

    rewrite(labels.any_open, ("label_requests.c.publication_id == publications.c.id, ", ""))


_ERASED_BEFORE = f"{_ENDING}::test_nobody_is_asked_for_records_that_were_erased_before"


@bug(_ERASED_BEFORE)
def the_last_record_of_a_batch_that_is_asked_for_though_it_was_erased() -> None:
    """Somebody is shown nothing where a record was, and knows that it was erased."""
    from service.store import labels

    rewrite(labels.ask, ("max(records) + 1", "max(records)"))


@bug(_ERASED_BEFORE)
def erased_records_of_another_stream_that_are_not_asked_for() -> None:
    """The erasures of a stream are looked for by the number of a publication."""
    from service.store import labels

    rewrite(labels.ask, ("erased(connection, publication.stream_id,", "erased(connection, publication.id,"))


@bug(_ERASED_BEFORE)
def records_that_all_publications_set_aside() -> None:
    """A record of one stream is not asked for any more since another stream's is erased."""
    from service.store import labels

    rewrite(labels.ask, ("_set_aside(connection, mine,", "_set_aside(connection, label_requests.c.record >= 0,"))


_CHARGES = "tests/store/test_reading_one.py::test_charges_are_those_of_one_stream"


@bug(_CHARGES)
def a_newest_charge_of_another_publication() -> None:
    """A publication goes on from what another one was charged."""
    from service.store import charges

    rewrite(charges.newest, (", charges.c.publication_id == publication.id", ""))


@bug(_CHARGES)
def a_page_of_charges_of_all_streams() -> None:
    """A reader of one stream is told what records of others have spent."""
    from service.store import charges

    rewrite(charges.page, ("charges.c.stream_id == stream, charges", "charges"))


@bug(_CHARGES)
def a_charge_that_two_pages_have() -> None:
    """A reader that adds up the pages of a ledger counts a charge twice for each of them."""
    from service.store import charges

    rewrite(charges.page, ("charges.c.id < before", "charges.c.id <= before"))


@bug(_CHARGES)
def charges_of_the_same_number_on_other_streams() -> None:
    """A release is compared with what a record of another stream was charged."""
    from service.store import charges

    own = 'charges.c.stream_id == bindparam("stream", type_=BigInteger)'
    define(charges, "_OF_IDS", (own, 'bindparam("stream", type_=BigInteger) > 0'))


@bug(f"{_ENDING}::test_each_stream_is_where_its_own_log_is")
def streams_from_before_there_were_places_that_nobody_counts() -> None:
    """All new streams go to the first primary, which holds the old ones already."""
    from service.store import streams

    rewrite(streams.by_place, ("func.coalesce(streams.c.place, 1)", "streams.c.place"))


_LAST_ENTRY = f"{_NUMBERING}::test_a_log_is_numbered_up_to_its_last_entry_and_no_other_is"
_HOLDING = f"{_NUMBERING}::test_segments_that_hold_a_range_are_those_of_its_stream"
_KEPT = f"{_NUMBERING}::test_a_stream_without_segments_keeps_nothing"
_STAYS = f"{_NUMBERING}::test_a_stream_that_changed_while_its_log_was_moved_stays_where_it_is"
_MOVES = f"{_NUMBERING}::test_a_stream_that_moves_is_taken_from_its_sealer_and_no_other_moves"
_CHANGES = f"{_NUMBERING}::test_whatever_changes_of_a_stream_has_it_looked_at_again"


@bug(_LAST_ENTRY)
def entries_that_are_in_the_order_of_their_letters() -> None:
    """A log is read again from the ninth batch of a millisecond, and its records get numbers twice."""
    from service.store import numbering

    rewrite(numbering.seal, (", key=_order)", ")"))


@bug(_LAST_ENTRY)
def entries_of_nobody_that_count_as_batches() -> None:
    """The next batch counts as lost, since something that is none of ours took its number."""
    from service.store import numbering

    rewrite(numbering.seal, ("sum(each.sequence is not None for each in dead)", "len(dead)"))


@bug(_LAST_ENTRY)
def streams_that_are_numbered_together() -> None:
    """All streams that stand where this one stands count its records as theirs."""
    from service.store import numbering

    rewrite(numbering._move.__wrapped__, ('streams.c.id == bindparam("of")', 'bindparam("of", type_=BigInteger) > 0'))


@bug(_HOLDING)
def segments_that_hide_behind_those_of_another_stream() -> None:
    """A fit reads fewer records than it has, where another stream has a segment that begins later."""
    from service.store import segments

    own = '.where(segments.c.stream_id == bindparam("stream", type_=BigInteger), segments.c.start <= _START)'
    define(segments, "_HOLDING", (own, ".where(segments.c.start <= _START)"))


@bug(_HOLDING)
def a_segment_that_the_sealer_takes_from_another_stream() -> None:
    """Segments of two streams are put together."""
    from service.store import segments

    rewrite(segments.first_from, ("segments.c.stream_id == stream, ", ""))


@bug(_HOLDING)
def a_segment_that_begins_just_there_and_is_passed_over() -> None:
    """Every second small segment is never put together with others."""
    from service.store import segments

    rewrite(segments.first_from, ("segments.c.start >= record", "segments.c.start > record"))


@bug(_KEPT)
def a_stream_whose_records_are_gone_and_kept() -> None:
    """A publication is accepted for records that were dropped."""
    from service.store import segments

    define(segments, "_KEPT_FROM", ("func.coalesce(_first, streams.c.records)", "func.coalesce(_first, 0)"))


@bug(_KEPT)
def records_that_another_stream_keeps() -> None:
    """A publication is accepted for records that were dropped, since another stream has such."""
    from service.store import segments

    define(segments, "_first", (".where(segments.c.stream_id == streams.c.id)", ""))
    define(segments, "_KEPT_FROM")


@bug(f"{_STAYS}[it moved]")
def a_move_from_where_the_stream_is_not_any_more() -> None:
    """The stream goes to a log that lacks what the one where it is has taken."""
    from service.store import places

    rewrite(places.switch, ("streams.c.place.is_not_distinct_from(stream.place),", ""))


@bug(f"{_STAYS}[it was numbered]")
def a_move_that_leaves_what_was_numbered_meanwhile() -> None:
    """The new log goes on with a number that a batch of the old one has."""
    from service.store import places

    rewrite(places.switch, ("streams.c.sealed_sequence == stream.sealed_sequence,", ""))


@bug(f"{_STAYS}[it halted]")
def a_move_of_a_stream_that_halted_meanwhile() -> None:
    """A stream whose log is lost gets an empty one, and nobody finds out how much is lost."""
    from service.store import places

    rewrite(places.switch, ("streams.c.halted.is_not_distinct_from(stream.halted),", ""))


@bug(_MOVES)
def a_move_that_takes_all_streams_along() -> None:
    """Every stream is looked for on a primary that has nothing of it."""
    from service.store import places

    rewrite(places.switch, ("streams.c.id == stream.id,", ""))


@bug(_MOVES)
def a_sealer_that_keeps_a_stream_that_has_moved() -> None:
    """A sealer of the old primary finds its log gone, and halts the stream."""
    from service.store import places

    rewrite(places.switch, ("leases.revoke(connection, leases.stream(stream.id))", "pass"))


@bug(f"{_CHANGES}[distrusted]")
def a_distrusted_stream_that_nobody_looks_at() -> None:
    """Workers that know a stream as whole go on to publish on it."""
    from service.store import changes

    _without(changes, '    "distrusted",\n')


@bug(f"{_CHANGES}[head]")
def another_chain_of_the_same_length_that_nobody_looks_at() -> None:
    """A ledger that was changed without becoming longer is walked by nobody."""
    from service.store import changes

    _without(changes, '    "head",\n')


@bug(f"{_CHANGES}[erasures]")
def an_erasure_that_nobody_looks_at() -> None:
    """A worker takes what it knew before the records were erased for what is there now."""
    from service.store import changes

    _without(changes, "", ('"/", _ASKED.c.asked, TIMELINE', '"/", TIMELINE'))


def _without(changes: ModuleType, column: str, *more: tuple[str, str]) -> None:
    define(changes, "_TOLD", *[(each, "") for each in (column,) if each])
    define(changes, "_STATES", *more)
    for name in ("_digests", "_DIGEST"):
        define(changes, name)
