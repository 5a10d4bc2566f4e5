"""Charges at arrival: of records for the instance that is open, and for their coin and the update of their batch."""

from collections.abc import Iterator
from fractions import Fraction

from sqlalchemy import select

from service.privacy.accounting.events import MeasuredQuery, OpenedInstance
from service.privacy.accounting.groups import UnitBound
from service.privacy.accounting.obligations import AtArrival, OnOpening
from service.privacy.accounting.unit_factors import factor_of
from service.privacy.currency import Currency
from service.privacy.noise.sparse_vector import Instance
from service.store import releases, tables
from service.store.publications import Publication
from service.store.rows import Rows

_CHARGES = select(tables.charges).order_by(tables.charges.c.id)


def instances(rows: Rows, publication: Publication) -> Iterator[str]:
    """Check that what is charged without a version is what each record owes, once, to each instance that was open.

    The obligations state the first instance, a release the instance that opened with it. Each record that is
    there when it opens, or arrives while it is open, pays for it before anything is measured of it.
    """
    charging = publication.owes.charging
    if not isinstance(charging, OnOpening):
        return
    where = f"publication {publication.name}"
    kind = Currency(publication.kind)
    instance: Instance | None = charging.first.instance
    released = releases.walk(rows, publication.id)
    paid = 0  # so many records have paid for the instance that is open
    for row in rows.of(_CHARGES, tables.charges.c.publication_id, publication.id):
        start, stop = row.start - publication.start, row.stop - publication.start
        if instance is None:
            yield f"{where}, charge {row.id}: it is for no instance that was open"
            return
        if row.version is None:
            amount = Fraction(row.epsilon if kind is Currency.PURE else row.rho)
            if start != paid or amount < OpenedInstance(instance=instance).cost(kind, records=1):
                yield f"{where}, charge {row.id}: it is not what each record owes to the instance that was open"
            paid = stop
            continue
        release = next(released, None)
        if release is None:
            yield f"{where}, charge {row.id}: the release that it paid for is missing"
            return
        hard = MeasuredQuery.from_json(release["noise"])
        if hard.closed != instance:
            yield f"{where}, version {row.version}: it closed another instance than was open"
        if not instance.opened <= stop <= paid:
            yield f"{where}, version {row.version}: it measured records that had not paid for its instance"
        instance, paid = hard.opened, 0
    if instance is not None and paid != publication.position:
        yield f"{where}: not all of its records have paid for the instance that is open"


def coins(rows: Rows, publication: Publication) -> Iterator[str]:
    """Check that each record paid once, when its coin was tossed, for that coin and the update of its batch."""
    charging = publication.owes.charging
    if not isinstance(charging, AtArrival):
        return
    where = f"publication {publication.name}"
    kind, paid = Currency(publication.kind), 0
    owed = charging.event.cost(kind, records=1)
    for row in rows.of(_CHARGES, tables.charges.c.publication_id, publication.id):
        amount = Fraction(row.epsilon if kind is Currency.PURE else row.rho)
        if (row.version, row.start - publication.start) != (None, paid) or amount < owed:
            yield f"{where}, charge {row.id}: it is not what each record owes for its coin and an update, once"
        paid = row.stop - publication.start
    if paid != publication.position:
        yield f"{where}: not all of its records have paid for their coins"


def units(publication: Publication) -> Iterator[str]:
    """Check that what is charged before any release counts as often as all records of a unit may cost."""
    charging, unit = publication.owes.charging, publication.owes.unit
    if unit is None or not isinstance(charging, AtArrival | OnOpening):
        return
    event = charging.event if isinstance(charging, AtArrival) else charging.first
    bound = UnitBound(max_records=unit["max_records"], min_separation=unit["min_separation"])
    if factor_of(event, Currency(publication.kind), bound, records=1) > Fraction(unit["factor"]):
        where = f"publication {publication.name}"
        yield f"{where}: its charges at arrival count less often than all records of a unit may cost"
