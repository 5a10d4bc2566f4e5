"""Requests that may come twice and are carried out once, and those that are to follow another one."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, NamedTuple

from service.api.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from service.api.services import Services
    from service.store.keys import Key
    from service.store.streams import Stream


class Turn(NamedTuple):
    """Which request this is, and which one has to be before it.

    scope: whose Idempotency-Key it has, and which. after: the same of the request that it is to follow. before: set
    once that one has ended, if it ran in this process when this one came. None: there is none.
    """

    scope: str | None = None
    after: str | None = None
    before: asyncio.Event | None = None


def take_turn(
    shared: Services, stream: Stream, key: Key, idempotency_key: str | None, after: str | None
) -> contextlib.AbstractContextManager[Turn]:
    """Return the turn of a request with this Idempotency-Key and this Idempotency-After, where it has them.

    Refuses a second request with the same key while the first runs in this process. It only spares work: what keeps a
    batch from being stored twice, or before the one that it follows, is the log's own step, whichever process asks it.
    """
    if not idempotency_key and not after:
        return _ANY_TURN
    return _turn(shared, stream, *(_scope(key, each) if each else None for each in (idempotency_key, after)))


_ANY_TURN = contextlib.nullcontext(Turn())


@contextlib.contextmanager
def _turn(shared: Services, stream: Stream, scope: str | None, after: str | None) -> Iterator[Turn]:
    """A request waits only for such as came before it, so no two wait for each other."""
    before = shared.running.get(f"{stream.log}:{after}")
    if scope is None:
        yield Turn(scope, after, before)
        return
    request = f"{stream.log}:{scope}"
    if request in shared.running:
        raise Problem("idempotency-running", "Wait for the first request's answer, or repeat it later.")
    ended = shared.running[request] = asyncio.Event()
    try:
        yield Turn(scope, after, before)
    finally:
        del shared.running[request]
        ended.set()


def _scope(key: Key, idempotency_key: str) -> str:
    return f"{key.id}:{hashlib.sha256(idempotency_key.encode()).hexdigest()}"
