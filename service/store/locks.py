"""Locks of the rows of streams and publications: nobody else changes what a transaction holds, until it ends.

A transaction that locks more than one row locks them in this order, or two of them could wait for each other for ever:

1. the lease of whoever publishes or numbers (`leases.check`),
2. the stream, with its budget, its chain of charges and its numbering,
3. publications of that stream, and no other's,
4. what belongs to them: what is shown of them, requests for labels, sums beside the charges.

A caller that locks several streams at once waits for none of them (`free_streams`).

Under the stream's lock, `publications.create` takes the lock on all names of publications, which nobody holds for
longer than it takes to insert a row. The lock on a high-water mark's file comes before all: who takes it holds no row.

`service.ledger.entry` is the door to these locks. Besides it, `erasing`, `numbering` and `retention` lock a stream. An
import contract in pyproject.toml lets nobody else in. `newest` shares the lock of a stream for one
look. Where another transaction holds that lock, it does not wait, and its answer holds for that one reader.
"""

from collections.abc import Sequence

from sqlalchemy import BigInteger, Connection, bindparam, select, true

from service.store import leases, publications
from service.store.database import any_of, read_together, within
from service.store.leases import Lease, LeaseLost
from service.store.publications import Publication
from service.store.streams import Stream
from service.store.tables import leases as lease_rows
from service.store.tables import publications as publication_rows
from service.store.tables import shown
from service.store.tables import streams as stream_rows

SECONDS = 600.0
"""The most that a transaction that locks a stream may last, unless it says so: longer than any that does not hang."""


def stream(connection: Connection, identity: int, *, seconds: float | None = SECONDS) -> Stream:
    """Lock a stream and return it. seconds: as for `all_of`; None: the transaction has a bound already."""
    limit = () if seconds is None else within(connection, seconds)
    *_, (row,) = read_together(connection, *limit, (_STREAM, {"stream": identity}))
    return Stream(**row._asdict())


def free_streams(connection: Connection, identities: Sequence[int]) -> list[Stream]:
    """Lock those of some streams that nobody else has locked, and return them; it waits for none."""
    query = select(stream_rows).where(stream_rows.c.id == any_of(identities)).order_by(stream_rows.c.id)
    return [Stream(**row._asdict()) for row in connection.execute(query.with_for_update(skip_locked=True))]


def publication(connection: Connection, identity: int) -> Publication:
    """Lock a publication and return it. The caller holds the lock of its stream."""
    ((row,),) = read_together(connection, (_PUBLICATION, {"publication": identity}))
    return Publication(**row._asdict())


def all_of(connection: Connection, identity: int, lease: Lease, *, seconds: float) -> tuple[Publication, Stream]:
    """Lock a lease, the stream of a publication and the publication, in one go; return the latter two.

    seconds: the transaction ends within so many, waiting included: of threads that hang together and wait for each
    other's locks, one must not hold them after the other.

    Raises:
        LeaseLost: it ran out or is another's.
    """
    values = {"publication": identity, "resource": lease.resource, "owner": lease.owner, "epoch": lease.epoch}
    *_, rows = read_together(connection, *within(connection, seconds), (_ALL, values))
    if not rows:
        raise LeaseLost(lease.resource)
    row, mine = rows[0], len(publications.NAMES)
    return (
        Publication(**dict(zip(publications.NAMES, row[:mine], strict=True))),
        Stream(**dict(zip(stream_rows.c.keys(), row[mine:], strict=True))),
    )


_STREAM = select(stream_rows).where(stream_rows.c.id == bindparam("stream", type_=BigInteger)).with_for_update()
_PUBLICATION = (
    publications.select_all()
    .where(publication_rows.c.id == bindparam("publication", type_=BigInteger))
    .with_for_update(of=publication_rows)
)
_ALL = (
    select(*publications.select_all().selected_columns, stream_rows)
    .select_from(
        lease_rows.join(stream_rows, true())
        .join(publication_rows, publication_rows.c.stream_id == stream_rows.c.id)
        .join(shown, shown.c.publication_id == publication_rows.c.id)
    )
    .where(
        publication_rows.c.id == bindparam("publication"),
        *leases.is_held(bindparam("resource"), bindparam("owner"), bindparam("epoch")),
    )
    .with_for_update(of=(lease_rows, stream_rows, publication_rows))
)
