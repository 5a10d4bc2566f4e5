"""Bugs in what is written down: by the record, the log, a worker and who answers queries."""

from __future__ import annotations

from typing import Any

from tests.guarantees.planted.bug import bug, wrap

_HISTORIES = "tests/faults/test_simulator.py::test_random_histories_keep_every_promise"


@bug("tests/worker/test_publishing.py::test_what_would_pass_the_cap_halts_the_publication_and_is_not_published")
def a_cap_that_nobody_checks() -> None:
    """Charges are added up, and that is all."""
    from service.store import ledger

    wrap(
        ledger,
        "charge",
        lambda true, connection, stream, publication, _most, new: true(connection, stream, publication, 9, new),
    )


@bug(_HISTORIES)
def the_position_is_committed_after_the_segment() -> None:
    """A crash between the two numbers the same batches again."""
    from sqlalchemy import update

    from service.store import streams, tables
    from service.worker.sealer import Sealer

    later: dict[tuple[int, int], dict[str, Any]] = {}

    def move(connection: Any, stream: int, **position: Any) -> None:
        connection.execute(update(tables.streams).where(tables.streams.c.id == stream).values(**position))

    def seal(true: Any, connection: Any, lease: Any, stream: Any, segment: Any, sealed: Any) -> None:
        true(connection, lease, stream, segment, sealed)
        move(connection, stream.id, sealed_entry=stream.sealed_entry, sealed_sequence=stream.sealed_sequence)
        later[stream.id, lease.epoch] = {"sealed_entry": sealed[-1].entry, "sealed_sequence": sealed[-1].sequence}

    def again(true: Any, sealer: Any, stream: Any) -> Any:
        held = sealer._held.get(stream.log)
        if held is not None and (position := later.pop((stream.id, held[0].epoch), None)):
            with sealer._database.transaction() as connection:
                move(connection, stream.id, **position)
        return true(sealer, stream)

    wrap(streams, "seal", seal)
    wrap(Sealer, "_again", again)


@bug(_HISTORIES)
def the_charge_is_committed_before_the_release() -> None:
    """A crash between the two has charged records for a model that there is not."""
    from service.store import ledger

    def append(true: Any, connection: Any, *rest: Any) -> Any:
        charged = true(connection, *rest)
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("BEGIN")
        return charged

    wrap(ledger, "append", append)


@bug(_HISTORIES)
def what_was_answered_is_not_remembered() -> None:
    """A batch that is sent again, because its answer got lost, is stored again."""
    import hashlib

    from service.log import appender

    step = "if body ~= '' then\n  redis.call('HSET', remembered"
    assert appender._APPEND.count(step) == 1
    appender._APPEND = appender._APPEND.replace(step, step.replace("body ~= ''", "false"))
    appender._APPEND_SHA = hashlib.sha1(appender._APPEND.encode(), usedforsecurity=False).hexdigest()


@bug("tests/publishing/test_answering.py::test_of_two_processes_the_first_measures_and_the_other_says_nothing_of_it")
def a_second_yes_from_one_threshold() -> None:
    """Of two processes that found a query hard with one threshold, both measure and tell."""
    from service.publishing import answering

    answering._is = lambda latest, now: True
