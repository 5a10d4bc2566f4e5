"""Bugs in calls of the Python client, which leave out what they are given, or do not know a batch again."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite, wrap

_CALLS = "tests/client/test_calls.py"
_PASSED = f"{_CALLS}::test_an_append_is_given_all_that_was_said[AsyncStream-AsyncTransport]"
_KNOWN = f"{_CALLS}::test_a_batch_is_known_again_whatever_types_its_numbers_have"


@bug(_PASSED)
def an_answer_of_people_that_only_one_client_passes_on() -> None:
    """With asyncio nobody can say that a batch without an answer is stored: the load never goes on."""
    from perennial.async_client import AsyncStream

    rewrite(AsyncStream.append, ("self._sender, uncertain)", 'self._sender, "refuse")'))


@bug(_PASSED)
def features_that_only_one_client_passes_on() -> None:
    """With asyncio a column that was left out is sent."""
    from perennial.async_client import AsyncStream

    rewrite(AsyncStream.append, ("features=features", "features=None"))


@bug(_PASSED)
def patience_that_only_one_client_has() -> None:
    """With asyncio a call that was to end at once waits for minutes."""
    from perennial.async_client import AsyncStream

    rewrite(AsyncStream.append, ("patience=patience", "patience=PATIENCE_SECONDS"))


@bug(f"{_CALLS}::test_who_follows_gets_the_newest_model_first[AsyncPublication-AsyncTransport]")
def a_newest_model_that_a_follower_never_gets() -> None:
    """An asynchronous follower gets no model before the next release."""
    from perennial.async_client import AsyncPublication

    rewrite(AsyncPublication.follow, ("newest_version(self.name)) - 1)", "newest_version(self.name)))"))


@bug(_KNOWN)
def labels_that_are_others_as_floats() -> None:
    """A load of the same data from a file of another format is refused as if they were other records."""
    from perennial import batches

    rewrite(batches._digest, ("block.y, dtype=np.float64", "block.y"))


@bug(_KNOWN)
def ids_that_are_others_as_texts() -> None:
    """A load of the same data, whose ids are read as texts this time, is refused as if they were other records."""
    from perennial import batches

    rewrite(batches._digest, ("[str(each) for each in block.unit.tolist()]", "block.unit.tolist()"))


@bug(f"{_CALLS}::test_labels_of_any_byte_order_are_sent_as_they_are")
def labels_in_the_byte_order_of_their_file() -> None:
    """Labels of a file of another machine are sent as other numbers."""
    from perennial import batches

    rewrite(batches._as_arrow, ('block.y, dtype=block.y.dtype.newbyteorder("=")', "block.y"))


@bug(f"{_CALLS}::test_other_records_in_the_place_of_a_batch_without_an_answer_are_refused")
def other_records_that_are_noted_as_the_first_ones() -> None:
    """They are stored, and the first ones count as accepted without ever being sent again."""
    from perennial import journal

    rewrite(
        journal.Journal.begin,
        ("        self._same(batch, known)\n        return known.sent", "        return known.sent"),
    )


@bug(f"{_CALLS}::test_a_journal_has_a_write_ahead_log")
def a_journal_whose_changes_are_undone_from_memory() -> None:
    """A load that is killed damages its journal, which lists the batches that the service accepted."""
    from perennial import journal

    rewrite(journal.opened, ('"PRAGMA journal_mode = WAL"', '"PRAGMA journal_mode = MEMORY"'))


@bug(f"{_CALLS}::test_what_was_skipped_has_no_entry_in_the_receipt")
def an_entry_of_a_batch_that_was_skipped() -> None:
    """To ask for the numbers of the records never ends."""
    from perennial import appending

    rewrite(appending.append, ("entries += [entry] if entry else []", "entries += [entry]"))


@bug(f"{_CALLS}::test_ranges_become_minus_one_to_one")
def scales_as_wide_as_their_ranges() -> None:
    """Features are half as long as they may be, and the noise is twice as large beside them."""
    from perennial import settings

    rewrite(settings.standardize, ("(high - low) / 2", "high - low"))


@bug(f"{_CALLS}::test_of_a_map_that_is_new_units_are_known")
def units_that_a_new_map_hides() -> None:
    """Records without a unit are sent again and again, and refused one batch after the other."""
    from perennial.schema import Schema

    wrap(Schema, "of", lambda true, described: true({**described, "unit": None}))


@bug(f"{_CALLS}::test_a_single_column_of_another_name_is_refused")
def a_single_column_that_is_taken_for_any_other() -> None:
    """Another column than the stream's is sent."""
    from perennial.names import Names

    rewrite(Names.match, ("len(features) == 1 and len(self.columns) > 1", "len(features) == 1"))
