"""`Prefer: wait=N` of `GET latest`: who waits for a newer model."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from service.api.auth.access import no_publication
from service.api.http.representations import tags
from service.api.release_body import shown
from service.api.schemas import is_name
from service.store import newest, releases

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from service.api.http.representations import Rendered, Representation
    from service.api.services import Services
    from service.store.keys import Key
    from service.store.newest import Newest

MOST_WAIT_SECONDS = 60
SECONDS_BETWEEN_LOOKS = 5.0  # a notification can be lost while the database is away


async def newest_of(shared: Services, key: Key, publication: str) -> Newest:
    """Return the newest version that is visible now."""
    if not is_name(publication):
        raise no_publication()
    seen = await shared.newest_models.find(publication, key.streams)
    if seen is None:
        raise no_publication()
    return seen


async def await_newer(
    shared: Services, key: Key, publication: str, representation: Representation, *, than: int, seconds: int
) -> int | None:
    """Return the newest version once it is newer than `than`, or whatever it is after so many seconds."""
    wanted = publication, key.streams, representation.name, than
    find = partial(_find_newer, shared, key, publication, representation, than)
    newer = await shared.polls.wait(wanted, find, seconds)
    return (await newest_of(shared, key, publication)).latest if newer is None else newer


async def _find_newer(
    shared: Services, key: Key, publication: str, representation: Representation, than: int
) -> int | None:
    """Return the newest version once it is newer than `than`; None to stop."""
    async with shared.notifier.waiting(publication) as changed:
        latest = (await newest_of(shared, key, publication)).latest
        while (latest or 0) <= than:
            if shared.stopping.is_set():
                return None
            await shared.notifier.wait(changed, SECONDS_BETWEEN_LOOKS)
            changed.clear()
            latest = await _latest_as_sent(shared, key, publication, representation)
    return latest


class _Sent(NamedTuple):
    """The newest version and, where it is not among those rendered, its body."""

    promise: str
    latest: int | None
    body: bytes | None = None


async def _latest_as_sent(shared: Services, key: Key, publication: str, representation: Representation) -> int | None:
    """Return the newest version that is visible now, and keep it as it is sent: one look serves all who waited."""
    question = ("as sent", publication, key.streams, representation.name)
    sent = await shared.run_once(question, _look, publication, key.streams, representation, shared.rendered)
    if sent is None:
        raise no_publication()
    if sent.latest is not None and sent.body is not None:
        shared.rendered.put((sent.promise, sent.latest, representation.name), sent.body)
    return sent.latest


def _look(
    connection: Connection,
    publication: str,
    streams: frozenset[str] | None,
    representation: Representation,
    rendered: Rendered,
) -> _Sent | None:
    seen = newest.find(connection, publication, streams)
    if seen is None or seen.latest is None:
        return seen and _Sent(seen.promise, None)
    if rendered.get((seen.promise, seen.latest, representation.name)) is not None:
        return _Sent(seen.promise, seen.latest)
    release = releases.find(connection, seen.id, seen.latest)
    body = None if release is None else representation.write(shown(publication, release))
    return _Sent(seen.promise, seen.latest, body)


def known_version(if_none_match: str | None) -> int | None:
    """Return the newest version among the tags that a client has."""
    numbers = [re.fullmatch(r'"(\d{1,9})\.[^"]*"', tag) for tag in tags(if_none_match or "")]
    return max((int(match[1]) for match in numbers if match), default=None)


def wait_seconds(prefer: str | None) -> int | None:
    """Return the seconds of the preference `wait`; None: there is none (RFC 7240).

    Other preferences, and a `wait` that is not a whole number, are ignored.
    """
    if prefer is None:
        return None
    for preference in re.sub(r'"[^"]*"', lambda quoted: quoted[0].replace(",", " "), prefer).split(","):
        if match := re.fullmatch(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(;.*)?', preference, re.IGNORECASE):
            return min(int(match[1]), MOST_WAIT_SECONDS)
    return None
