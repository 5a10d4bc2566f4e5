"""Charges as they are served and hashed: each names the hash of the one before, so that they are a chain."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Connection, Row, Select, bindparam, func, select

from service.store import digests
from service.store.publications import Publication
from service.store.rows import Rows
from service.store.tables import charges, publications, streams

AS_SERVED: Select[Any] = select(charges, publications.c.name.label("publication")).join(
    publications, publications.c.id == charges.c.publication_id
)
"""Rows for `served`."""
_WALK = AS_SERVED.order_by(charges.c.id)


def newest(connection: Connection, publication: Publication) -> dict[str, Any] | None:
    """The newest charge of a publication, as it is served."""
    query = AS_SERVED.where(charges.c.stream_id == publication.stream_id, charges.c.publication_id == publication.id)
    row = connection.execute(query.order_by(charges.c.id.desc()).limit(1)).one_or_none()
    return None if row is None else served(row)


def walk(rows: Rows, stream: int) -> Iterator[dict[str, Any]]:
    """Every charge of a stream as it is served and hashed, oldest first; however many, they take no memory."""
    return map(served, rows.of(_WALK, charges.c.stream_id, stream))


def page(connection: Connection, stream: int, *, limit: int, before: int | None) -> list[dict[str, Any]]:
    """Charges as they are served and hashed, newest first; only those that are confirmed."""
    confirmed = select(streams.c.confirmed_charges).where(streams.c.id == stream).scalar_subquery()
    query = (
        AS_SERVED.where(charges.c.stream_id == stream, charges.c.id <= confirmed)
        .order_by(charges.c.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(charges.c.id < before)
    return [served(row) for row in connection.execute(query)]


def of_ids(connection: Connection, stream: int, identities: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Some charges of a stream, by their ids."""
    bound = {"stream": stream, "identities": list(identities)}
    return {row.id: served(row) for row in connection.execute(_OF_IDS, bound)}


_OF_IDS = AS_SERVED.where(
    charges.c.stream_id == bindparam("stream", type_=BigInteger),
    charges.c.id == func.any(bindparam("identities", type_=ARRAY(BigInteger))),
)


def served(row: Row[Any]) -> dict[str, Any]:
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
        "charged_at": digests.timestamp(row.charged_at),
        "hash": row.hash,
        "previous_hash": row.previous_hash,
    }


def digest(charge: dict[str, Any]) -> str:
    """SHA-256 over the RFC 8785 JSON of a charge without its `hash`, in hexadecimal."""
    return digests.of({name: value for name, value in charge.items() if name != "hash"})


def intact(charge: dict[str, Any]) -> bool:
    """Whether it is what its hash says. A charge without RFC 8785 JSON, like NaN, was never made."""
    try:
        return bool(charge["hash"] == digest(charge))
    except ValueError:
        return False
