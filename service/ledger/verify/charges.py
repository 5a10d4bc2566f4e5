"""Charges: their chain, their sums beside those that publishing counted, and the releases that they paid for."""

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from operator import attrgetter

from sqlalchemy import Connection, func, select

from service.ledger import spending
from service.privacy.currency import Currency, capacity
from service.store import charges as stored
from service.store import tables
from service.store.publications import Publication
from service.store.streams import Stream


def chain(connection: Connection, stream: Stream) -> Iterator[str]:
    """That every charge of a stream is what was written, and none is missing. It walks all of them in little memory."""
    previous = None
    number = 0
    for number, charge in enumerate(stored.walk(connection, stream.id), 1):
        where = f"stream {stream.name}, charge {charge['id']}"
        if charge["id"] != number:
            yield f"{where}: charge {number} is missing before it"
            return
        if not stored.intact(charge):
            yield f"{where}: its hash is not that of its content"
        if charge["previous_hash"] != previous:
            yield f"{where}: its previous_hash is not the hash of the charge before"
        previous = charge["hash"]
    if (number, previous) != (stream.charges, stream.head):
        yield f"stream {stream.name}, charge {stream.charges}: it was the newest one, and is missing or another"
    elsewhere = (
        select(tables.publications.c.id)
        .join(tables.charges, tables.charges.c.publication_id == tables.publications.c.id)
        .where(tables.charges.c.stream_id == stream.id, tables.publications.c.stream_id != stream.id)
        .distinct()
    )
    for publication in connection.execute(
        elsewhere
    ).scalars():  # not by name: who sees this stream may not see that one
        yield f"stream {stream.name}: the publication with id {publication} is charged on it, which is another stream's"


def sums(connection: Connection, publication: Publication) -> Iterator[str]:
    """Adds up a publication's charges anew, from record to record, beside what publishing counted."""
    kind, cap = capacity(publication.epsilon, publication.delta)
    if kind != publication.kind:
        yield f"publication {publication.name}: its kind is not that of its delta"
        return
    asked = publication.configuration["privacy"]
    if (Decimal(str(asked["epsilon"])), Decimal(str(asked["delta"]))) != (publication.epsilon, publication.delta):
        yield f"publication {publication.name}: its configuration is of another guarantee than is reserved for it"
    table = tables.charges
    currency = table.c.epsilon if kind is Currency.PURE else table.c.rho
    mine = table.c.publication_id == publication.id
    wrong = connection.execute(select(func.min(table.c.id)).where(mine, (currency > 0).isnot(True))).scalar_one()
    if wrong is not None:
        yield f"publication {publication.name}, charge {wrong}: it is not in the publication's currency"
        return
    up = select(table.c.start.label("record"), currency.label("amount")).where(mine)
    down = select(table.c.stop, -currency).where(mine)
    both = up.union_all(down).subquery()
    walked = connection.execute(select(both).order_by(both.c.record), execution_options={"yield_per": 1000})
    kept = spending.changes(connection, [publication.id])
    level, highest, differs = Fraction(0), Fraction(0), False
    with walked:
        for record, here in groupby(walked, key=attrgetter("record")):
            change = sum((Fraction(row.amount) for row in here), start=Fraction(0))
            level += change
            highest = max(highest, level)
            if change and not differs:
                differs = next(kept, None) != (record, publication.id, change)
    if differs or next(kept, None) is not None:
        yield f"publication {publication.name}: what is kept as spent is not what its charges add up to"
    if highest != publication.worst_amount:
        yield f"publication {publication.name}: what is told of its worst record is not what its charges add up to"
    if highest * Fraction(publication.unit_factor or 1) > cap:
        yield f"publication {publication.name}: its charges pass its cap"


def have_releases(connection: Connection, publication: Publication) -> Iterator[str]:
    """Every charge with a version has its release."""
    charge, release = tables.charges, tables.releases
    unreleased = connection.execute(
        select(charge.c.version)
        .outerjoin(release, (release.c.stream_id == charge.c.stream_id) & (release.c.charge == charge.c.id))
        .where(charge.c.publication_id == publication.id, charge.c.version.isnot(None), release.c.charge.is_(None))
        .order_by(charge.c.id)
    )
    for version in unreleased.scalars():
        yield f"publication {publication.name}, version {version}: it was charged, but there is no such release"
