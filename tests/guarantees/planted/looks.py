"""Bugs in what a worker does again and again: at later looks, at ticks of several streams, and when it ends."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_LOOKS, _TOGETHER = "tests/worker/test_later_looks.py", "tests/worker/test_ticks_together.py"
_ATTEMPTS = "tests/worker/test_attempts.py"
_EACH = f"{_TOGETHER}::test_each_of_several_streams_is_published_and_confirmed_at_its_tick"
_TIMED = f"{_TOGETHER}::test_what_is_published_at_a_tick_is_timed_as_its_publications[bench0]"
_ENDS = f"{_LOOKS}::test_all_that_a_worker_was_asked_to_confirm_is_confirmed_before_it_ends"


@bug(f"{_EACH}[16-bench0]")
def a_tick_that_confirms_the_first_of_its_streams() -> None:
    """Releases of the other streams are not seen before the audit finds them."""
    from service.worker.ticker import Ticker

    rewrite(Ticker._publish, ("*{each.stream_id for each in done}", "done[0].stream_id"))


@bug(f"{_EACH}[1-bench0]")
def a_tick_of_the_first_streams_alone() -> None:
    """Streams beyond as many as are published together wait, for ever where the first ones are in trouble."""
    from service.worker.ticker import Ticker

    rewrite(Ticker.step, ("due[first : first + MOST_TOGETHER]", "due[:MOST_TOGETHER]"))


@bug(_TIMED)
def times_under_exchanged_names() -> None:
    """What is published at a tick is timed as a publication that has the name of its stream."""
    from service.worker.ticker import Ticker

    rewrite(
        Ticker._tell,
        ("publication.name, streams[publication.stream_id]", "streams[publication.stream_id], publication.name"),
    )


@bug(_TIMED)
def a_fit_before_a_tick_that_nobody_times() -> None:
    """The metric of fits knows those alone that are published at once."""
    from service.worker.ticker import Ticker

    rewrite(Ticker._tell, ("metrics.FIT.labels(*names).observe(took)", "pass"))


@bug(f"{_LOOKS}::test_while_the_mark_can_not_be_written_no_other_step_is_published_at_its_tick[bench0]")
def ticks_whose_releases_nobody_can_confirm() -> None:
    """While the mark can't be written, what is committed unseen grows at each tick."""
    from service.worker.ticker import Ticker

    rewrite(Ticker._is_ready, ("self._confirmer.can_confirm(stream) and ", ""))


@bug(f"{_ATTEMPTS}::test_who_was_overtaken_notes_no_attempt")
def an_attempt_that_an_overtaken_worker_notes() -> None:
    """One unforeseen end of whoever took over halts the publication."""
    from service.worker.publisher import Publisher

    rewrite(Publisher._note, ("leases.check(connection, lease)", "pass"))


@bug(f"{_ATTEMPTS}::test_an_attempt_that_is_noted_late_is_noted_once")
def an_attempt_that_is_noted_twice() -> None:
    """A publication halts after one unforeseen end, since its note was late."""
    from service.worker.publisher import Publisher

    rewrite(Publisher._may_try, ("self._desk.owed.pop(turn.publication.promise, None)", "pass"))


@bug("tests/worker/test_fits.py::test_after_its_second_death_the_publication_halts_and_says_how")
def deaths_under_exchanged_names() -> None:
    """An operator sees no fit of the publication die, and one of a publication that there is not."""
    from service.worker.publisher import Publisher

    rewrite(
        Publisher._drawn,
        ("DEATHS.labels(publication.name, turn.stream.name)", "DEATHS.labels(turn.stream.name, publication.name)"),
    )


@bug(f"{_LOOKS}::test_what_could_not_be_confirmed_at_one_look_is_confirmed_at_the_next")
def a_stream_that_is_looked_at_once() -> None:
    """Where its mark could not be written then, its releases are not seen for a minute after it can."""
    from service.worker.audit import Audit

    rewrite(
        Audit.confirm,
        (
            "unconfirmed.append(stream.id)",
            "unconfirmed.append(stream.id)\n            self._settled[stream.log] = changed[stream.id]",
        ),
    )


@bug(f"{_LOOKS}::test_every_mark_is_looked_at_again_though_its_stream_has_not_changed")
def marks_that_are_looked_at_once() -> None:
    """A mark that is lost beneath a running worker is missed only when its stream goes on."""
    from service.worker.audit import Audit

    rewrite(Audit.confirm, ("time.monotonic() + SECONDS_BETWEEN_FULL_LOOKS", "float('inf')"))


@bug(_ENDS)
def a_worker_that_ends_before_all_is_confirmed() -> None:
    """What it has committed last is not seen until another worker looks."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer.run, ("self._running = False\n    self._confirm_waiting()", "self._running = False"))


@bug(_ENDS)
def a_stream_to_confirm_that_takes_the_place_of_others() -> None:
    """Of the streams that wait to be confirmed only those that came last are."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer.soon, ("self._waiting.update(streams)", "self._waiting = set(streams)"))


@bug(f"{_LOOKS}::test_a_mark_that_can_be_read_and_not_be_written_counts_as_one_that_can_not")
def a_full_disk_that_counts_as_none() -> None:
    """What is committed unseen grows and grows while there is no room for the mark."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer._holds, ("self._fail(stream.id, error)", "pass"))
