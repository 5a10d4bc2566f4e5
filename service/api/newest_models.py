"""The newest visible model of each publication, as far as a look at it still holds (`store.newest`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from service.store import newest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy import Connection

    from service.store.newest import Newest

MOST_SECONDS = 1.0
"""No look holds for longer: so long may readers be behind if the database, or its clock, is put back or forward."""
MOST_KNOWN = 10_000


class Known(NamedTuple):
    """A look that began at `looked` or later, and the moment `until` which it holds, both by this process's clock."""

    newest: Newest
    looked: float
    until: float


class NewestModels:
    """One per process. No answer is older than its question, but for steps of the database's clock.

    Args:
        run_once: asks the database, as `Services.run_once` does.
    """

    def __init__(self, run_once: Callable[..., Awaitable[Any]]) -> None:
        self._run_once = run_once
        self._known: dict[tuple[str, frozenset[str] | None], Known] = {}

    async def find(self, publication: str, streams: frozenset[str] | None) -> Newest | None:
        """Return the newest model of a publication that readers of these streams (None: of all) see.

        A name means the same publication for ever, but not for all readers: those who see other streams ask another
        question.
        """
        which = publication, streams
        if (remembered := self.remembered(publication, streams)) is not None:
            return remembered
        known, began = self._known.get(which), time.monotonic()
        if known is not None and known.newest.publish_delay:
            known = await self._run_once(("look", which), _look, known.newest, undone=True)
        else:
            known = None
        if known is None:
            newest_release: Newest | None = await self._run_once(("newest", which), newest.find, publication, streams)
            known = newest_release and Known(newest_release, began, 0.0)
        if known is None:
            return None
        self._remember(which, known)
        return known.newest

    def remembered(self, publication: str, streams: frozenset[str] | None) -> Newest | None:
        """Return what `find` would return without a look; None: somebody has to look."""
        known = self._known.get((publication, streams))
        return known.newest if known is not None and time.monotonic() < known.until else None

    def seen_lately(self, publication: str, streams: frozenset[str] | None) -> Newest | None:
        """Return what a look of the last second saw; None: there was none. There may be a newer version by now."""
        known = self._known.get((publication, streams))
        return known.newest if known is not None and time.monotonic() < known.looked + MOST_SECONDS else None

    def _remember(self, which: tuple[str, frozenset[str] | None], known: Known) -> None:
        if len(self._known) >= MOST_KNOWN and which not in self._known:
            self._known.clear()
        self._known[which] = known


def _look(connection: Connection, before: Newest) -> Known | None:
    began = time.monotonic()
    seen = newest.look(connection, before)
    return seen and Known(seen.newest, began, began + min(seen.seconds, MOST_SECONDS))
