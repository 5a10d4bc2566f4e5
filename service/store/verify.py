"""Walks the whole ledger and recomputes every hash and bound, from the charges alone.

It believes nothing that was computed before: what a record has spent is added up anew from the charges and compared
with what publishing used, with each publication's cap, and with the stream's budget.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, select, text

from service.privacy import account, claims
from service.privacy.loss import Kind, capacity
from service.privacy.profile import Profile
from service.store import ledger, publications, streams, tables
from service.store.publications import Publication
from service.store.streams import Stream

CHARGES_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was walked, and what does not hold."""

    streams: int
    charges: int
    findings: list[str]


def verify(connection: Connection, *, isolated: bool = True) -> Report:
    """Every stream, publication, charge and release; a finding names what does not hold.

    `isolated`: see one moment of the whole ledger, however much is published meanwhile. For that nothing may have
    happened yet in the transaction.
    """
    if isolated:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
    findings: list[str] = []
    known = streams.every(connection)
    walked = 0
    for stream in known:
        charges = list(_charges(connection, stream.id))
        walked += len(charges)
        found = publications.of_stream(connection, stream.id)
        findings += _chain(stream, charges)
        findings += _numbering(connection, stream)
        findings += _reserved(connection, stream)
        by_publication = {each.name: [row for row in charges if row["publication"] == each.name] for each in found}
        for publication in found:
            own = by_publication[publication.name]
            findings += _spent(connection, publication, own)
            findings += _releases(connection, publication, own)
    return Report(streams=len(known), charges=walked, findings=findings)


def _charges(connection: Connection, stream: int) -> Iterator[dict[str, Any]]:
    """Newest first."""
    before = None
    while page := ledger.page(connection, stream, limit=CHARGES_AT_ONCE, before=before):
        yield from page
        before = page[-1]["id"]


def _chain(stream: Stream, charges: list[dict[str, Any]]) -> Iterator[str]:
    previous = None
    for number, charge in enumerate(reversed(charges), 1):
        where = f"stream {stream.name}, charge {charge['id']}"
        if charge["id"] != number:
            yield f"{where}: charge {number} is missing before it"
            return
        if charge["hash"] != ledger.digest(charge):
            yield f"{where}: its hash is not that of its content"
        if charge["previous_hash"] != previous:
            yield f"{where}: its previous_hash is not the hash of the charge before"
        previous = charge["hash"]


def _numbering(connection: Connection, stream: Stream) -> Iterator[str]:
    """Entries cover [0, records) without a gap or an overlap; so do segments, from the first that is kept."""
    for table, name in ((tables.entries, "entries"), (tables.segments, "segments")):
        ranges = connection.execute(
            select(table.c.start, table.c.stop).where(table.c.stream_id == stream.id).order_by(table.c.start)
        ).all()
        position = ranges[0].start if ranges and name == "segments" else 0
        for start, stop in ranges:
            if start != position:
                yield f"stream {stream.name}: {name} are not continuous at record {position}"
            position = stop
        if position != stream.records and (ranges or name == "entries"):
            yield f"stream {stream.name}: {name} end at record {position}, not at {stream.records}"


def _reserved(connection: Connection, stream: Stream) -> Iterator[str]:
    budget = account.Loss.of(stream.epsilon, stream.delta)
    for each in account.add_up(ledger.accounts(connection, stream.id)):
        if not each.reserved.within(budget):
            yield f"stream {stream.name}, record {each.start}: more is reserved than the stream's budget"
        if not each.spent.within(each.reserved):
            yield f"stream {stream.name}, record {each.start}: more is spent than is reserved"


def _spent(connection: Connection, publication: Publication, charges: list[dict[str, Any]]) -> Iterator[str]:
    kind, cap = capacity(publication.epsilon, publication.delta)
    if kind != publication.kind:
        yield f"publication {publication.name}: its kind is not that of its delta"
        return
    currency = "epsilon" if kind is Kind.PURE else "rho"
    for charge in charges:
        if charge[currency] is None or not charge[currency] > 0:
            yield f"publication {publication.name}, charge {charge['id']}: it is not in the publication's currency"
            return
    walked = Profile.of((charge["start"], charge["end"], Fraction(charge[currency])) for charge in charges)
    kept = Profile.of(
        (row.start, row.stop, Fraction(row.amount))
        for row in connection.execute(select(tables.spent).where(tables.spent.c.publication_id == publication.id))
    )
    if walked != kept:
        yield f"publication {publication.name}: what is kept as spent is not what its charges add up to"
    if walked.maximum() > cap:
        yield f"publication {publication.name}: its charges pass its cap"


def _releases(connection: Connection, publication: Publication, charges: list[dict[str, Any]]) -> Iterator[str]:
    rows = connection.execute(select(tables.releases).where(tables.releases.c.publication_id == publication.id)).all()
    released = {row.version: row for row in rows}
    charged = {version: list(each) for version, each in groupby(charges, key=lambda charge: charge["version"])}
    for version in sorted(released.keys() - charged.keys()):
        yield f"publication {publication.name}, version {version}: it was published without a charge"
    for version in sorted(version for version in charged if version is not None):
        where = f"publication {publication.name}, version {version}"
        if version not in released:
            yield f"{where}: it was charged, but there is no such release"
            continue
        row, (charge, *more) = released[version], charged[version]
        if more or charge["id"] != row.charge:
            yield f"{where}: it has not exactly the charge that it names"
        if (charge["start"], charge["end"]) != (row.fit_start, row.fit_stop):
            yield f"{where}: its charge is not on the records it read"
        kind, paid = (Kind.PURE, charge["epsilon"]) if charge["rho"] is None else (Kind.ZCDP, charge["rho"])
        try:
            if claims.cost(kind, row.noise, records=row.fit_stop - row.fit_start) > Fraction(paid):
                yield f"{where}: its noise costs more than its charge"
        except ValueError as problem:
            yield f"{where}: {problem}"
    if released and max(released) != publication.version:
        yield f"publication {publication.name}: its newest version is {max(released)}, not {publication.version}"
