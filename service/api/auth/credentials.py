"""Credentials of a request: a key, or the cookie of somebody who signed in with a browser."""

from collections.abc import Callable
from dataclasses import replace

from fastapi import Request
from fastapi.security.utils import get_authorization_scheme_param
from sqlalchemy import Connection

from service.store import keys, sessions
from service.store.keys import Key

SESSION_COOKIE = "perennial_session"  # the cookie of who signed in with a browser
PAGE_HEADER = "x-perennial-page"  # a header that no other site's page can send unasked

Secret = tuple[str, Callable[[Connection, str], Key | None]]
"""The secret that a request carries, and the function that finds its key."""


def session_key(connection: Connection, secret: str) -> Key | None:
    """Return the key of a session, for reading only, whatever else the key may do."""
    key = sessions.find(connection, secret)
    return key and replace(key, scopes=frozenset({"read"}))


def page_session_key(connection: Connection, secret: str) -> Key | None:
    """Return the key of a session whose request comes from our page: it may label, too, if the key has `label`."""
    key = sessions.find(connection, secret)
    return key and replace(key, scopes=frozenset({"read"}) | (key.scopes & {"label"}))


def secret_of(request: Request) -> Secret | None:
    """Return the key that a request carries, else its session's cookie.

    Browsers send the cookie with every request, also one that another site's page makes. So a request that does more
    than read must also have a header that browsers let only pages of this origin send. Leasing a record to label is
    more than reading.
    """
    scheme, secret = get_authorization_scheme_param(request.headers.get("authorization"))
    if secret and scheme.lower() == "bearer":
        return secret, keys.find
    session = request.cookies.get(SESSION_COOKIE)
    if session and PAGE_HEADER in request.headers:
        return session, page_session_key
    return (session, session_key) if session and request.method == "GET" else None
