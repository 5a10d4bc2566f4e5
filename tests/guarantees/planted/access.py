"""Bugs in who may call: keys and sessions."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_SESSIONS = "tests/api/test_sessions.py"
_ACCESS = "tests/api/test_access.py"


@bug("tests/api/test_access.py::test_of_two_last_admin_keys_that_revoke_each_other_one_stays")
def two_last_admin_keys_that_revoke_each_other() -> None:
    """Nobody can manage keys any more."""
    from service.store import keys

    rewrite(
        keys.revoke,
        ('connection.execute(select(func.pg_advisory_xact_lock(func.hashtext("perennial admin keys"))))', "pass"),
    )


@bug(f"{_ACCESS}::test_a_key_is_shown_once_and_a_revoked_one_is_dead_at_once")
def a_key_that_is_revoked_and_found() -> None:
    """A key that leaked can't be taken back."""
    from service.store import keys

    rewrite(keys.find, (", keys.c.revoked_at.is_(None)", ""))


@bug(f"{_ACCESS}::test_only_hashes_of_keys_are_stored_and_looked_for")
def keys_that_are_stored_as_they_are() -> None:
    """A reader of a backup has every key."""
    from service.store import keys

    rewrite(keys.digest, ("hashlib.sha256(secret.encode()).digest()", "secret.encode()"))


@bug(f"{_SESSIONS}::test_its_secret_stands_for_its_key_until_its_time_is_over")
def a_session_without_end() -> None:
    """A cookie that somebody kept is good for ever."""
    from service.store import sessions

    rewrite(sessions.find, (" == digest(secret), lasts,", " == digest(secret),"))


@bug(f"{_SESSIONS}::test_it_ends_with_its_key_and_in_time")
def a_session_that_outlives_its_key() -> None:
    """A person who signed in with a key that was then revoked looks on."""
    from service.store import sessions

    rewrite(sessions.find, (", keys.c.revoked_at.is_(None)", ""))


_TURN = "tests/api/test_revoked_while_waiting.py"


@bug(f"{_TURN}::test_queries_whose_turn_comes_later_are_not_answered")
def a_revoked_key_that_is_answered_when_its_turn_comes() -> None:
    """A request that waits for others' queries outlives its key."""
    from service.api.routes import queries

    rewrite(queries.answer_queries, ("await shared.keys.check_again(request)", "pass"))


@bug("tests/api/test_newer_models.py::test_publications_of_one_name_are_looked_at_apart")
def one_search_for_all_who_follow_one_name() -> None:
    """A reader who follows a publication is sent the models of another stream."""
    from service.api.newer_models import NewerModels

    rewrite(NewerModels.wait, ("(identity, after)", "(publication, after)"))


@bug("tests/api/test_transfer.py::test_a_release_that_is_not_there_or_may_not_be_seen_is_refused")
def a_publication_that_begins_at_a_release_that_its_key_may_not_see() -> None:
    """A limited key reads others' weights in the settings of its own publication."""
    from service.api.routes import publications

    rewrite(publications._release, ("visible=key.streams", "visible=None"))


@bug("tests/api/test_publish_delay.py::test_a_plan_tells_a_limited_key_nothing_of_the_fits_of_others")
def a_plan_that_tells_of_the_fits_of_others() -> None:
    """A limited key learns how large the publications of all streams are."""
    from service.api.routes import publications

    rewrite(publications.make_plan, ("key.streams)", "None)"))


@bug("tests/api/test_large_bodies.py::test_pseudonyms_of_units_and_the_fingerprint_are_those_of_small_batches")
def fingerprints_against_which_ids_can_be_tested() -> None:
    """A reader of the log guesses ids by the hash of a body that is remembered with its key."""
    from service.api.routes import records

    rewrite(records.read_batch, ("batches.fingerprint(body, secret)", "batches.fingerprint(body, None)"))


_NOTICES = (
    "tests/api/test_notifier.py::"
    "test_a_release_wakes_those_who_wait_for_it_and_whoever_listens_anew_looks_at_everything_again"
)


@bug(_NOTICES)
def a_key_that_was_revoked_while_nobody_listened() -> None:
    """Its notification is lost, and nobody looks at the key again."""
    from service.api.notifier import Notifier

    rewrite(Notifier._wake_all, ("self._keys_changed()", "pass"))


@bug("tests/api/test_events.py::test_nothing_is_sent_while_nobody_can_tell_whether_the_key_holds")
def models_that_are_sent_while_nobody_can_tell_whether_a_key_holds() -> None:
    """A revoked key follows on while the database is away."""
    from service.api.routes import events

    rewrite(events._events, ("new = []", "pass"))


_LOOKS = "tests/api/test_audit_log.py::test_each_look_at_a_record_leaves_a_line_and_so_does_each_label"


@bug(_LOOKS)
def a_look_at_a_record_that_leaves_no_line() -> None:
    """Nobody can tell later which person saw a record."""
    from service.api.routes import labels

    rewrite(
        labels.next_label_request,
        ('_log.info("label_asked_for", publication=publication, record=leased.record, key=key.id)', "pass"),
    )


_KEYS = "tests/store/test_keys.py"
_ENVIRONMENT = f"{_KEYS}::test_a_revoked_key_of_the_environment_stays_revoked_until_the_setting_changes"
_HEARD = f"{_KEYS}::test_all_processes_hear_of_a_key_that_is_revoked_or_replaced_and_of_a_session_that_ends"


@bug(_ENVIRONMENT)
def a_revoked_key_that_the_next_start_brings_back() -> None:
    """A thief of the key of the environment is let in again."""
    from service.store import keys

    rewrite(keys.admit_environment_key, ("if bytes(row.hash) == digest(secret):", "if False:"))


@bug(_HEARD)
def a_revocation_that_no_other_process_hears_of() -> None:
    """Requests of a revoked key that wait or follow are answered on."""
    from service.store import keys

    rewrite(keys.revoke, ("notify(connection, KEYS_CHANGED)", "pass"))


@bug(f"{_SESSIONS}::test_signing_out_ends_it_where_it_is_remembered_and_no_notification_comes")
def a_session_that_goes_on_after_its_end_until_a_notification_comes() -> None:
    """Somebody signs out, and the next person at the browser looks on."""
    from service.api.routes import sessions

    rewrite(sessions.sign_out, ("shared.keys.look_again()", "pass"))
