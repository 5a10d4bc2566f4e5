"""The one door to a stream's ledger: it takes the locks, and nobody outside has to know their order.

| door | locks | who needs it |
|---|---|---|
| `open_ledger` | the stream | who starts a publication, distrusts a stream, or publishes several steps at a tick |
| `open_free_ledgers` | those of many streams that are free | the confirmer, for releases of many streams at once |
| `open_entry` | the stream, then the publication | who ends a publication |
| `open_leased_entry` | the lease, the stream and the publication, in one statement | who publishes a step |

`store.locks` tells why this is the order. Locks are given back when the transaction ends, by commit or rollback:
nothing is to be closed. An `Entry` can be charged and ended: the end settles what stays reserved, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from sqlalchemy import Connection

from service.ledger import admission, charging, ending
from service.ledger.charging import Charged
from service.store import locks, streams
from service.store.leases import Lease
from service.store.publications import NewPublication, Publication
from service.store.step_records import NewCharge
from service.store.streams import Stream


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A publication and its stream: nobody else changes either until the transaction ends."""

    connection: Connection
    stream: Stream
    publication: Publication

    def charge(self, new: Sequence[NewCharge], most: Fraction, at: datetime | None) -> Charged:
        """Return the charges of one step, for `charging.append` to write.

        most: what the publication may charge any record in all. at: the tick at which the step is published; None: now.

        Raises:
            LedgerBroken: the chain does not end as it did after the last charge; nothing is charged.
            OverBudget: a record would pay more than `most` in all; nothing is charged.
        """
        return charging.charge(self.connection, self.stream, self.publication, most, new, at)

    def end(self, state: str, reason: str | None = None) -> Publication:
        """End the publication, `stopped` or `halted`, and return it. One that has ended stays as it is."""
        return ending.end(self.connection, self.publication, state, reason)


@dataclass(frozen=True, kw_only=True)
class StreamLedger:
    """A stream: nobody else numbers, charges or reserves anything on it until the transaction ends."""

    connection: Connection
    stream: Stream

    def admit(self, new: NewPublication, *, visible: frozenset[str] | None = None) -> Publication:
        """Start a publication, with its cap reserved, and return it.

        visible: names of the streams that the asking key may see; None: every stream.

        Raises:
            BudgetExceeded: some record that it may read can't hold its cap beside all that is reserved already.
            NameTaken: a publication of a visible stream has this name.
        """
        return admission.admit(self.connection, self.stream, new, visible)

    def entry(self, publication: int) -> Entry:
        """Return a publication of this stream, locked."""
        locked = locks.publication(self.connection, publication)
        return Entry(connection=self.connection, stream=self.stream, publication=locked)

    def distrust(self, reason: str) -> bool:
        """Publish nothing more on the stream; return whether that is news."""
        return streams.distrust(self.connection, self.stream, reason)


def open_ledger(connection: Connection, stream: int, *, seconds: float | None = locks.SECONDS) -> StreamLedger:
    """Return the ledger of a stream, which it locks. seconds: as for `locks.stream`."""
    return StreamLedger(connection=connection, stream=locks.stream(connection, stream, seconds=seconds))


def open_free_ledgers(connection: Connection, streams: Sequence[int]) -> list[StreamLedger]:
    """Return the ledgers of those streams that nobody else has locked; it locks them, and waits for none."""
    return [StreamLedger(connection=connection, stream=each) for each in locks.free_streams(connection, streams)]


def open_entry(connection: Connection, publication: Publication) -> Entry:
    """Return a publication as it is now, locked."""
    return open_ledger(connection, publication.stream_id).entry(publication.id)


def open_leased_entry(
    connection: Connection, publication: int, lease: Lease, *, seconds: float = locks.SECONDS
) -> Entry:
    """Return a publication, locked with the lease on it; the transaction ends within so many seconds.

    Raises:
        LeaseLost: the lease ran out or is another's.
    """
    locked, stream = locks.all_of(connection, publication, lease, seconds=seconds)
    return Entry(connection=connection, stream=stream, publication=locked)
