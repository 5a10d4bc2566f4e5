"""What every record has spent: an append-only list of charges per stream, chained by hashes, and what is reserved.

Amounts are added exactly (`fractions.Fraction`): a charge is a binary double, a budget a decimal. Rounding happens only
where a sum is shown, and then up.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import rfc8785
from sqlalchemy import Connection, Row, Select, and_, delete, func, insert, select

from service.privacy.account import Account, Loss
from service.privacy.loss import Kind
from service.privacy.profile import Profile
from service.store import tables
from service.store.publications import Publication, of_stream
from service.store.tables import publications, spent


class OverBudget(Exception):
    """A charge would pass the cap of its publication. Nothing may be published."""


@dataclass(frozen=True, kw_only=True)
class NewCharge:
    """What every record of [start, stop) pays for one fit, in its publication's currency: ε if pure, ρ if not."""

    start: int
    stop: int
    version: int | None
    amount: float


def accounts(connection: Connection, stream: int) -> list[Account]:
    """The accounts of every publication the stream ever had."""
    amounts: dict[int, list[tuple[int, int, Fraction]]] = {}
    for row in connection.execute(
        select(spent)
        .join(publications, publications.c.id == spent.c.publication_id)
        .where(publications.c.stream_id == stream)
        .order_by(spent.c.start)
    ):
        amounts.setdefault(row.publication_id, []).append((row.start, row.stop, Fraction(row.amount)))
    return [_account(each, amounts.get(each.id, [])) for each in of_stream(connection, stream)]


def append(connection: Connection, publication: Publication, capacity: Fraction, new: Sequence[NewCharge]) -> list[int]:
    """Charges the fits of one step and returns the charges' ids. The stream must be locked by the caller.

    Raises:
        OverBudget: a record would pay more than `capacity` in all; nothing is charged.
    """
    _charge_ranges(connection, publication.id, capacity, new)
    last = connection.execute(
        select(tables.charges.c.id, tables.charges.c.hash)
        .where(tables.charges.c.stream_id == publication.stream_id)
        .order_by(tables.charges.c.id.desc())
        .limit(1)
    ).one_or_none()
    identity, previous = (last.id, last.hash) if last else (0, None)
    moment = now(connection)
    pure = publication.kind == Kind.PURE
    rows: list[dict[str, Any]] = []
    for charge in new:
        identity += 1
        row: dict[str, Any] = {
            "id": identity,
            "start": charge.start,
            "end": charge.stop,
            "publication": publication.name,
            "version": charge.version,
            "epsilon": charge.amount if pure else None,
            "delta": 0.0 if pure else None,
            "rho": None if pure else charge.amount,
            "charged_at": timestamp(moment),
            "previous_hash": previous,
        }
        previous = row["hash"] = digest(row)
        rows.append(row)
    connection.execute(
        insert(tables.charges),
        [
            {name: value for name, value in row.items() if name not in ("publication", "end")}
            | {
                "stream_id": publication.stream_id,
                "publication_id": publication.id,
                "stop": row["end"],
                "charged_at": moment,
            }
            for row in rows
        ],
    )
    return [row["id"] for row in rows]


def page(connection: Connection, stream: int, *, limit: int, before: int | None) -> list[dict[str, Any]]:
    """Charges as they are served and hashed, newest first."""
    query = _shown().where(tables.charges.c.stream_id == stream).order_by(tables.charges.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(tables.charges.c.id < before)
    return [_served(row) for row in connection.execute(query)]


def charges(connection: Connection, stream: int, identities: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Some charges of a stream, by their ids."""
    query = _shown().where(tables.charges.c.stream_id == stream, tables.charges.c.id.in_(identities))
    return {row.id: _served(row) for row in connection.execute(query)}


def _served(row: Row[Any]) -> dict[str, Any]:
    """A charge as the API shows it; its hash is over just this, without `hash`."""
    return {
        "id": row.id,
        "start": row.start,
        "end": row.stop,
        "publication": row.publication,
        "version": row.version,
        "epsilon": row.epsilon,
        "delta": row.delta,
        "rho": row.rho,
        "charged_at": timestamp(row.charged_at),
        "hash": row.hash,
        "previous_hash": row.previous_hash,
    }


def digest(charge: dict[str, Any]) -> str:
    """SHA-256 over the RFC 8785 JSON of a charge without its `hash`, in hexadecimal."""
    return hashlib.sha256(rfc8785.dumps({name: value for name, value in charge.items() if name != "hash"})).hexdigest()


def _shown() -> Select[Any]:
    return select(tables.charges, publications.c.name.label("publication")).join(
        publications, publications.c.id == tables.charges.c.publication_id
    )


def now(connection: Connection) -> datetime:
    """By PostgreSQL's clock, the only one that all workers share."""
    moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return moment


def timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _charge_ranges(connection: Connection, publication: int, capacity: Fraction, new: Sequence[NewCharge]) -> None:
    """Adds the charges to the ranges they touch, and leaves the others alone: the cost is that of what changes."""
    start, stop = min(each.start for each in new), max(each.stop for each in new)
    # Neighbours are read too, so that equal ones become one range again.
    touched = and_(spent.c.publication_id == publication, spent.c.start <= stop, spent.c.stop >= start)
    profile = Profile.of(
        (row.start, row.stop, Fraction(row.amount)) for row in connection.execute(select(spent).where(touched))
    )
    for charge in new:
        profile = profile.add(charge.start, charge.stop, Fraction(charge.amount))
    if profile.maximum() > capacity:
        raise OverBudget("a record would be charged more than the cap of this publication")
    connection.execute(delete(spent).where(touched))
    connection.execute(
        insert(spent),
        [
            {"publication_id": publication, "start": low, "stop": high, "amount": _decimal(amount)}
            for low, high, amount in profile.ranges()
            if amount
        ],
    )


def _decimal(amount: Fraction) -> Decimal:
    """Exact, because sums of binary doubles have a power of two below the line: n/2^k = n·5^k/10^k."""
    power = amount.denominator.bit_length() - 1
    if amount.denominator != 1 << power:
        raise ValueError("not a sum of binary doubles")
    return Decimal((0, tuple(map(int, str(amount.numerator * 5**power))), -power))


def _account(publication: Publication, amounts: list[tuple[int, int, Fraction]]) -> Account:
    return Account(
        kind=Kind(publication.kind),
        cap=Loss(epsilon=Fraction(publication.epsilon), delta=Fraction(publication.delta)),
        start=publication.start,
        running=publication.state == "running",
        spent=Profile.of(amounts),
    )
