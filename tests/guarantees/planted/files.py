"""Bugs in the files of numbered records: where they are copied, and who may read them."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_FILES, _OBJECTS = "tests/segments/test_segment_files.py", "tests/segments/objects/test_segment_objects.py"
_COPYING = "tests/segments/objects/test_service.py"
_FURTHER = f"{_COPYING}::test_a_copy_goes_to_no_place_where_the_same_stream_has_come_further"


@bug(f"{_FURTHER}[segment]")
def a_copy_among_segments_of_another_time() -> None:
    """The service goes on with segments of two histories, and sweeps some."""
    from service.segments import copying

    rewrite(copying.copy, ("there - names or ", ""))


@bug(f"{_COPYING}::test_a_copy_that_was_stopped_while_it_wrote_is_made_whole")
def a_copy_that_leaves_half_a_file() -> None:
    """The segment is damaged where the service reads it from now on, and the source may be deleted."""
    from service.segments import copying

    rewrite(copying.copy, ("if name in there and target.get(log, name) != content", "if not content"))


@bug(f"{_COPYING}::test_a_copy_that_was_stopped_while_it_wrote_is_made_whole")
def a_copy_without_marks() -> None:
    """A database that was put back from a backup is believed."""
    from service.segments import copying

    rewrite(copying.copy, ("if mark is not None and", "if mark is None and"))


@bug(f"{_FILES}::test_who_checks_a_file_reads_it_again_though_nobody_has_touched_it")
def a_check_of_what_was_read_before() -> None:
    """`ledger verify` calls a segment whole that the disk has lost bits of since it was read."""
    from service.segments.files import SegmentFiles

    rewrite(SegmentFiles.check, ("self._checked.pop((log, name), None)\n", "pass\n"))


@bug(f"{_OBJECTS}::test_another_machine_reads_what_was_written_and_finds_it_gone")
def copies_that_everybody_may_read() -> None:
    """Other users of the machine read records."""
    from service.segments.objects import SegmentObjects

    rewrite(SegmentObjects._new_copy, ("os.fchmod(file.fileno(), 0o600)", "pass"))


@bug(f"{_OBJECTS}::test_copies_are_swept_again_after_an_error")
def copies_that_stay_after_an_error() -> None:
    """Bytes of erased records stay on a machine where a file could once not be deleted."""
    from service.segments.objects import SegmentObjects

    rewrite(SegmentObjects.sweep_copies, ("suppress(OSError)", "suppress(KeyError)"))


_DUMPS = "tests/test_cli.py::test_a_command_that_reads_records_leaves_no_crash_dumps"


@bug(f"{_DUMPS}[worker]")
def records_in_the_dump_of_a_worker_that_crashed() -> None:
    """Somebody who looks through old files of a machine finds what people have sent."""
    from service import cli

    rewrite(cli.worker, ("leave_no_crash_dumps()", "pass"))
