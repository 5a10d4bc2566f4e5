"""API keys. Only their SHA-256 is stored: a key is 256 random bits, so nothing slower is needed."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.store.database import KEYS_CHANGED, notify
from service.store.tables import keys, sessions


class NameTaken(Exception):
    """The name was used before; names are never used again."""


class LastAdminKey(Exception):
    """It can't be revoked before there is another one."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """The key of a request, and what it may do. `streams` None: every stream."""

    id: int
    name: str
    scopes: frozenset[str]
    streams: frozenset[str] | None
    created_at: datetime
    revoked_at: datetime | None = None


def make(connection: Connection, *, name: str, scopes: list[str], streams: list[str] | None) -> tuple[Key, str]:
    """A new key and its secret, which is shown this once."""
    secret = f"prn_{secrets.token_urlsafe(32)}"
    try:
        row = connection.execute(
            insert(keys)
            .values(name=name, hash=digest(secret), scopes=scopes, streams=streams, origin="api")
            .returning(*COLUMNS)
        ).one()
    except IntegrityError as error:
        raise NameTaken(name) from error
    notify(connection, KEYS_CHANGED)
    return key_of(row), secret


def admit_environment_key(connection: Connection, secret: str) -> bool:
    """PERENNIAL_ADMIN_KEY: made at the first start, replaced when the setting changes, left alone when revoked.

    Whether it is new, and the one before it, if any, is valid no more.
    """
    connection.execute(select(func.pg_advisory_xact_lock(func.hashtext("perennial environment key"))))
    if find(connection, secret) is not None:
        return False  # known already, from the environment or made over HTTP
    row = connection.execute(select(keys.c.id, keys.c.hash).where(keys.c.origin == "environment")).one_or_none()
    if row is None:
        connection.execute(
            insert(keys).values(name="admin", hash=digest(secret), scopes=["admin"], origin="environment")
        )
        return True
    if bytes(row.hash) == digest(secret):
        return False
    connection.execute(update(keys).where(keys.c.id == row.id).values(hash=digest(secret), revoked_at=None))
    connection.execute(delete(sessions).where(sessions.c.key_id == row.id))
    notify(connection, KEYS_CHANGED)
    return True


def find(connection: Connection, secret: str) -> Key | None:
    row = connection.execute(
        select(*COLUMNS).where(keys.c.hash == digest(secret), keys.c.revoked_at.is_(None))
    ).one_or_none()
    return key_of(row) if row else None


def valid_digests(connection: Connection) -> frozenset[bytes]:
    """Return the digests of all keys that are valid, and of the sessions that last."""
    of_keys = select(keys.c.hash).where(keys.c.revoked_at.is_(None))
    of_sessions = select(sessions.c.hash).where(sessions.c.expires_at > func.now())
    return frozenset(map(bytes, connection.scalars(of_keys.union_all(of_sessions))))


def page(connection: Connection, *, limit: int, before: int | None) -> list[Key]:
    query = select(*COLUMNS).order_by(keys.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(keys.c.id < before)
    return [key_of(row) for row in connection.execute(query)]


def revoke(connection: Connection, key: int) -> bool:
    """Whether there is such a key; revoking twice is the same as once.

    Raises:
        LastAdminKey: nobody could manage keys any more.
    """
    connection.execute(select(func.pg_advisory_xact_lock(func.hashtext("perennial admin keys"))))
    admins = connection.execute(
        select(keys.c.id).where(keys.c.revoked_at.is_(None), keys.c.streams.is_(None), keys.c.scopes.any_() == "admin")
    ).scalars()
    if list(admins) == [key]:
        raise LastAdminKey
    done = connection.execute(
        update(keys).where(keys.c.id == key).values(revoked_at=func.coalesce(keys.c.revoked_at, func.now()))
    ).rowcount
    notify(connection, KEYS_CHANGED)
    return bool(done)


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


COLUMNS = (keys.c.id, keys.c.name, keys.c.scopes, keys.c.streams, keys.c.created_at, keys.c.revoked_at)


def key_of(row: object) -> Key:
    values = row._asdict()  # type: ignore[attr-defined]
    streams = values.pop("streams")
    return Key(
        **values | {"scopes": frozenset(values["scopes"])}, streams=None if streams is None else frozenset(streams)
    )
