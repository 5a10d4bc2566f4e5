"""Bugs in the record: its leases, digests and files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.guarantees.planted.bug import bug, rewrite, wrap

_FILES, _DIGESTS = "tests/segments/test_segment_files.py", "tests/store/test_digests.py"
_LEASES = "tests/worker/test_sealing.py::test_a_lease_that_ran_out_can_be_taken_but_not_renewed"
_OVERTAKEN = "tests/worker/test_erasing.py::test_who_was_overtaken_neither_replaces_segments_nor_calls_bytes_deleted"
_CONFIRMATION = "tests/worker/test_confirmation.py"
_ON_DISK = f"{_FILES}::test_what_is_written_is_on_disk_before_anybody_is_told_its_name"
_MARK_ON_DISK = f"{_FILES}::test_a_mark_is_on_disk_before_it_takes_the_place_of_the_one_before"


def _without_lease(owner: Any, name: str) -> None:
    """Let a function of the segments run whoever holds the lease."""
    from service.store import segments

    def unchecked(true: Any, *args: Any) -> Any:
        checking, segments.leases = segments.leases, SimpleNamespace(check=lambda *_: None)  # type: ignore[assignment]
        try:
            return true(*args)
        finally:
            segments.leases = checking

    wrap(owner, name, unchecked)


@bug(f"{_OVERTAKEN}[replace]")
def segments_that_an_overtaken_sealer_replaces() -> None:
    """Its file takes the place of one that the holder of the lease has written since."""
    from service.store import segments

    _without_lease(segments, "replace")


@bug(f"{_OVERTAKEN}[mark_deleted]")
def erased_bytes_that_an_overtaken_sealer_calls_deleted() -> None:
    """The sealer calls bytes gone that another sealer brought back meanwhile."""
    from service.store import segments

    _without_lease(segments, "mark_deleted")


@bug("tests/worker/test_sealing.py::test_every_segment_that_comes_or_goes_is_in_the_sum[merged]")
def segments_that_come_and_go_unsummed() -> None:
    """A segment in the place of others is not added to what tells that none is missing."""
    from service.store import segments

    rewrite(segments.replace, ("sum(gone + come)", "0"))


@bug(f"{_DIGESTS}::test_each_part_of_what_is_remembered_is_in_its_digest[terms]")
def memory_without_the_terms_of_the_next_step() -> None:
    """An upgrade goes on with other noise."""
    from service.store import step_records

    rewrite(step_records.remembered, ('"terms": terms', '"terms": None'))


@bug(f"{_DIGESTS}::test_each_part_of_what_is_remembered_is_in_its_digest[number]")
def memory_without_its_numbers() -> None:
    """Noise of one step is taken for that of another."""
    from service.store import step_records

    rewrite(step_records.remembered, ("[number, list(", "[list("))


@bug("tests/worker/test_memory.py::test_a_publication_whose_memory_is_lost_halts_and_one_that_ends_forgets")
def memory_that_outlives_its_publication() -> None:
    """Noise that releases hide behind stays in the database for ever."""
    from service.store import parts

    rewrite(parts.forget, ("in (parts, memories)", "in (memories,)"))


@bug(f"{_DIGESTS}::test_each_part_of_a_lineage_is_in_its_digest[memory]")
def a_lineage_without_memory() -> None:
    """A step that took back noise which was lost is published on other noise."""
    from service.store import lineage

    rewrite(lineage.of, ('"memory": memory', '"memory": None'))


@bug(f"{_DIGESTS}::test_each_part_of_a_publications_promise_is_in_its_digest[start]")
def a_promise_without_the_start() -> None:
    """A publication is made to read records from before it was accepted for them."""
    from service.store import publications

    rewrite(publications.promised, ('"start": publication.start,', ""))


@bug(f"{_DIGESTS}::test_each_part_of_a_streams_promise_is_in_its_digest[epsilon]")
def a_stream_whose_budget_is_no_promise() -> None:
    """The lifetime budget of a stream can be raised."""
    from service.store import streams

    rewrite(streams.promised, ('"epsilon": str(Fraction(stream.epsilon)),', ""))


@bug(f"{_DIGESTS}::test_each_part_of_a_segment_is_in_its_digest[sha256]")
def a_segment_whose_content_is_not_in_its_digest() -> None:
    """Other records are put in the place of those that were numbered."""
    from service.store import segments

    rewrite(segments.digest, ('"sha256": segment.sha256.hex()', '"sha256": ""'))


@bug(f"{_DIGESTS}::test_each_part_of_a_release_is_in_its_digest[noise]")
def a_release_whose_noise_is_not_in_its_digest() -> None:
    """A release is said to have other noise than was drawn."""
    from service.store import releases

    rewrite(releases.digest, ('"noise": row["noise"],', ""))


@bug(f"{_CONFIRMATION}::test_a_lease_that_a_failover_gave_to_two_is_one_owners")
def a_lease_that_two_owners_hold() -> None:
    """After a failover two workers have the same epoch."""
    from service.store import leases

    rewrite(leases.is_held, ("leases.c.owner == owner,", ""))


@bug("tests/worker/test_sealing.py::test_who_takes_its_own_lease_again_has_lost_the_one_before")
def a_lease_that_is_taken_again_without_another_epoch() -> None:
    """Two threads of one worker may both commit."""
    from service.store import leases

    rewrite(leases._taking, ("epoch=leases.c.epoch + 1, ", ""))


@bug(_LEASES)
def a_lease_that_is_taken_from_its_holder() -> None:
    """Nobody waits until a lease has run out."""
    from service.store import leases

    rewrite(leases.is_free, ("leases.c.expires_at <= now - timedelta(seconds=since),", "leases.c.epoch >= 0,"))


@bug(f"{_ON_DISK}[file]")
def a_segment_that_is_not_synced() -> None:
    """A machine that loses power has a row without its records, and no log any more."""
    from service.segments.files import SegmentFiles

    rewrite(SegmentFiles.put, ("os.fsync(file.fileno())", "pass"))


@bug(f"{_ON_DISK}[folder]")
def a_segment_whose_folder_is_not_synced() -> None:
    """The file is on the disk, and its name is not."""
    from service.segments.files import SegmentFiles

    rewrite(SegmentFiles.put, ("    _sync(folder)\n", ""))


@bug(_MARK_ON_DISK)
def a_mark_that_is_not_synced() -> None:
    """Releases are seen that neither the database nor the mark remembers after a crash."""
    from service.segments.files import SegmentFiles

    rewrite(SegmentFiles.put_high_water_mark, ("os.fsync(file.fileno())", "pass"))


@bug(_MARK_ON_DISK)
def a_mark_that_is_written_over_the_one_before() -> None:
    """A crash in the middle leaves none."""
    from service.segments.files import SegmentFiles

    rewrite(
        SegmentFiles.put_high_water_mark,
        ('new = self.root / f"{log}.{secrets.token_hex(4)}.new"', 'new = self.root / f"{log}.witness"'),
        ('new.open("xb")', 'new.open("wb")'),
    )


@bug(f"{_FILES}::test_files_of_records_are_their_owners_alone")
def segments_that_everybody_may_read() -> None:
    """Other users of the machine read records."""
    from service.segments.files import SegmentFiles

    rewrite(SegmentFiles.put, ("os.fchmod(file.fileno(), 0o600)", "os.fchmod(file.fileno(), 0o644)"))


@bug(f"{_FILES}::test_a_file_that_is_changed_after_it_was_read_is_found_out")
def a_segment_that_is_looked_at_once() -> None:
    """The worker fits whatever is written into a file of the same size."""
    from service.segments import files

    rewrite(files._state, (", status.st_ctime_ns", ""))


@bug(f"{_FILES}::test_one_at_a_time_writes_a_mark")
def a_mark_that_many_write_at_once() -> None:
    """A confirmer that read the database first may write last, and the mark goes back."""
    from service.segments import files

    files._lock = lambda _: None


@bug("tests/store/test_verify.py::test_a_segment_that_was_changed_or_is_gone_is_named")
def segments_that_are_not_hashed() -> None:
    """A disk that lies is believed."""
    from service.segments.files import SegmentFiles

    rewrite(SegmentFiles._check, ('hashlib.file_digest(file, "sha256").digest() != sha256', "False"))


@bug("tests/worker/test_handover.py::test_who_was_overtaken_between_its_file_and_its_commit_numbers_nothing")
def records_that_an_overtaken_sealer_numbers() -> None:
    """Its file was swept: the row that names it numbers records that are nowhere."""

    from service.store import numbering

    rewrite(numbering.seal, ("leases.check(connection, lease)", "pass"))


@bug("tests/worker/test_sealing.py::test_a_halted_stream_numbers_nothing_that_was_under_way")
def a_halted_stream_that_numbers_on() -> None:
    """The sealer numbers batches that were under way when the log was found lost."""

    from service.store import numbering

    rewrite(numbering._move, ("streams.c.halted.is_(None),", ""))


@bug("tests/worker/test_audit.py::test_a_verdict_does_not_undo_one_that_came_meanwhile")
def a_verdict_that_undoes_another() -> None:
    """A look that began earlier calls a stream whole that another has found broken."""
    from service.store import streams

    rewrite(streams.distrust, (", streams.c.distrusted.is_not_distinct_from(stream.distrusted)", ""))


@bug("tests/worker/test_labelling.py::test_labels_that_can_not_come_any_more_are_not_waited_for")
def labels_that_are_taken_after_their_time() -> None:
    """An answer changes what a step has begun to learn from."""
    from service.store import labels

    rewrite(labels.is_open, (", label_requests.c.expires_at > func.clock_timestamp()", ""))


@bug("tests/worker/test_labelling.py::test_what_is_not_confirmed_is_asked_of_nobody")
def requests_that_are_seen_before_their_coins_are_confirmed() -> None:
    """Coins that PostgreSQL forgets afterwards are tossed again, and people know both."""
    from service.store import labels

    rewrite(labels._visible, ("func.coalesce(label_requests.c.charge, 0) <= confirmed", "confirmed >= 0"))


_OBJECTS = "tests/segments/objects/test_segment_objects.py"


@bug(f"{_OBJECTS}::test_who_was_overtaken_writes_nothing_that_is_believed[1]")
def a_mark_after_the_newest_instead_of_the_one_it_rests_on() -> None:
    """It takes the place of a mark that tells of more."""
    from service.segments.objects import SegmentObjects

    rewrite(SegmentObjects.put_high_water_mark, ("self._based_on[log] + 1", "self._newest(log) + 1"))


@bug(f"{_OBJECTS}::test_of_many_machines_that_write_a_mark_at_once_one_does")
def a_mark_that_overwrites() -> None:
    """Two machines believe that theirs is the one."""
    from service.segments.objects import SegmentObjects

    rewrite(SegmentObjects._create, ('mode="create"', 'mode="overwrite"'))


@bug(f"{_OBJECTS}::test_copies_go_when_they_are_old_or_too_many")
def copies_that_stay() -> None:
    """Bytes of erased records stay on every machine that ever read them."""
    from service.segments.objects import SegmentObjects

    rewrite(SegmentObjects._drop_copies, ("time.time() - COPY_SECONDS", "0.0"))


_NARROWED = "tests/store/test_schema_versions.py::test_this_version_can_do_nothing_more_where_the_next_one_does_not"


@bug(_NARROWED)
def leases_that_a_migration_leaves_to_an_older_version() -> None:
    """An older version commits what it had in hand to tables that mean something else by now."""
    from service.store import schema_version

    rewrite(schema_version.note_served, ("if not before <= served", "if False"))


@bug(_NARROWED)
def leases_that_an_older_version_takes() -> None:
    """An older version goes on publishing on tables that mean something else by now."""
    from service.store import leases

    rewrite(leases._taking, (", is_served()", ""))
