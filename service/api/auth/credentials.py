"""What a request shows to be let in: a key, or the cookie of somebody who signed in with a browser."""

from collections.abc import Callable
from dataclasses import replace

from fastapi import Request
from fastapi.security.utils import get_authorization_scheme_param
from sqlalchemy import Connection

from service.store import keys, sessions
from service.store.keys import Key

SESSION = "perennial_session"  # the cookie of who signed in with a browser
OF_OUR_PAGES = "x-perennial-page"  # a header that no other site's page can send unasked

Secret = tuple[str, Callable[[Connection, str], Key | None]]
"""What somebody shows to be let in, and how the key that it stands for is found."""


def looking(connection: Connection, secret: str) -> Key | None:
    """The key of a session that asks for something by itself, which may look, whatever the key may do."""
    key = sessions.find(connection, secret)
    return key and replace(key, scopes=frozenset({"read"}))


def of_our_page(connection: Connection, secret: str) -> Key | None:
    """The key of a session whose page asks: it may label, too, where the key says so in as many words."""
    key = sessions.find(connection, secret)
    return key and replace(key, scopes=frozenset({"read"}) | (key.scopes & {"label"}))


def shown_by(request: Request) -> Secret | None:
    """A key, else a session's cookie. Browsers send that whoever made them ask: so what does more than read, as does
    being given a record to label, must also come with a header that only pages of this very origin can send, others
    being refused it by the browser.
    """
    scheme, secret = get_authorization_scheme_param(request.headers.get("authorization"))
    if secret and scheme.lower() == "bearer":
        return secret, keys.find
    session = request.cookies.get(SESSION)
    if session and OF_OUR_PAGES in request.headers:
        return session, of_our_page
    return (session, looking) if session and request.method == "GET" else None
