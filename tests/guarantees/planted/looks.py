"""Bugs in what a worker does again and again: at later looks, for several streams at once, and when it ends."""

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
    """A publication that is published at a tick is timed under the name of its stream."""
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
    """Its last releases are not seen until another worker looks."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer.run, ("self._running = False\n    self._confirm_waiting()", "self._running = False"))


@bug(_ENDS)
def a_stream_to_confirm_that_takes_the_place_of_others() -> None:
    """Streams that waited to be confirmed before are forgotten."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer.soon, ("self._waiting.update(streams)", "self._waiting = set(streams)"))


@bug(f"{_LOOKS}::test_a_mark_that_can_be_read_and_not_be_written_counts_as_one_that_can_not")
def a_full_disk_that_counts_as_none() -> None:
    """While there is no room for the mark, what is committed unseen grows and grows."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer._holds, ("self._fail(stream.id, error)", "pass"))


_SHOWN = f"{_LOOKS}::test_what_is_confirmed_together_is_shown_of_each_publication_and_told"


@bug(_SHOWN)
def the_first_publication_alone_that_is_shown() -> None:
    """The clock of another one on the same stream stays where it was."""
    from service.publishing import confirmation

    rewrite(confirmation._make_visible, ("for unseen in each.unseen]", "for unseen in each.unseen[:1]]"))


@bug(_SHOWN)
def the_first_stream_alone_that_is_shown() -> None:
    """Where several are confirmed together, the others stay as they were."""
    from service.publishing import confirmation

    rewrite(
        confirmation._make_visible,
        ("streams.confirm(connection, confirmed)", "streams.confirm(connection, confirmed[:1])"),
    )


@bug(_SHOWN)
def the_first_stream_alone_whose_readers_are_woken() -> None:
    """Where several are confirmed together, readers of the others wait for nothing."""
    from service.publishing import confirmation

    rewrite(confirmation._make_visible, ("there if each.advances(now)]", "there if each.advances(now)][:1]"))


@bug(f"{_LOOKS}::test_a_locked_stream_is_shown_after_those_that_are_free")
def a_locked_stream_that_is_not_shown() -> None:
    """If another process held its lock while several streams were confirmed, its releases stay unseen."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer._show, ("if each.stream.id not in shown_already:", "if not shown_already:"))


_RUNS = f"{_LOOKS}::test_as_long_as_it_runs_an_audit_confirms_asks_invariants_and_forgets_what_has_ended"


@bug(_RUNS)
def invariants_that_nobody_asks() -> None:
    """Something is not as it must always be, and no bell rings."""
    from service.worker.audit import Audit

    rewrite(Audit.run, ("took = self.ask_invariants()", "took = 0.0"))


@bug(_RUNS)
def times_of_ended_publications_that_stay() -> None:
    """A worker tells ever more metrics, for as long as it lives."""
    from service.worker.audit import Audit

    rewrite(Audit.run, ("self.forget_ended()", "pass"))


@bug(_RUNS)
def an_audit_that_confirms_nothing() -> None:
    """A crash between a commit and its mark leaves releases that nobody ever sees."""
    from service.worker.audit import Audit

    rewrite(Audit.run, ("self.confirm()", "pass"))


@bug(f"{_LOOKS}::test_a_part_of_a_worker_that_fails_begins_again_and_its_error_is_not_told_word_for_word")
def a_part_of_a_worker_that_ends_with_its_first_error() -> None:
    """A worker goes on without it, and publishes or numbers nothing more."""
    from service.worker import main

    rewrite(main._until_stopped, ("while not stop.is_set():", "if not stop.is_set():"))


_COUNTED = "tests/worker/test_due_fits.py::test_metrics_count"


@bug(f"{_COUNTED}_a_publication_as_halted_whose_ledger_is_distrusted")
def a_publication_on_a_distrusted_ledger_that_seems_to_go_on() -> None:
    """No bell rings for it, though it publishes nothing more."""
    from service.ledger import overview

    rewrite(overview.overview, (' or (row.state == "running" and row.distrusted)', ""))


@bug(f"{_COUNTED}_no_record_as_overdue_whose_tick_has_not_come[bench1-0]")
def records_that_are_overdue_before_their_tick() -> None:
    """A bell rings for every publication with a long delay."""
    from service.ledger import overview

    rewrite(overview.overview, (" and row.tick_has_come", ""))


@bug("tests/monitoring/test_state.py::test_each_stream_has_its_own_figures")
def an_older_copy_that_rings_no_bell() -> None:
    """A backup was put in the place of the database, and nobody learns that charges are missing."""
    from service.ledger import high_water_mark

    rewrite(high_water_mark.lost_commits, ("(PROMOTED, REPLACED)", "PROMOTED"))


_ELSEWHERE = "tests/store/test_verify.py::test_what_is_elsewhere_than_it_was_written_is_named"


@bug(f"{_ELSEWHERE}[a batch]")
def records_between_batches_that_nobody_looks_for() -> None:
    """Numbers that no batch has are found only behind the last one."""
    from service.ledger.verify import numbering

    rewrite(numbering.records, ("if start != (position if position is not None else start):", "if False:"))


@bug(f"{_ELSEWHERE}[a publication]")
def charges_of_a_publication_of_another_stream() -> None:
    """A publication that was moved elsewhere leaves its charges, and nobody asks whose they are."""
    from service.ledger.verify import charges

    rewrite(charges.chain, ("rows.of(_ELSEWHERE, tables.charges.c.stream_id, stream.id)", "()"))


@bug("tests/store/test_spending.py::test_each_kind_of_slots_holds_the_whole_budget_by_itself")
def evaluations_that_end_unsettled() -> None:
    """Others may spend again what an evaluation has charged that has ended."""
    from service.ledger import reservations

    rewrite(reservations.settle, ("{each.slots for each in publications}", "(Slots.TRAINING,)"))
