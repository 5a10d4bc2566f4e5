"""Bugs in what is seen, and when: ticks, confirmation, attempts, and what PostgreSQL keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.guarantees.planted.bug import bug, rewrite, wrap

_TICKS, _CONFIRMATION = "tests/worker/test_ticks.py", "tests/worker/test_confirmation.py"
_ATTEMPTS, _DURABILITY = "tests/worker/test_attempts.py", "tests/store/test_durability.py"
_DURABLY = f"{_DURABILITY}::test_every_transaction_that_writes_commits_durably_whatever_is_configured"


@bug(f"{_TICKS}::test_at_its_tick_a_step_appears_whole_and_tells_that_time")
def a_tick_that_follows_the_fit() -> None:
    """A release appears as soon as its fit is ready, and its time tells how long that took."""
    from sqlalchemy import func, select

    from service.store import parked

    def now(_: Any, connection: Any, *_rest: Any) -> Any:
        return connection.execute(select(func.clock_timestamp())).scalar_one(), None

    wrap(parked, "tick_of", now)


@bug(f"{_TICKS}::test_at_its_tick_a_step_appears_whole_and_tells_that_time")
def a_release_that_tells_when_it_was_committed() -> None:
    """The moment within the tick depends on what else the worker does."""
    from service.publishing import ticks

    wrap(
        ticks,
        "commit",
        lambda true, entry, step, _at: true(entry, step),
    )


@bug(f"{_TICKS}::test_a_worker_goes_on_from_what_another_has_parked")
def a_worker_that_forgets_what_is_parked() -> None:
    """It draws the same steps again, with other noise."""
    from service.worker.publication_state import PublicationState

    rewrite(PublicationState.begin.__func__, ("for waiting in chain:", "for waiting in ():"))  # type: ignore[attr-defined]


@bug(f"{_TICKS}::test_a_stop_before_the_tick_drops_what_waits_uncharged")
def a_stop_that_leaves_what_waits() -> None:
    """The parked step stays, as secret as records, and could still be charged."""
    from service.store import parked

    wrap(parked, "drop", lambda *_: None)


@bug(f"{_TICKS}::test_nothing_parked_is_published_on_an_older_ledger")
def a_tick_that_does_not_look_at_the_mark() -> None:
    """A ledger from a backup goes on where it stood."""
    from service.ledger import high_water_mark

    wrap(high_water_mark, "check_each", lambda *_: None)


@bug(f"{_CONFIRMATION}::test_what_the_mark_does_not_hold_nobody_sees")
def releases_that_are_seen_before_they_are_confirmed() -> None:
    """A commit that PostgreSQL forgets afterwards is published again, with other noise."""
    from sqlalchemy import true as always

    from service.store import releases

    releases.is_visible = always  # type: ignore[assignment]


@bug(f"{_CONFIRMATION}::test_what_the_mark_does_not_hold_nobody_sees")
def sums_of_what_is_not_confirmed() -> None:
    """The sum of spent budgets shows a charge that PostgreSQL may still forget."""
    from service.ledger import charged_rows

    wrap(charged_rows, "unconfirmed", lambda *_: [])


@bug(f"{_CONFIRMATION}::test_what_is_confirmed_late_with_an_older_state_takes_nothing_back")
def a_clock_that_goes_back() -> None:
    """A late confirmer shows an older position."""
    from sqlalchemy import bindparam, update

    from service.store import visible_positions

    columns = {name: bindparam(f"new_{name}") for name in visible_positions.PendingVisibility._fields[2:]}
    mine = visible_positions.shown.c.publication_id == bindparam("new_publication_id")
    visible_positions._SHOW = update(visible_positions.shown).where(mine).values(columns)


@bug(f"{_CONFIRMATION}::test_another_history_of_the_same_length_is_told_apart_by_its_hashes")
def a_mark_that_is_compared_by_numbers() -> None:
    """An old primary holds another charge of the same number."""
    from service.ledger import high_water_mark

    wrap(high_water_mark, "_other", lambda *_: {})


@bug(f"{_CONFIRMATION}::test_a_server_that_holds_another_history_than_the_one_read_makes_nothing_visible")
def what_is_confirmed_on_another_server_than_it_was_read_from() -> None:
    """A failover between the two makes visible what the mark does not hold."""
    from service.ledger import high_water_mark

    wrap(high_water_mark, "hold", lambda _true, _connection, known: set(known))


@bug(f"{_ATTEMPTS}::test_after_a_second_one_at_the_same_step_it_halts")
def attempts_without_end() -> None:
    """Noise is drawn again after each unforeseen end: whoever can cause them chooses among results."""
    from service.store import attempts

    wrap(attempts, "note", lambda *_: False)


@bug(f"{_ATTEMPTS}::test_who_takes_over_from_one_that_was_killed_notes_that")
def a_kill_that_nobody_notes() -> None:
    """SIGKILL, or out of memory, is as good as an error to whoever can cause it."""
    from service.worker.leases import LeaseKeeper

    def take(true: Any, keeper: Any, resource: str, **named: Any) -> Any:
        lease = true(keeper, resource, **named)
        return lease and replace(lease, abandoned=None)

    wrap(LeaseKeeper, "take", take)


@bug(f"{_ATTEMPTS}::test_a_result_whose_commit_failed_is_committed_again_with_the_same_bytes")
def a_result_that_is_drawn_again_because_its_commit_failed() -> None:
    """A database that is away chooses among results."""

    from service.worker.context import WorkerContext

    class Forgetful(dict[int, Any]):
        def get(self, *_: Any) -> Any:
            return None, None

    def forget(true: Any, context: Any, *given: Any) -> None:
        true(context, *given)
        context.drawn = Forgetful()

    wrap(WorkerContext, "__init__", forget)


@bug(f"{_DURABLY}[off-by_sqlalchemy]")
def commits_as_durable_as_the_server_likes() -> None:
    """With `synchronous_commit = off` a crash forgets what was seen."""
    from service.store import database

    wrap(database, "_written_durably", lambda *_: None)


@bug(f"{_DURABILITY}::test_a_server_that_may_lose_commits_is_refused[fsync]")
def a_server_that_keeps_nothing() -> None:
    """With `fsync = off` a crash of the machine forgets what was seen."""
    from service.store import database

    wrap(database, "require_durability", lambda *_: None)


@bug("tests/worker/test_newest.py::test_a_step_that_is_being_parked_makes_the_look_hold_for_nobody_else")
def a_look_that_does_not_ask_for_the_streams_lock() -> None:
    """A step whose tick is chosen and not yet seen appears while readers still get the version before it."""
    from service.store import newest

    rewrite(newest.look, ("not locked or ", ""))


@bug("tests/api/test_linearizable.py::test_no_answer_is_older_than_its_question_and_no_key_outlives_its_time")
def a_look_that_holds_though_a_release_is_not_confirmed_yet() -> None:
    """It becomes visible before the next tick."""
    from service.store import newest

    rewrite(newest.look, ("row.unsettled or ", ""))


@bug("tests/api/test_known_keys.py::test_its_time_begins_when_it_is_asked_for")
def a_key_that_is_remembered_for_ever() -> None:
    """A reader who was let in once reads for as long as this process runs."""
    from service.api.auth.known_keys import KnownKeys

    rewrite(KnownKeys.remembered, (" and cached[1] > time.monotonic()", ""))


@bug("tests/api/test_known_keys.py::test_a_key_that_is_revoked_between_a_look_and_its_answer_is_looked_at_again")
def a_look_that_outlives_a_revocation() -> None:
    """A reader whose key was revoked while it was looked up is let in afterwards."""
    from service.api.auth.known_keys import KnownKeys

    rewrite(KnownKeys.find, ("is_current = self._changes == changes", "is_current = True"))


@bug(
    "tests/api/test_direct_routes.py::test_each_request_counts_for_the_rate_of_its_key_and_none_is_answered_on_the_port"
    "_for_prometheus[/v1/publications/{publication}/releases/latest]"
)
def releases_on_the_port_for_prometheus() -> None:
    """Everybody who can reach that port tries keys, and reads models, there."""
    from service.api.routes.metrics import MetricsPort

    rewrite(MetricsPort.__call__, ('scope["server"][1] != self._port', 'scope["path"] != "/metrics"'))


@bug("tests/api/test_direct_routes.py::test_what_the_log_refuses_is_sent_to_it_once[error3-503-log-unavailable]")
def appending_again_what_the_log_did_not_answer() -> None:
    """A batch whose answer was lost is stored twice."""
    from service.api.routes import records

    once = "body = orjson.dumps(await _append(shared, stream, batch, scope))"
    rewrite(records.post_records, (once, f"try:\n            {once}\n        except Exception:\n            {once}"))


@bug("tests/worker/test_confirmation.py::test_what_is_committed_while_a_stream_is_confirmed_is_not_seen_with_it")
def a_clock_that_is_further_than_its_mark() -> None:
    """The mark and what is shown beside it are read one after the other, and a step is committed in between."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer._committed, ("(ONE_VIEW, {}), ", ""))


@bug(f"{_CONFIRMATION}::test_what_is_committed_while_the_ledger_is_read_takes_nothing_off")
def a_ledger_that_is_read_at_two_moments() -> None:
    """A charge that is committed in between is taken off figures that do not hold it."""
    from service.api.routes import ledger

    rewrite(ledger.get_ledger, ("connection.execute(ONE_VIEW)", "pass"))
