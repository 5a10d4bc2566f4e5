"""Bugs in a worker: what its publishers and its ticker do in which order, and under which locks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.guarantees.planted.bug import bug, rewrite, wrap

_ERASING = "tests/worker/test_erasing.py"
_PUBLISHING, _TICKS = "tests/worker/test_publishing.py", "tests/worker/test_ticks.py"
_CONFIRMATION = "tests/worker/test_confirmation.py"


@bug(f"{_PUBLISHING}::test_what_a_halted_publication_keeps_is_settled[at once]")
def a_halt_that_settles_nothing() -> None:
    """Others may spend again what a halted publication has charged."""
    from service.ledger import ending

    wrap(ending, "settle", lambda *_: None)


@bug(f"{_PUBLISHING}::test_each_fit_starts_from_the_release_that_its_schedule_names")
def models_that_are_exchanged() -> None:
    """Every fit starts from the oldest release, whichever it names."""
    from service.worker.publication_state import PublicationState

    rewrite(
        PublicationState.chain.fget,
        ("Model(version=version, parameters=self.models[version])", "Model(version=version, parameters=first)"),
        ("    return [\n", "    first = next(iter(self.models.values()), None)\n    return [\n"),
    )


@bug(f"{_CONFIRMATION}::test_a_database_that_lacks_what_the_mark_holds_is_distrusted_before_anything_is_drawn[charges]")
def noise_that_is_drawn_on_an_older_ledger() -> None:
    """The worker notices only when it confirms the step that the ledger is an old one."""
    from service.worker.publisher import Publisher

    rewrite(Publisher._publish_due, ("against is not None", "False"))


@bug("tests/worker/test_labelling.py::test_whose_mechanism_charges_otherwise_than_it_owes_goes_no_further")
def charges_at_another_moment_than_is_owed() -> None:
    """A publication that owes charges at arrival goes on with a mechanism that charges its releases."""
    from service.worker import publisher

    publisher.charges_otherwise = lambda *_: False


@bug(f"{_PUBLISHING}::test_what_was_not_reserved_is_not_published[more]")
def more_than_was_reserved() -> None:
    """Noise and charges follow from a configuration that asks for more than the budget holds for it."""
    from service.worker.publisher import Publisher

    rewrite(
        Publisher._is_consistent,
        ("of_another_guarantee(publication, state.mechanism)", "False"),
        ("not publications.matches_promise(publication)", "False"),
    )


@bug("tests/worker/test_memory.py::test_with_other_noise_than_was_charged_for_no_step_goes_on")
def memory_that_may_be_another() -> None:
    """Noise that later steps take back is not what was added."""
    from service.publishing import commit
    from service.worker import publisher

    publisher.remembers = commit.remembers = lambda *_: True  # type: ignore[assignment]


@bug(f"{_PUBLISHING}::test_a_stopped_publication_commits_nothing_that_was_under_way")
def a_step_that_is_committed_after_a_stop() -> None:
    """Records are charged for a publication whose reservation was given back."""
    from service.worker.publisher import Publisher

    rewrite(Publisher._committed, ('current.state != "running"', "False"))


@bug(f"{_TICKS}::test_a_step_that_follows_on_a_lost_one_is_drawn_anew")
def a_step_that_follows_on_a_lost_one() -> None:
    """The worker publishes a step that was drawn on top of other noise."""
    from service.worker.publisher import Publisher

    rewrite(Publisher._drawn, ("step is not None and known == follows", "step is not None"))
    rewrite(Publisher._committed, ("lineage.stored(connection, current) != state.lineage", "False"))


@bug("tests/worker/test_attempts.py::test_a_thread_takes_nothing_that_another_of_its_process_is_still_at")
def two_threads_at_one_publication() -> None:
    """A thread whose lease ran out is overtaken by another of its own process."""
    from service.worker.dispatcher import Dispatcher

    rewrite(Dispatcher.take, ("self._in_progress.add(step.id)", "pass"))


@bug("tests/worker/test_attempts.py::test_a_note_that_could_not_be_written_is_written_before_the_next_attempt[run out]")
def an_attempt_that_is_forgotten_while_the_database_is_away() -> None:
    """A worker that could not note an unforeseen end of a step draws its noise again."""
    from service.worker.publisher import Publisher

    rewrite(Publisher._record_abandoned_attempt, ("self._context.owed.get(state.publication.promise) == at", "False"))


@bug("tests/worker/test_attempts.py::test_who_was_overtaken_while_it_drew_commits_nothing[at once]")
def a_step_of_a_worker_that_was_overtaken() -> None:
    """Two workers draw noise for the same step, and the faster one is published."""
    from service.ledger import open_entry
    from service.worker import publisher

    publisher.open_entry = open_entry  # type: ignore[attr-defined]
    rewrite(
        publisher.Publisher._committed,
        (
            "open_leased_entry(connection, publication.id, lease, seconds=seconds)",
            "open_entry(connection, publications.get(connection, publication.id))",
        ),
    )


@bug(f"{_TICKS}::test_a_publication_that_is_not_as_it_was_left_is_not_published_at_its_tick")
def a_tick_that_does_not_look_at_the_publication() -> None:
    """A publication whose clock was set back is published at its next tick."""
    from service.publishing import ticks

    rewrite(ticks.publish, ("check(entry)", "pass"))


@bug(f"{_TICKS}::test_a_step_whose_predecessor_has_not_come_waits")
def a_step_that_overtakes_the_one_before() -> None:
    """A parked step is published though the one that it follows on is not."""
    from service.publishing import ticks

    rewrite(ticks.publish, ("(publication.position, publication.version) != (each.position, each.version)", "False"))


@bug("tests/worker/test_audit.py::test_a_publication_that_is_not_as_it_was_left_is_not_added_to")
def a_clock_that_was_set_back() -> None:
    """The same records are fitted, released and charged again."""
    from service.publishing import commit

    rewrite(commit.check, ("not publications.is_untampered(entry.publication)", "False"))


@bug("tests/worker/test_labelling.py::test_a_charge_that_is_changed_is_found_before_a_model_is_published_for_it")
def a_model_whose_records_have_not_paid() -> None:
    """The charge with which they arrived is not looked at."""
    from service.publishing import commit

    rewrite(commit._payments, ('not charges.intact(paid) or (paid["version"], paid["end"]) != (None, last)', "False"))


@bug("tests/worker/test_labelling.py::test_a_window_is_asked_for_waited_for_and_learnt_from")
def labels_that_outlive_their_batch() -> None:
    """The labels that people gave stay in the database."""
    from service.store import labels

    wrap(labels, "forget", lambda *_: None)


@bug("tests/worker/test_restored.py::test_a_mark_that_a_power_cut_may_take_back_is_written_again")
def a_mark_that_a_power_cut_takes_back() -> None:
    """A mark whose folder could not be synced counts as written once it is read again."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer._holds, (" or committed.advances(stream)", ""))


@bug(f"{_CONFIRMATION}::test_a_release_is_seen_only_once_its_mark_is_written")
def a_release_that_is_seen_before_its_mark() -> None:
    """A crash between the two loses what somebody has seen."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer._holds, ("if stored_marks[stream.log] != vars(mark) or committed.advances(stream)", "if False"))
    rewrite(
        Confirmer._confirm,
        (
            "self._show(news)",
            (
                "self._show(news)\n"
                "        for each in news:\n"
                "            high_water_mark.write(self.files, each.stream.log, each.mark)"
            ),
        ),
    )


@bug(f"{_CONFIRMATION}::test_nothing_is_seen_on_a_server_that_may_lose_it")
def a_setting_that_is_looked_at_once() -> None:
    """A server that may lose commits since this morning is believed."""
    from service.publishing.confirmation import Confirmer

    rewrite(Confirmer._committed, ("require_durability(*durability)", "pass"))


@bug(f"{_PUBLISHING}::test_missing_records_are_never_made_up_for")
def a_fit_of_the_records_that_are_there() -> None:
    """A release tells that records had a say in it which had none."""
    from service.segments import locating

    rewrite(
        locating.locate,
        ("position != stop", "False"),
        ("stop=stop", "stop=position"),
    )


@bug(f"{_ERASING}::test_erased_records_contribute_nothing_and_their_bytes_go")
def erased_records_that_are_fitted() -> None:
    """Until their bytes are gone."""
    from service.segments import records

    rewrite(records.load, ("present[low - start : high - start] = False", "pass"))


@bug(f"{_TICKS}::test_a_worker_goes_on_from_what_another_has_parked")
def a_parked_step_without_its_memory() -> None:
    """Noise that later steps take back is lost on the way."""
    from service.publishing import prepared

    rewrite(prepared.packed, ("if number not in known", "if False"))


@bug(f"{_TICKS}::test_a_worker_goes_on_from_what_another_has_parked")
def memory_that_nobody_deletes() -> None:
    """Noise behind which releases hide stays after it was last needed."""
    from service.store import parts

    rewrite(parts.keep, ("if gone := known.difference(left.numbers):", "if gone := set():"))


@bug(f"{_TICKS}::test_the_tick_follows_the_record_that_was_waited_for_not_the_fit")
def a_tick_that_has_passed() -> None:
    """A step whose fit took long appears at the moment at which that ended."""
    from service.store import parked

    def without_now(true: Any, connection: Any, publication: Any, due: int) -> Any:
        tick, due_at = true(connection, publication, due)
        return min(tick, due_at + 2 * timedelta(seconds=float(publication.publish_delay))), due_at

    wrap(parked, "tick_of", without_now)
