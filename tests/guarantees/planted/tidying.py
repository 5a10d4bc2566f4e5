"""Bugs in a worker's sealer: what it looks after on the streams that it holds, beside their batches."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_ALL = "tests/worker/test_sharing.py::test_all_streams_that_a_sealer_holds_are_looked_after"


@bug(f"{_ALL}[erased]")
def erasures_of_the_first_stream_alone() -> None:
    """Bytes of erased records stay on all other streams of a worker, for as long as it holds them."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._tidy, ("in list(self._held.items()):", "in list(self._held.items())[:1]:"))


@bug(f"{_ALL}[lost]")
def logs_of_which_the_first_alone_is_looked_at() -> None:
    """A log that is gone is found out when its worker ends, and records are taken meanwhile."""
    from service.worker.sealer import Sealer

    rewrite(
        Sealer._tidy,
        ("position_of(self._held[log][1]) for log in due}", "position_of(self._held[log][1]) for log in due[:1]}"),
    )


@bug(f"{_ALL}[unneeded]")
def streams_of_which_the_first_alone_drops_records() -> None:
    """All other streams keep what no publication needs."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._tidy, ("self._held[log][1].id for log in due]", "self._held[log][1].id for log in due[:1]]"))


@bug("tests/worker/test_restored.py::test_files_that_were_put_together_since_are_not_swept")
def a_folder_of_another_time_that_halts_nothing() -> None:
    """A stream goes on beside files that only a newer database names."""
    from service.worker.sealer import Sealer

    rewrite(
        Sealer._sweep,
        (
            'raise LogLost(f"the database is older than the segment folder: {replaced}; no file is deleted") from None',
            "return replaced",
        ),
    )


@bug(
    "tests/worker/test_dropping.py::test_what_blocks_of_evaluation_slots_need_depends_on_where_their_publication_begins"
)
def blocks_that_are_taken_to_begin_with_the_stream() -> None:
    """A stream keeps records of blocks that an evaluation has counted."""
    from service.worker.sealer import Sealer

    rewrite(
        Sealer._drop_unneeded, ("each.configuration, each.start, each.position", "each.configuration, 0, each.position")
    )


@bug("tests/worker/test_sharing.py::test_a_stream_whose_lease_is_lost_is_held_no_more_though_nothing_comes_on_it")
def a_lost_stream_that_counts_in_its_old_sealers_share() -> None:
    """A worker that was overtaken takes no stream in the place of those that it has lost."""
    from service.worker.sealer import Sealer

    rewrite(Sealer._look, (" or not self._keeper.holds(mine)]", "]"))
