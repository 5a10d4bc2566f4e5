"""Bugs in a worker's sealer: what is numbered, dropped, erased and swept, and by which worker."""

from __future__ import annotations

from types import SimpleNamespace

from sqlalchemy import text

from tests.guarantees.planted.bug import bug, rewrite, wrap

_SEALING = "tests/worker/test_sealing.py"
_ERASING = "tests/worker/test_erasing.py"
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
    from service.worker.dropper import Dropper

    rewrite(Dropper.drop_unneeded, ('stream.retention != "needed"', "False"))


@bug(f"{_SEALING}::test_a_batch_lost_in_the_middle_halts_the_stream")
def numbers_that_go_on_after_a_gap() -> None:
    """A batch that the log lost is not missed."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._seal, ("entry.sequence not in (None, due)", "False"))


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

    rewrite(Sealer._guard, ("self._guard(log, partial(self._sweeper.sweep, lease, stream, set()))", "pass"))


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
    from service.worker.sweeper import Sweeper

    wrap(Sweeper, "sweep", lambda *_: None)


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


@bug(f"{_ERASING}::test_a_halted_streams_log_forgets_what_is_numbered")
def a_halted_log_that_keeps_what_was_erased() -> None:
    """A halted stream calls records deleted while its log still holds their batches."""
    from service.worker.eraser import Eraser

    rewrite(Eraser.delete_erased, ("self._reader.trim(stream.log, stream.sealed_entry)", "pass"))


@bug(f"{_ERASING}::test_who_wakes_after_bytes_were_erased_leaves_no_file_that_holds_them[erase]")
def a_late_file_with_erased_bytes() -> None:
    """An overtaken worker writes a file after its successor has erased and swept, and does not delete it."""
    from service.worker.merger import Merger

    rewrite(Merger.replace, ("gone_if(LeaseLost,", "gone_if(ZeroDivisionError,"))


@bug(f"{_ERASING}::test_erased_records_contribute_nothing_and_their_bytes_go")
def the_last_erased_record_keeps_its_bytes() -> None:
    """The deletion spares the last record of each erased range."""
    from service.worker.eraser import Eraser

    rewrite(Eraser.delete_erased, ("[low : max(low, high)] = 0", "[low : max(low, high - 1)] = 0"))


@bug(f"{_ERASING}::test_erased_records_contribute_nothing_and_their_bytes_go")
def erasures_that_another_streams_sealer_calls_done() -> None:
    """The first sealer that deletes bytes of its own stream marks those of all streams as deleted."""
    from service.store import segments

    rewrite(segments.undeleted_erasures, ("erasures.c.stream_id == stream, ", ""))


@bug(f"{_ERASING}::test_erased_records_contribute_nothing_and_their_bytes_go")
def erased_records_that_keep_their_labels() -> None:
    """The deletion spares what a record was called."""
    from service.worker.eraser import Eraser

    rewrite(Eraser.delete_erased, ('columns.keys() & {"x", "y"}', 'columns.keys() & {"x"}'))


@bug(f"{_ERASING}::test_a_file_that_a_worker_wrote_too_late_before_it_died_goes_with_what_is_erased")
def erased_bytes_in_a_file_that_nothing_names() -> None:
    """The bytes are called deleted while a file that a dead worker wrote too late still holds them."""
    from service.worker.eraser import Eraser

    rewrite(Eraser.delete_erased, ("self._sweeper.sweep(lease, stream, set())", "pass"))


@bug(f"{_ERASING}::test_a_crash_at_any_step_of_erasing_is_made_good[before-replace]")
def erasures_that_are_called_done_before_they_are() -> None:
    """A crash in between leaves the bytes for ever."""
    from service.worker.eraser import Eraser

    rewrite(
        Eraser.delete_erased,
        (
            "    touched = dict[int, Segment]()\n",
            (
                "    touched = dict[int, Segment]()\n"
                "    with self._database.transaction() as connection:\n"
                "        segments.mark_deleted(connection, lease, [erasure for erasure, _, _ in waiting])\n"
            ),
        ),
    )


@bug(f"{_ERASING}::test_the_log_is_asked_to_forget_before_bytes_are_called_deleted")
def a_log_that_remembers_what_was_erased() -> None:
    """The server's own file holds the erased records until it is written anew by itself."""
    from service.worker.eraser import Eraser

    rewrite(Eraser.delete_erased, ("self._forget()", "pass"))


@bug(f"{_ERASING}::test_a_halted_stream_keeps_files_that_nobody_knows")
def files_that_a_halted_stream_sweeps() -> None:
    """If its database is an old one, the only copy of newer records is deleted."""
    from service.worker.eraser import Eraser

    rewrite(Eraser.delete_erased, ("stream.halted is not None and self._sweeper.orphans(stream)", "False"))


@bug(f"{_SHARING}::test_two_workers_that_take_at_once_take_no_stream_twice")
def a_lease_that_two_take_at_once() -> None:
    """The second to come takes what the first has taken just now."""
    from service.store import leases

    rewrite(leases._taking, (".with_for_update(skip_locked=True)", ""))


@bug("tests/worker/test_handover.py::test_who_lost_the_lease_deletes_nothing_that_its_successor_wrote")
def a_sweep_by_rows_that_are_old() -> None:
    """A worker that was overtaken deletes what its successor has numbered."""
    from service.worker.sweeper import Sweeper

    rewrite(
        Sweeper.sweep,
        ("leases.check(connection, lease)", "pass"),
        ("        known = segments.files_of(connection, stream.id)\n", ""),
    )


@bug("tests/worker/test_dropping.py::test_what_the_last_of_several_publications_needs_is_kept")
def records_that_are_dropped_once_the_first_publication_has_read_them() -> None:
    """Another one, which is not as far, misses them."""
    from service.store import retention

    rewrite(retention.drop_unneeded, ("min(needed.values()", "max(needed.values()"))


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


_ALL = "tests/worker/test_sharing.py::test_all_streams_that_a_sealer_holds_are_looked_after"


@bug(f"{_ALL}[erased]")
def erasures_of_the_first_stream_alone() -> None:
    """Bytes of erased records stay on all other streams of a worker, for as long as it holds them."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._tidy, ("in list(self._held.items()):", "in list(self._held.items())[:1]:"))


@bug("tests/worker/test_restored.py::test_files_that_were_put_together_since_are_not_swept")
def a_folder_of_another_time_that_halts_nothing() -> None:
    """A stream goes on beside files that only a newer database names."""
    from service.worker.sweeper import Sweeper

    rewrite(
        Sweeper.sweep,
        ("raise LogLost(", "LogLost("),
        (") from None", ")"),
        ("for orphan in swept:", "for orphan in ():"),
    )
