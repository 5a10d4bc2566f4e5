"""Bugs in a worker's sealer: what is numbered, dropped, erased and swept, and by which worker."""

from __future__ import annotations

from types import SimpleNamespace

from sqlalchemy import text

from tests.guarantees.planted.bug import bug, rewrite, wrap

_SEALING = "tests/worker/test_sealing.py"
_ERASING = "tests/worker/test_erasing.py"
_PUBLISHING = "tests/worker/test_publishing.py"
_RESTORED = "tests/worker/test_restored.py"
_CRASH = f"{_SEALING}::test_a_crash_at_any_step_loses_and_doubles_nothing"
_SHARING = "tests/worker/test_sharing.py"


@bug("tests/worker/test_dropping.py::test_a_publication_that_begins_meanwhile_finds_its_records_or_is_refused")
def records_that_are_dropped_beneath_a_new_publication() -> None:
    """A publication that is accepted meanwhile begins with records that are gone."""
    from service.store import locks, retention, streams

    retention.locks = SimpleNamespace(**vars(locks) | {"stream": streams.get})  # type: ignore[assignment]


@bug("tests/worker/test_dropping.py::test_what_is_to_be_kept_is_kept_whatever_is_needed")
def records_that_are_dropped_though_they_are_to_be_kept() -> None:
    """Streams of every retention lose what no running publication needs."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._drop_unneeded, ('stream.retention != "needed"', "False"))


@bug(f"{_PUBLISHING}::test_needed_records_are_kept_and_only_those[needed]")
def records_that_are_dropped_as_soon_as_they_are_read() -> None:
    """The next fit of a window finds half of its records."""
    from service.worker import sealer

    wrap(sealer, "needs", lambda _true, _schema, _configuration, position: position)


@bug(f"{_SEALING}::test_a_batch_lost_in_the_middle_halts_the_stream")
def numbers_that_go_on_after_a_gap() -> None:
    """A batch that the log lost is not missed."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._seal, ("entry.sequence not in (None, due)", "False"))


@bug("tests/worker/test_lost_log.py::test_what_came_before_a_lost_batch_is_numbered_and_numbering_goes_on_behind_it")
def a_gap_that_nobody_gets_past() -> None:
    """Batches before a lost one are never numbered, and the stream halts again however often it is resumed."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._seal, ("if sealed or dead:", "if False:"))


@bug("tests/worker/test_lost_log.py::test_a_resume_that_comes_after_another_halt_is_refused")
def a_resume_that_answers_another_halt() -> None:
    """Batches that have numbers count as lost, and the stream is numbered from before them."""
    from service.store import numbering

    rewrite(numbering.resume, (" or _halt(stream) != _halt(seen)", ""))


@bug(
    "tests/worker/test_units.py::"
    "test_no_slot_of_an_erased_unit_counts_though_it_is_erased_while_it_is_counted[while-bench0]"
)
def a_file_in_which_an_erased_unit_counts() -> None:
    """Records of a unit that is erased while they are counted stay in a file that nothing names."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._guard, ("self._guard(log, partial(self._sweep, stream, set()))", "pass"))


@bug(f"{_SEALING}::test_a_batch_stays_in_the_log_until_its_records_are_numbered")
def a_log_that_is_trimmed_before_its_records_are_numbered() -> None:
    """A crash between the two loses what was promised."""
    from service.worker.sealer import Sealer

    rewrite(
        Sealer._seal,
        ("    letters = [_letter", "    self._reader.trim(log, batch[-1].id)\n    letters = [_letter"),
    )


@bug(f"{_CRASH}[before-seal]")
def what_a_crash_left_is_not_swept() -> None:
    """Files that nothing names pile up, erased records among them."""
    from service.worker.sealer import Sealer

    wrap(Sealer, "_sweep", lambda *_: None)


@bug(f"{_SEALING}::test_what_a_crash_left_in_the_log_is_trimmed_at_once")
def a_log_that_the_next_sealer_does_not_trim() -> None:
    """Batches that were numbered before a crash stay in the log for ever."""
    from service.log import Reader

    rewrite(Reader.go_on, ("position.sequence:", "False:"))


@bug(f"{_RESTORED}::test_an_older_numbering_is_told_by_the_log_alone")
def a_log_that_a_new_sealer_does_not_look_at() -> None:
    """Files are swept that an older record does not know, and the log does."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._take_over, ("lost |= self._reader.check_each(", "dict("))


@bug(f"{_SEALING}::test_who_holds_a_stream_notices_that_its_log_is_gone")
def a_log_that_is_looked_at_once() -> None:
    """A log that is flushed beneath a running worker is found out when that ends."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._tidy, ("self._reader.check_each(", "dict("))


@bug(f"{_RESTORED}::test_an_older_numbering_halts_and_its_newer_segments_are_not_swept")
def newer_segments_that_an_older_record_sweeps() -> None:
    """A backup is put in the place of the database, and the records that came since are deleted."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._take_over, ("sealing.keys() & older.keys()", "()"))


@bug(f"{_SEALING}::test_a_sealer_that_lost_its_lease_commits_nothing")
def a_stream_that_an_overtaken_sealer_halts() -> None:
    """A sealer that was overtaken misses what its successor trimmed, and stops the stream."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._guard, ("leases.check(connection, lease)\n", "pass\n"))


@bug(f"{_ERASING}::test_a_halted_streams_log_forgets_what_is_numbered")
def a_halted_log_that_keeps_what_was_erased() -> None:
    """A halted stream calls records deleted while its log still holds their batches."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._delete_erased, ("self._reader.trim(stream.log, stream.sealed_entry)", "pass"))


@bug(f"{_ERASING}::test_who_wakes_after_bytes_were_erased_leaves_no_file_that_holds_them[erase]")
def a_late_file_with_erased_bytes() -> None:
    """An overtaken worker writes a file after its successor has erased and swept, and does not delete it."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._replace, ("gone_if(LeaseLost,", "gone_if(ZeroDivisionError,"))


@bug(f"{_ERASING}::test_erased_records_contribute_nothing_and_their_bytes_go")
def the_last_erased_record_keeps_its_bytes() -> None:
    """The deletion spares the last record of each erased range."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._delete_erased, ("[low : max(low, high)] = 0", "[low : max(low, high - 1)] = 0"))


@bug(f"{_SEALING}::test_every_segment_that_comes_or_goes_is_in_the_sum[erased]")
def segments_of_another_stream_that_are_replaced() -> None:
    """Segments of all streams that begin at the same record go when one of them is written anew."""
    from service.store import segments

    rewrite(segments.replace, ("segments.c.stream_id == stream.id, ", ""))


@bug(f"{_ERASING}::test_erased_records_contribute_nothing_and_their_bytes_go")
def erasures_that_another_streams_sealer_calls_done() -> None:
    """The first sealer that deletes bytes of its own stream marks those of all streams as deleted."""
    from service.store import segments

    rewrite(segments.undeleted_erasures, ("erasures.c.stream_id == stream, ", ""))


@bug(f"{_ERASING}::test_erased_records_contribute_nothing_and_their_bytes_go")
def erasures_of_which_the_first_alone_is_made() -> None:
    """Bytes of the others are called deleted, and stay."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._delete_erased, ("in waiting:\n            touched", "in waiting[:1]:\n            touched"))


@bug(f"{_ERASING}::test_erased_records_contribute_nothing_and_their_bytes_go")
def erased_records_that_keep_their_labels() -> None:
    """The deletion spares what a record was called."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._delete_erased, ('columns.keys() & {"x", "y"}', 'columns.keys() & {"x"}'))


@bug(f"{_ERASING}::test_a_file_that_a_worker_wrote_too_late_before_it_died_goes_with_what_is_erased")
def erased_bytes_in_a_file_that_nothing_names() -> None:
    """The bytes are called deleted while a file that a dead worker wrote too late still holds them."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._delete_erased, ("self._sweep(stream, set())", "pass"))


@bug(f"{_ERASING}::test_a_crash_at_any_step_of_erasing_is_made_good[before-replace]")
def erasures_that_are_called_done_before_they_are() -> None:
    """A crash in between leaves the bytes for ever."""
    from service.worker.sealer import Sealer

    rewrite(
        Sealer._delete_erased,
        (
            "    lease, touched = self._held[stream.log][0], dict[int, Segment]()\n",
            (
                "    lease, touched = self._held[stream.log][0], dict[int, Segment]()\n"
                "    with self._database.transaction() as connection:\n"
                "        segments.mark_deleted(connection, lease, [erasure for erasure, _, _ in waiting])\n"
            ),
        ),
    )


@bug(f"{_ERASING}::test_the_log_is_asked_to_forget_before_bytes_are_called_deleted")
def a_log_that_remembers_what_was_erased() -> None:
    """The server's own file holds the erased records until it is written anew by itself."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._delete_erased, ("self._forget()", "pass"))


@bug(f"{_ERASING}::test_a_halted_stream_keeps_files_that_nobody_knows")
def files_that_a_halted_stream_sweeps() -> None:
    """If its database is an old one, the only copy of newer records is deleted."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._delete_erased, ("stream.halted is not None and self._orphans(stream)", "False"))


@bug("tests/worker/test_handover.py::test_leases_are_renewed_again_after_the_database_refused_writes")
def leases_that_nobody_renews_after_an_error() -> None:
    """One refused write, and every long fit loses its lease."""
    from service.worker.leases import LeaseKeeper

    rewrite(
        LeaseKeeper._renew,
        ("            continue\n        with self._lock", "            return\n        with self._lock"),
    )


@bug("tests/worker/test_handover.py::test_a_slow_commit_costs_no_other_lease")
def leases_that_wait_for_each_other() -> None:
    """A slow commit costs all leases of its worker."""
    from service.store import leases

    leases._RENEW = text(leases._RENEW.text.replace("FOR UPDATE OF leases SKIP LOCKED", ""))


@bug(f"{_SHARING}::test_of_a_dead_worker_all_streams_are_taken_over_together")
def a_dead_workers_streams_that_nobody_takes_over() -> None:
    """Streams are taken that were given back, not those whose lease ran out."""
    from service.store import leases

    rewrite(
        leases.is_free,
        (
            "leases.c.expires_at <= now - timedelta(seconds=since)",
            "leases.c.owner.is_(None) & (leases.c.expires_at <= now - timedelta(seconds=since))",
        ),
    )


@bug(f"{_SHARING}::test_two_workers_that_take_at_once_take_no_stream_twice")
def a_lease_that_two_take_at_once() -> None:
    """The second to come takes what the first has taken just now."""
    from service.store import leases

    rewrite(leases._taking, (".with_for_update(skip_locked=True)", ""))


@bug(f"{_SHARING}::test_workers_share_streams_fairly")
def a_worker_that_gives_nothing_back() -> None:
    """The first worker numbers everything, for ever."""
    from service.worker.share import Share

    wrap(Share, "surplus", lambda *_: 0)


@bug(f"{_SHARING}::test_a_stream_that_nobody_takes_is_anybodys")
def a_stream_that_is_left_to_who_fails_at_it() -> None:
    """It waits for a worker that can't number it."""
    from service.worker.share import Share

    rewrite(Share.take, ("there.long_free", "False"))


@bug(f"{_SHARING}::test_a_new_stream_is_heard_of")
def a_new_stream_that_is_not_told_of() -> None:
    """It waits for the next look."""
    from service.store import streams

    streams.notify = lambda *_: None  # type: ignore[assignment]


@bug("tests/worker/test_handover.py::test_who_lost_the_lease_deletes_nothing_that_its_successor_wrote")
def a_sweep_by_rows_that_are_old() -> None:
    """A worker that was overtaken deletes what its successor has numbered."""
    from service.worker.sealer import Sealer

    rewrite(
        Sealer._sweep,
        ("leases.check(connection, self._held[stream.log][0])", "pass"),
        ("        known = segments.files_of(connection, stream.id)\n", ""),
    )


@bug("tests/worker/test_dropping.py::test_what_the_last_of_several_publications_needs_is_kept")
def records_that_are_dropped_once_the_first_publication_has_read_them() -> None:
    """Another one, which is not as far, misses them."""
    from service.store import retention

    rewrite(retention.drop_unneeded, ("min(needed.values()", "max(needed.values()"))


@bug("tests/worker/test_handover.py::test_a_lease_that_another_took_counts_as_held_no_more")
def a_lost_lease_that_counts_as_held() -> None:
    """A worker that the others count no more never takes its share again."""
    from service.worker.leases import LeaseKeeper

    rewrite(LeaseKeeper._renew, ("del self._held[lease.resource]", "pass"))


@bug(
    "tests/worker/test_handover.py::"
    "test_a_stream_that_moved_while_its_lease_was_taken_is_left_to_the_sealer_of_its_new_primary"
)
def leases_of_streams_that_are_elsewhere() -> None:
    """A worker keeps the lease of a stream that has moved, so that no worker numbers its batches."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._read, ("self._keeper.drop(*mine.values())", "pass"))


@bug("tests/worker/test_dropping.py::test_what_the_last_of_several_publications_needs_is_kept")
def a_segment_that_is_dropped_though_its_last_records_are_needed() -> None:
    """A publication that is in the middle of a segment misses the rest of it."""
    from service.store import retention

    rewrite(retention.drop_unneeded, ("if each.stop <= floor", "if each.start <= floor"))


_AGAIN = "tests/worker/test_sealing.py::test_who_takes_its_own_lease_again_has_lost_the_one_before"


@bug(_AGAIN)
def a_lost_lease_that_is_renewed() -> None:
    """A thread goes on to renew a lease that another thread of its worker has taken since."""
    from service.store import leases

    leases._RENEW = text(str(leases._RENEW).replace("AND leases.epoch = unlocked.epoch", ""))


@bug(_AGAIN)
def a_lost_lease_that_is_given_back() -> None:
    """A thread gives back what another thread of its worker holds now, and a second worker takes it."""
    from service.store import leases

    leases._RELEASE = text(str(leases._RELEASE).replace("AND leases.epoch = asked.epoch", ""))


_GOES = "tests/worker/test_dropping.py::test_what_came_before_the_first_publication_begins_goes_with_its_files[needed]"


@bug(_GOES)
def records_from_before_a_publication_that_stay() -> None:
    """A stream that keeps what is needed keeps records that its publications never read."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._drop_unneeded, ("each.start + needs(", "needs("))


@bug(_GOES)
def files_of_dropped_records_that_stay() -> None:
    """Rows of segments go, and their files stay until a sealer takes the stream over."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._drop_unneeded, ("self._files.delete(stream.log, each.file)", "pass"))


@bug(f"{_ERASING}::test_a_log_that_could_not_forget_is_asked_again")
def a_log_that_is_asked_once_to_forget() -> None:
    """Where its server was busy, its own file holds the erased records for ever."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._tidy, ("self._forget()", "pass"))
