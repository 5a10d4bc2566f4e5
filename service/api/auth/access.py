"""Decide who may do what, for all routes.

A key that may not see a stream gets the answer of a stream that does not exist.
"""

from fastapi import Request
from sqlalchemy import Connection

from service.api.auth.credentials import secret_of
from service.api.http.problems import Problem, too_many_requests, unauthenticated
from service.api.schemas import is_name
from service.api.services import services_of
from service.store import publications, streams
from service.store.keys import Key
from service.store.publications import Publication
from service.store.streams import Stream


async def authorize(request: Request, needed: str) -> Key:
    """Return the key of a request, if it may do what needs this scope on the stream that the path names.

    Every route calls this before it reads the body, answered by the framework or not. A request that is looked at
    again counts once, but its key must still be valid.

    Raises Problem, in this order: no valid key (401), too many requests of it (429), another scope (403), a stream
    that it may not see (404). A publication is looked for by its name among the key's streams (`publication_or_404`).
    """
    key: Key | None = request.scope.get("perennial.key")
    if key is None:
        key = await _admit(request)
        if needed == "admin":
            request.scope["perennial.audit"] = key.id
    else:
        await services_of(request).keys.check_again(request)
    if needed not in key.scopes and "admin" not in key.scopes:
        raise Problem("forbidden", f"This needs a key with the scope `{needed}`.")
    if (stream := request.path_params.get("stream")) is not None and not visible(key, stream):
        raise no_stream()
    return key


async def _admit(request: Request) -> Key:
    """Return the key of a new request, and count the request."""
    services, secret = services_of(request), secret_of(request)
    address = request.client.host if request.client else ""
    key = await services.keys.find(secret, address) if secret else None
    if key is None:
        raise unauthenticated()
    if early := services.requests.early(key.id):
        raise too_many_requests("This key asks too often.", early)
    services.requests.count(key.id)
    request.scope["perennial.key"] = key
    return key


def visible(key: Key, stream: str) -> bool:
    """Return whether the key could see a stream of this name."""
    return (key.streams is None or stream in key.streams) and is_name(stream)


def stream_or_404(connection: Connection, key: Key, name: str) -> Stream:
    """Return the stream of this name, if the key may see it."""
    stream = streams.find(connection, name) if visible(key, name) else None
    if stream is None:
        raise no_stream()
    return stream


def publication_or_404(connection: Connection, key: Key, name: str) -> Publication:
    """Return the oldest publication of this name among those that the key may see."""
    publication = publications.find(connection, name, visible=key.streams) if is_name(name) else None
    if publication is None:
        raise no_publication()
    return publication


def no_stream() -> Problem:
    """Return the refusal of a stream that is not there, or that the key may not see."""
    return Problem("not-found", "There is no such stream, or this key may not see it; GET /v1/streams lists them.")


def no_publication() -> Problem:
    """Return the refusal of a publication that is not there, or that the key may not see."""
    return Problem(
        "not-found", "There is no such publication, or this key may not see it; GET /v1/publications lists them."
    )
