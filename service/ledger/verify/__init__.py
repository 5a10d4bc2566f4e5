"""Walks the whole ledger and recomputes every hash and bound, from the charges alone.

It believes nothing that was computed before: what a record has spent is added up anew from the charges and compared
with what publishing used, with each publication's cap, and with the stream's budget. The promises of
streams and publications, their last state, releases and segments are compared with their digests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from service.ledger.verify import arrivals, charges, numbering, promises, released, reserved, segments
from service.ledger.verify.reading import read
from service.ledger.verify.segments import verify_segments
from service.privacy.accounting.composition import Slots
from service.store import publications, streams
from service.store.database import ONE_VIEW
from service.store.publications import Publication
from service.store.rows import Rows, RowsTogether
from service.store.streams import Stream

__all__ = ["Report", "look", "look_at_each", "verify", "verify_segments"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The extent of a walk, and its findings."""

    streams: int
    charges: int
    findings: list[str]


def verify(connection: Connection, *, isolated: bool = True) -> Report:
    """Every stream, publication, charge and release; a finding names what does not hold. It takes little memory.

    `isolated`: see one moment of the whole ledger, however much is published meanwhile. For that nothing may have
    happened yet in the transaction.
    """
    if isolated:
        connection.execute(ONE_VIEW)
    try:
        known = streams.every(connection)
    except DataError:
        return Report(streams=0, charges=0, findings=["the table streams holds what was never written there"])
    findings = [
        finding
        for stream in known
        for finding in (*_of_stream(Rows(connection), stream), *_numbers(connection, stream))
    ]
    return Report(streams=len(known), charges=sum(each.charges for each in known), findings=findings)


def look(connection: Connection, stream: int, *, most: int = 100) -> tuple[Stream, list[str]]:
    """One stream and what of it does not hold, in a transaction of its own; its batches' numbers aside.

    Those are as many as batches were ever sent, and an invariant asks for them.
    """
    connection.execute(ONE_VIEW)
    row = streams.get(connection, stream)
    return row, list(islice(_of_stream(Rows(connection), row), most))


def look_at_each(connection: Connection, identities: Sequence[int]) -> list[tuple[Stream, str | None]]:
    """Streams with few rows, and the first of what does not hold of each: with a few queries for all of them."""
    connection.execute(ONE_VIEW)
    rows = RowsTogether(connection, identities)
    return [(each, next(_of_stream(rows, each), None)) for each in streams.of_each(connection, identities)]


def _of_stream(rows: Rows, stream: Stream) -> Iterator[str]:
    """All that does not hold of one stream; `stream` must have been read in the same view of the database."""
    where = f"stream {stream.name}"
    yield from read(where, charges.chain(rows, stream))
    yield from read(where, numbering.releases(rows, stream))
    yield from read(where, promises.of_stream(stream))
    yield from read(where, segments.rows(rows, stream))
    yield from read(where, _publications(rows, stream))


def _numbers(connection: Connection, stream: Stream) -> Iterator[str]:
    """All that does not hold of the numbers of a stream's records and units."""
    where = f"stream {stream.name}"
    yield from read(where, numbering.records(connection, stream))
    yield from read(where, numbering.units(connection, stream))


def _publications(rows: Rows, stream: Stream) -> Iterator[str]:
    """All that does not hold of a stream's publications. Another stream may have publications of the same names."""
    where = f"stream {stream.name}"
    of_stream = list(publications.walk(rows, stream.id))
    for slots in Slots:
        yield from read(where, reserved.within_budget(rows, stream, of_stream, slots))
    yield from read(where, reserved.within_slack(stream, of_stream))
    yield from read(where, numbering.shown(rows, stream, of_stream))
    for publication in of_stream:
        of_units = read(f"publication {publication.name}", promises.of_units(stream, publication))
        of_features = read(f"publication {publication.name}", promises.of_features(of_stream, publication))
        for finding in (*_of_publication(rows, stream, publication), *of_units, *of_features):
            yield f"{finding} (stream {stream.name})"


def _of_publication(rows: Rows, stream: Stream, publication: Publication) -> Iterator[str]:
    where = f"publication {publication.name}"
    yield from read(where, promises.of_publication(publication))
    yield from read(where, promises.of_slots(stream, publication))
    yield from read(where, released.chain(rows, stream, publication))
    yield from read(where, charges.sums(rows, publication))
    yield from read(where, charges.have_releases(rows, publication))
    yield from read(where, arrivals.instances(rows, publication))
    yield from read(where, arrivals.coins(rows, publication))
    yield from read(where, arrivals.units(publication))
