"""Which streams and publications a key may see; all others are as if they were not there."""

from sqlalchemy import Connection

from service.api.http.problems import Problem
from service.api.schemas import is_name
from service.store import publications, streams
from service.store.keys import Key
from service.store.publications import Publication
from service.store.streams import Stream


def visible(key: Key, stream: str) -> bool:
    """Return whether the key could see a stream of this name."""
    return is_name(stream) and (key.streams is None or stream in key.streams)


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
    return Problem("not-found", "There is no such stream, or this key may not see it; GET /v1/streams lists them.")


def no_publication() -> Problem:
    return Problem(
        "not-found", "There is no such publication, or this key may not see it; GET /v1/publications lists them."
    )
