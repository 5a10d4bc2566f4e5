"""A key that was revoked stays so, somebody can always manage keys, and a session ends alone."""
# ruff: noqa: F811 - a fixture is another file's

import pytest
from sqlalchemy import Connection, func, select, update

from service.store import keys, sessions, tables
from service.store.database import KEYS_CHANGED
from tests.store.test_spending import connection  # noqa: F401


def made(connection: Connection, name: str, scope: str = "admin", streams: list[str] | None = None) -> keys.Key:
    return keys.make(connection, name=name, scopes=[scope], streams=streams)[0]


def test_a_revoked_key_of_the_environment_stays_revoked_until_the_setting_changes(connection: Connection):
    assert keys.admit_environment_key(connection, "first")
    another, secret = keys.make(connection, name="another", scopes=["admin"], streams=None)
    first = keys.find(connection, "first")
    assert first is not None
    assert keys.revoke(connection, first.id)
    assert not keys.admit_environment_key(connection, "first"), "a start with the same setting brings it back"
    assert keys.find(connection, "first") is None
    assert keys.admit_environment_key(connection, "second")
    assert [keys.find(connection, each) for each in ("first", "second", secret)] == [None, first, another]


@pytest.mark.parametrize("other", ["admin of one stream", "reader", "revoked"])
def test_the_last_key_that_may_manage_all_keys_can_not_be_revoked(connection: Connection, other):
    last = made(connection, "last")
    more = {"admin of one stream": ("admin", ["s"]), "reader": ("read",), "revoked": ("admin",)}
    another = made(connection, "other", *more[other])
    if other == "revoked":
        assert keys.revoke(connection, another.id)
    with pytest.raises(keys.LastAdminKey):
        keys.revoke(connection, last.id)
    made(connection, "more")
    assert keys.revoke(connection, last.id)


def test_when_a_key_was_revoked_is_told_as_it_was(connection: Connection):
    made(connection, "last")
    key = made(connection, "key")
    assert keys.revoke(connection, key.id)
    long_ago = func.now() - func.make_interval(0, 0, 0, 1)
    connection.execute(update(tables.keys).where(tables.keys.c.id == key.id).values(revoked_at=long_ago))
    (before,) = connection.execute(select(tables.keys.c.revoked_at).where(tables.keys.c.id == key.id)).scalars()
    assert keys.revoke(connection, key.id)
    assert [each.revoked_at for each in keys.page(connection, limit=9, before=None)] == [before, None]


def test_all_processes_hear_of_a_key_that_is_revoked_or_replaced_and_of_a_session_that_ends(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
):
    heard: list[str] = []
    for module in (keys, sessions):
        monkeypatch.setattr(module, "notify", lambda _, channel: heard.append(channel))
    keys.admit_environment_key(connection, "first")
    key = made(connection, "key")
    heard.clear()
    assert keys.revoke(connection, key.id)
    assert heard == [KEYS_CHANGED]
    keys.admit_environment_key(connection, "second")
    assert heard == [KEYS_CHANGED] * 2
    sessions.end(connection, sessions.begin(connection, key.id))
    assert heard == [KEYS_CHANGED] * 3


def test_a_session_ends_no_other(connection: Connection, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "MOST", 2)
    one, other = made(connection, "one"), made(connection, "other")
    begun = [sessions.begin(connection, each.id) for each in (one, one, other, other)]
    assert [sessions.find(connection, each) for each in begun] == [one, one, other, other]
    sessions.end(connection, begun[0])
    assert [sessions.find(connection, each) for each in begun] == [None, one, other, other]
    connection.execute(
        update(tables.sessions)
        .where(tables.sessions.c.key_id == other.id)
        .values(expires_at=func.now() - func.make_interval(0, 0, 0, 1))
    )
    sessions.begin(connection, one.id)
    assert connection.execute(select(tables.sessions.c.key_id)).scalars().all() == [one.id, one.id]
