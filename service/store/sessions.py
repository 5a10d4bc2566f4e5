"""Sessions of people who signed in with a key in a browser. Only SHA-256 of them is stored, as of keys."""

import secrets
from datetime import timedelta

from sqlalchemy import Connection, delete, func, insert, select

from service.store.database import KEYS_CHANGED, notify
from service.store.keys import COLUMNS, Key, digest, key_of
from service.store.tables import keys, sessions

LASTS = timedelta(hours=12)
MOST = 100  # of one key at the same time; the oldest end first


def begin(connection: Connection, key: int) -> str:
    """Begin a session of this key and return its secret, which is shown this once; delete expired sessions."""
    secret = f"prs_{secrets.token_urlsafe(32)}"
    newest = select(sessions.c.hash).where(sessions.c.key_id == key).order_by(sessions.c.expires_at.desc())
    too_many = newest.offset(MOST - 1).scalar_subquery()
    connection.execute(delete(sessions).where((sessions.c.expires_at < func.now()) | sessions.c.hash.in_(too_many)))
    connection.execute(insert(sessions).values(hash=digest(secret), key_id=key, expires_at=func.now() + LASTS))
    return secret


def find(connection: Connection, secret: str) -> Key | None:
    """The key that somebody signed in with, unless it is revoked or the session is over."""
    lasts = (sessions.c.expires_at > func.now()) & (
        sessions.c.expires_at <= func.now() + LASTS
    )  # no longer, should the clock be set back
    row = connection.execute(
        select(*COLUMNS)
        .join(sessions, sessions.c.key_id == keys.c.id)
        .where(sessions.c.hash == digest(secret), lasts, keys.c.revoked_at.is_(None))
    ).one_or_none()
    return key_of(row) if row else None


def end(connection: Connection, secret: str) -> None:
    """Ends it, everywhere at once."""
    connection.execute(delete(sessions).where(sessions.c.hash == digest(secret)))
    notify(connection, KEYS_CHANGED)
