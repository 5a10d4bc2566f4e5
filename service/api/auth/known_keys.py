"""The keys that requests showed lately, so that not every request asks the database for its key."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from service.api.auth.allowance import Allowance
from service.api.auth.credentials import secret_of
from service.api.http.problems import too_many_requests, unauthenticated
from service.store import keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from fastapi import Request

    from service.api.auth.credentials import Secret
    from service.store.keys import Key

KEY_CACHE_SECONDS = 2.0  # a revocation is notified at once; this is for the case that the notification is lost
MOST_CACHED = 10_000
SECONDS_OF_UNKNOWN_KEYS = 10.0
VALID_DIGESTS = "digests of valid keys"


class KnownKeys:
    """One per process.

    Args:
        run_once: asks the database, as `Services.run_once` does.
        guesses: how many keys that are not known an address may send a second.
    """

    def __init__(self, run_once: Callable[..., Awaitable[Any]], *, guesses: float) -> None:
        self._run_once = run_once
        self._known: dict[Hashable, tuple[Key, float]] = {}
        self._changes = 0  # how often keys were made or revoked
        self._guesses = Allowance(guesses, seconds=SECONDS_OF_UNKNOWN_KEYS)

    async def find(self, shown: Secret, asker: str | None = None) -> Key | None:
        """Return the key that a request shows, if it is valid.

        It is found by a hash: no secret is compared with another.

        Args:
            shown: what somebody sent.
            asker: the address that sent it, which has so many guesses a second; each asks the database. All guesses
                beyond that ask it together, whether a key is valid at all, so that guesses keep out nobody who has
                one, from whatever address. None: who was let in before.
        """
        if (remembered := self.remembered(shown)) is not None:
            return remembered
        secret, find = shown
        which = find, keys.digest(secret)
        is_new = asker is not None and which not in self._known
        if is_new and (early := self._guesses.early(asker)) and not await self._is_valid(which[1]):
            raise too_many_requests("This address sends too many keys that are not known.", early)
        began, changes = time.monotonic(), self._changes
        key: Key | None = await self._run_once(("key", which), find, secret)
        self._known.pop(which, None)
        if key is None:
            self._guesses.count(asker)
        else:
            if len(self._known) >= MOST_CACHED:
                self._known.clear()
            is_current = self._changes == changes  # else it may have been revoked after it was looked at
            self._known[which] = (key, began + KEY_CACHE_SECONDS if is_current else 0.0)
        return key

    async def _is_valid(self, digest: bytes) -> bool:
        """Return whether a key is valid: one query at a time answers for all who ask meanwhile."""
        valid: frozenset[bytes] = await self._run_once(VALID_DIGESTS, keys.valid_digests)
        return digest in valid

    async def check_again(self, request: Request) -> None:
        """Raise what a new request would get, if the key of one that was let in is valid no more.

        Each request that has waited, be it for its own body, calls this after the wait, before it answers or changes
        anything.

        Numbers: 1.6 µs of processor time where the key was looked up lately. Where it was not, of many who are woken
        together one look for each key answers all.
        """
        await self.check(secret_of(request))

    async def check(self, shown: Secret | None) -> None:
        """Do the same for the key that a request showed."""
        if shown is None or await self.find(shown) is None:
            raise unauthenticated()

    def remembered(self, shown: Secret) -> Key | None:
        """Return the key that a request shows, if that was looked up lately; None: somebody has to look."""
        secret, find = shown
        cached = self._known.get((find, keys.digest(secret)))
        return cached[0] if cached is not None and cached[1] > time.monotonic() else None

    def look_again(self) -> None:
        """Ask the database again for every key: some key was made or revoked."""
        self._changes += 1
        self._known = {which: (key, 0.0) for which, (key, _) in self._known.items()}
