"""Bugs in what is written down: by the record, the log, a worker and who answers queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.guarantees.planted.bug import bug, rewrite, wrap

_HISTORIES = "tests/faults/test_simulator.py::test_random_histories_keep_every_promise"


@bug("tests/worker/test_publishing.py::test_what_would_pass_the_cap_halts_the_publication_and_is_not_published")
def a_cap_that_nobody_checks() -> None:
    """Charges are added up, and that is all."""
    from service.ledger import charging

    wrap(
        charging,
        "charge",
        lambda true, connection, stream, publication, _most, *new: true(connection, stream, publication, 9, *new),
    )


@bug(_HISTORIES)
def the_position_is_committed_after_the_segment() -> None:
    """A crash between the two numbers the same batches again."""
    from sqlalchemy import update

    from service.store import numbering, tables
    from service.worker.merger import Merger
    from service.worker.sealer import Sealer

    later: dict[tuple[int, int], dict[str, Any]] = {}
    moved: dict[str, Any] = {}

    def move(connection: Any, stream: int, **position: Any) -> None:
        connection.execute(update(tables.streams).where(tables.streams.c.id == stream).values(**position))

    def seal(true: Any, connection: Any, lease: Any, stream: Any, segment: Any, sealed: Any, *rest: Any) -> None:
        true(connection, lease, stream, segment, sealed, *rest)
        move(connection, stream.id, sealed_entry=stream.sealed_entry, sealed_sequence=stream.sealed_sequence)
        later[stream.id, lease.epoch] = {"sealed_entry": sealed[-1].entry, "sealed_sequence": sealed[-1].sequence}

    def merge(true: Any, merger: Any, lease: Any, stream: Any, newest: Any) -> None:
        if position := later.pop((stream.id, lease.epoch), None):
            with merger._database.transaction() as connection:
                move(connection, stream.id, **position)
            moved[stream.log] = lease, replace(stream, **position)
        true(merger, lease, stream, newest)

    def seal_one(true: Any, sealer: Any, log: str) -> None:
        true(sealer, log)
        if log in moved:
            sealer._held[log] = moved.pop(log)

    wrap(numbering, "seal", seal)
    wrap(Merger, "merge", merge)
    wrap(Sealer, "_seal", seal_one)


@bug(_HISTORIES)
def the_charge_is_committed_before_the_release() -> None:
    """A crash between the two has charged records for a model that there is not."""
    from service.ledger import charging

    def append(true: Any, connection: Any, *rest: Any) -> Any:
        charged = true(connection, *rest)
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("BEGIN")
        return charged

    wrap(charging, "append", append)


@bug(_HISTORIES)
def what_was_answered_is_not_remembered() -> None:
    """A batch that is sent again, because its answer got lost, is stored again."""
    import hashlib

    from service.log import appender

    step = "if remembered then\n  redis.call('HSET', remembered"
    assert appender._APPEND.count(step) == 1
    appender._APPEND = appender._APPEND.replace(step, step.replace("if remembered", "if false"))
    appender._APPEND_SHA = hashlib.sha1(appender._APPEND.encode(), usedforsecurity=False).hexdigest()


@bug("tests/queries/test_closed_thresholds.py::test_a_commit_whose_answer_is_lost_is_found_to_be_done")
def a_second_yes_from_one_threshold() -> None:
    """A yes that is kept is measured and told once more, after its instance was closed."""
    from service.queries import instances

    instances.is_same = lambda _one, _other: True


_RESTORED = "tests/queries/test_restored.py"


@bug(f"{_RESTORED}::test_a_yes_whose_commit_a_standby_lacks_is_committed_there_again[not seen since]")
def a_yes_that_is_forgotten_at_its_commit() -> None:
    """A standby that lacks the commit is promoted: the threshold that has answered is compared with again."""
    from service.queries.answering import Answerer

    def close(true: Any, answerer: Any, held: Any) -> bool:
        closed: bool = true(answerer, held)
        if closed:
            held.closing = None
        return closed

    wrap(Answerer, "_close", close)


@bug(f"{_RESTORED}::test_a_restored_threshold_that_another_process_has_closed_is_not_compared_with")
def a_mark_that_is_read_once() -> None:
    """A backup is put in the place of the database: it shows the publication as a process knows it."""
    from types import SimpleNamespace

    from service.queries import instances

    def still(true: Any, connection: Any, _files: Any, known: Any, *rest: Any, **more: Any) -> Any:
        return true(connection, SimpleNamespace(high_water_mark=lambda _log: known.mark), known, *rest, **more)

    wrap(instances, "still", still)


@bug(f"{_RESTORED}::test_an_answer_whose_charge_was_lost_is_not_told")
def an_answer_that_is_told_by_its_version() -> None:
    """The version is visible, with what another process measured: nobody has paid for this answer."""
    from service.queries.instances import State

    State.shows = lambda state, closing: closing.version == state.publication.visible_latest  # type: ignore[method-assign]


_EMPTY = "tests/worker/test_empty_slots.py"
_LIKE_UNLABELLED = f"{_EMPTY}::test_a_slot_without_bytes_is_waited_for_and_counted_like_one_that_nobody_labels"


@bug(f"{_LIKE_UNLABELLED}[while it is asked for]")
def requests_that_an_erasure_deletes() -> None:
    """The batch is learnt from as soon as the others are answered: counts and time tell that the slot was selected."""
    from sqlalchemy import delete

    from service.store import labels
    from service.store.tables import label_requests as requests

    def withdraw(_: Any, connection: Any, whose: Any, ranges: Any) -> None:
        for start, stop in ranges:
            connection.execute(delete(requests).where(whose, requests.c.record >= start, requests.c.record < stop))

    wrap(labels, "_set_aside", withdraw)


@bug(f"{_LIKE_UNLABELLED}[after its answer]")
def an_erased_record_that_stays_answered() -> None:
    """Its label is deleted, and nobody waits for it any more: counts and time tell that it had been labelled."""
    from sqlalchemy import update

    from service.store import labels
    from service.store.tables import label_requests as requests

    def expire(true: Any, connection: Any, whose: Any, ranges: Any) -> None:
        answered = whose & requests.c.label.isnot(None)
        connection.execute(update(requests).where(answered).values(expires_at="-infinity"))
        true(connection, whose, ranges)

    wrap(labels, "_set_aside", expire)


@bug(f"{_LIKE_UNLABELLED}[it came empty]")
def a_slot_that_came_empty_and_is_handed_out() -> None:
    """A step that names none: whoever labels is shown what is not finite."""
    from service.mechanisms.active_learning.mechanism import ActiveLearning

    def step(true: Any, *args: Any) -> Any:
        return replace(true(*args), empty=())

    wrap(ActiveLearning, "step", step)


@bug(f"{_EMPTY}::test_no_answer_survives_an_erasure_at_the_same_time[answer]")
def an_erasure_that_undoes_only_answers_it_sees() -> None:
    """It passes by a row that is being answered at this moment."""
    from sqlalchemy import select

    from service.store import labels
    from service.store.tables import label_requests as requests

    def seen(true: Any, connection: Any, whose: Any, ranges: Any) -> None:
        records = connection.execute(select(requests.c.record).where(whose, requests.c.label.isnot(None))).scalars()
        true(connection, whose, [(record, record + 1) for record in records.all()])

    wrap(labels, "_set_aside", seen)


@bug(
    "tests/queries/test_closed_thresholds.py::test_of_two_processes_one_compares_and_the_other_answers_from_the_histogram"
)
def a_threshold_that_is_compared_with_after_its_yes() -> None:
    """No lease, no look within the turn, and a yes that can't be committed is answered as a no: after a transaction."""
    import math
    from dataclasses import replace

    from sqlalchemy import text

    from service.queries import instances
    from service.queries.answering import Answerer

    tried: set[int] = set()

    def look(true: Any, answerer: Any, held: Any) -> None:
        if held.state is None or held.state.open is None:
            true(answerer, held)

    def ready(_true: Any, answerer: Any, held: Any) -> bool:
        state, closing, held.closing, held.until = held.seen(), held.closing, None, math.inf
        if closing is not None and held.lease is not None and held.identity not in tried:
            tried.add(held.identity)
            instances.close(answerer._database, answerer._files, held.lease, state, closing)
        elif closing is not None:
            with answerer._database.transaction() as connection:
                connection.execute(text("SELECT 1"))  # another was first
        answerer._count(held)
        return state.open is not None

    def compare(true: Any, answerer: Any, held: Any, query: Any) -> Any:
        answer, comparing = true(answerer, held, query)
        return replace(answer, measured=comparing), comparing

    wrap(Answerer, "_look", look)
    wrap(Answerer, "_ready", ready)
    wrap(Answerer, "_compare", compare)


@bug("tests/worker/test_restored.py::test_files_that_were_put_together_since_are_not_swept")
def a_sweep_on_an_older_database() -> None:
    """Files that were put together since are deleted, since no row names them: their records are lost for ever."""
    from service.segments.files import SegmentFiles

    def sweep(_: Any, self: Any, log: str, known: set[str]) -> list[str]:
        orphans = self.orphans(log, known)
        for name in orphans:
            self.delete(log, name)
        return orphans

    wrap(SegmentFiles, "sweep", sweep)


_OTHERS = "tests/store/test_ending.py"
_ENDING = f"{_OTHERS}::test_what_another_publication_remembers_stays"


@bug(_ENDING)
def an_end_that_drops_what_others_have_drawn() -> None:
    """Steps of all publications that wait for their tick go with the first that ends, and are drawn again."""
    from service.store import parked

    rewrite(parked.drop, (".where(parked.c.publication_id == publication)", ""))


@bug(_ENDING)
def labels_that_count_for_every_publication() -> None:
    """A record of one stream is learnt with the label of another stream's."""
    from service.store import labels

    rewrite(labels.answers, ("label_requests.c.publication_id == publication,", ""))


@bug(_ENDING)
def attempts_of_another_publication() -> None:
    """A step is drawn again and again after unforeseen ends, if other publications end between."""
    from service.store import attempts

    rewrite(attempts.forget, (".where(attempts.c.publication_id == publication)", ""))


@bug(_ENDING)
def erasures_that_count_on_every_stream() -> None:
    """Records that nobody has erased contribute nothing, since another stream's of these numbers were erased."""
    from sqlalchemy import text

    from service.store import segments

    query = str(segments._ERASED)
    segments._ERASED = text(query.replace("stream_id = :stream AND ", "", 1))
    assert str(segments._ERASED) != query


@bug(f"{_OTHERS}::test_at_a_tick_each_ledger_has_the_steps_of_its_own_stream")
def a_tick_that_charges_another_streams_ledger() -> None:
    """Where several streams have the same tick, all steps are published by the ledger of each."""
    from service.publishing import ticks

    rewrite(ticks.open_ticks, ("[each for each in waiting if each.stream_id == ledger.stream.id]", "waiting"))


@bug(f"{_OTHERS}::test_what_becomes_of_a_stream_changes_no_other")
def a_resumed_stream_that_moves_all() -> None:
    """An operator who resumes one stream moves the place from which all streams are read."""
    from service.store import numbering

    rewrite(numbering.resume, (".where(streams.c.id == stream.id)", ""))
