"""How many streams of a primary one worker numbers: as many as the others, give or take one."""

from collections.abc import Sequence

from service.store import changes
from service.store.changes import Unsealed
from service.store.leases import Lease
from service.worker.leases import LeaseKeeper

TAKEN_AT_ONCE = 1000


class Share:
    """Balances streams between workers: one with more than its share gives streams back, one with less takes free ones.

    A stream that stays free for as long as a lease lasts may be taken by any worker: the others may have failed.
    """

    def __init__(self, keeper: LeaseKeeper) -> None:
        self._keeper = keeper
        self._present: Lease | None = None

    def heartbeat(self, primary: int) -> None:
        """Renew this worker's claim to a share of a primary's streams, by which the others count it."""
        if self._present is None or not self._keeper.holds(self._present):
            self._present = self._keeper.appear(primary)

    def leave(self) -> None:
        """Give up this worker's claim, so that the others divide its share."""
        if self._present is not None:
            self._keeper.drop(self._present)

    def excess(self, there: Unsealed, held: int) -> int:
        """Return how many streams this worker holds beyond its share."""
        return max(0, held - _share(there))

    def take(self, there: Unsealed, held: int, *, but: Sequence[int], slots: Sequence[range]) -> list[Lease]:
        """Take free streams up to this worker's share, so many at most at once, and those that nobody else takes.

        Args:
            there: counts of streams and sealers.
            held: how many streams this worker holds.
            but: ids of streams that this worker must not take.
            slots: those of the streams to take.
        """
        room, wanted = _share(there) - held, changes.wanting_a_sealer(but=but, slots=slots)
        if there.free and room > 0:
            return self._keeper.take_several(wanted, most=min(room, TAKEN_AT_ONCE))
        if there.long_free:
            return self._keeper.take_several(wanted, most=TAKEN_AT_ONCE, since=self._keeper.seconds)
        return []


def _share(there: Unsealed) -> int:
    return -(-there.wanted // max(1, there.sealers))
