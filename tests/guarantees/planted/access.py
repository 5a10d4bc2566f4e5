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

    rewrite(sessions.find, ("sessions.c.expires_at > func.now(), ", ""))


@bug(f"{_SESSIONS}::test_it_ends_with_its_key_and_in_time")
def a_session_that_outlives_its_key() -> None:
    """A person who signed in with a key that was then revoked looks on."""
    from service.store import sessions

    rewrite(sessions.find, (", keys.c.revoked_at.is_(None)", ""))


@bug(f"{_SESSIONS}::test_it_ends_when_the_environments_key_is_replaced")
def a_session_that_outlives_the_environments_key() -> None:
    """The key in the settings was replaced because it leaked, and who signed in with it looks on."""
    from service.store import keys

    rewrite(
        keys.admit_environment_key,
        ("connection.execute(delete(sessions).where(sessions.c.key_id == row.id))", "pass"),
    )
