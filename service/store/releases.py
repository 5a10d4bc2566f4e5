"""Releases: noisy models, each written once and never changed; the digests of a publication's releases are a chain."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Float,
    Select,
    and_,
    bindparam,
    cast,
    func,
    insert,
    select,
    text,
)

from service.privacy.accounting.events import NoisyCounts
from service.store import digests
from service.store.charges import of_ids
from service.store.database import write
from service.store.publications import Publication
from service.store.rows import Rows
from service.store.step_records import NewRelease
from service.store.streams import Stream
from service.store.tables import charges, releases, streams


@dataclass(frozen=True, kw_only=True)
class ReleaseInfo:
    """One version, without its parameters' values. Ranges and `time` are absolute record numbers."""

    version: int
    time: int
    role: str
    window: tuple[int, int]
    fit: tuple[int, int]
    parent: int | None
    shape: list[int]
    model: dict[str, Any]
    noise: dict[str, Any]
    charge: dict[str, Any]
    published_at: datetime
    counts: NDArray[np.float64] | None = None
    """An evaluation has its parameters, in which all of its figures are; None of any other."""


@dataclass(frozen=True, kw_only=True)
class Release(ReleaseInfo):
    """One version, whole."""

    parameters: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Versions `first` to `last`: the newest's time, and between what their noise's scale and their charge lie.

    `on_record`: what all of them have charged one record, which whoever asked named.
    """

    first: int
    last: int
    models: int
    time: int
    published_at: datetime
    least_noise: float | None
    most_noise: float | None
    least_charge: float | None
    most_charge: float | None
    on_record: float


_INSERT = insert(releases)
_INFO = [column for column in releases.c if column is not releases.c.parameters]
_OF_CHARGE = ("publication_id", "version", "start", "stop", "epsilon", "rho", "hash")


def append(
    connection: Connection,
    publication: Publication,
    stream: Stream,
    new: Sequence[NewRelease],
    charges: Sequence[dict[str, Any]],
    published_at: datetime,
) -> str:
    """Stores what one step released, each with its charge; returns the digest of the last, with which the next begins.

    They are numbered on from the stream's. (publication, version) is unique: a second writer of the same version fails
    here, whatever it believed.
    """
    rows: list[dict[str, Any]] = []
    previous = publication.digest
    for each, charge in zip(new, charges, strict=True):
        row = {
            "publication_id": publication.id,
            "version": each.version,
            "stream_id": publication.stream_id,
            "number": stream.releases + len(rows) + 1,
            "charge": charge["id"],
            "time": each.time,
            "role": each.role,
            "window_start": each.window[0],
            "window_stop": each.window[1],
            "fit_start": each.fit[0],
            "fit_stop": each.fit[1],
            "parent": each.parent,
            "shape": list(each.parameters.shape),
            "parameters": each.parameters.astype("<f8").tobytes(),
            "model": each.model,
            "noise": each.noise,
            "published_at": published_at,
        }
        sha256 = hashlib.sha256(row["parameters"]).hexdigest()
        previous = digest(
            row,
            publication=publication.name,
            charge=charge["hash"],
            parameters=sha256,
            previous=previous,
        )
        rows.append(row | {"digest": previous})
    write(connection, _INSERT, *rows)
    return previous


def digest(row: Mapping[str, Any], *, publication: str, charge: str, parameters: str, previous: str) -> str:
    """Return the digest of a release and of the digest before it, which is the publication's promise for the first.

    row: a row of `releases`. charge: the hash of its charge. parameters: the SHA-256 of their bytes, in hexadecimal.
    """
    content = {
        "publication": publication,
        "version": row["version"],
        "charge": charge,
        "time": row["time"],
        "role": row["role"],
        "window": [row["window_start"], row["window_stop"]],
        "fit": [row["fit_start"], row["fit_stop"]],
        "parent": row["parent"],
        "shape": row["shape"],
        "parameters": parameters,
        "model": row["model"],
        "noise": row["noise"],
        "published_at": digests.timestamp(row["published_at"]),
        "previous_digest": previous,
    }
    return digests.of(content)


def intact(row: Mapping[str, Any], *, publication: str, previous: str) -> bool:
    """Whether it is what its digest says; a row as `walk` tells it. None was published without RFC 8785 JSON."""
    content = {"publication": publication, "charge": row["charged_hash"], "parameters": row["sha256"]}
    try:
        return bool(row["digest"] == digest(row, **content, previous=previous))
    except ValueError:
        return False


def walk(rows: Rows, publication: int) -> Iterator[dict[str, Any]]:
    """Every release, oldest first, with its charge's columns as `charged_…` and its parameters' SHA-256, `sha256`."""
    return (row._asdict() for row in rows.of(_WALK, releases.c.publication_id, publication))


def of_units(connection: Connection, publication: int) -> list[tuple[int, int, int, int]]:
    """Return version, start and stop of the fit, and stated number of units, of each release that states one."""
    query = text(
        "SELECT version, fit_start, fit_stop, CAST(model ->> 'units' AS bigint) FROM releases "
        "WHERE publication_id = :publication AND model ->> 'units' IS NOT NULL ORDER BY version"
    )
    return [tuple(row) for row in connection.execute(query, {"publication": publication})]


_charge = charges.alias()
_WALK = (
    select(
        *_INFO,
        func.encode(func.sha256(releases.c.parameters), "hex").label("sha256"),
        *(_charge.c[name].label(f"charged_{name}") for name in _OF_CHARGE),
    )
    .join(_charge, and_(_charge.c.stream_id == releases.c.stream_id, _charge.c.id == releases.c.charge))
    .order_by(releases.c.version)
)


def is_visible() -> ColumnElement[bool]:
    """Return the condition that the high-water mark holds a release; in a query of releases.

    One that it does not hold may be lost with the database's newest commits, and drawn again: nobody may see it.
    """
    return releases.c.number <= (
        select(streams.c.confirmed_releases).where(streams.c.id == releases.c.stream_id).scalar_subquery()
    )


def find(connection: Connection, publication: int, version: int) -> Release | None:
    """One version, if it is visible."""
    row = connection.execute(
        select(releases).where(releases.c.publication_id == publication, releases.c.version == version, is_visible())
    ).one_or_none()
    return Release(**_without_parameters(connection, [row])[0], parameters=array(row)) if row else None


def page(connection: Connection, publication: int, *, limit: int, before: int | None) -> list[ReleaseInfo]:
    """The visible ones, newest first."""
    bound = {"publication": publication, "limit": limit}
    if before is not None:
        bound["before"] = before
    rows = connection.execute(_page(before is not None), bound).all()
    return [ReleaseInfo(**row) for row in _without_parameters(connection, rows)]


@cache
def _page(before: bool) -> Select[Any]:
    query = (
        select(*_INFO)
        .where(releases.c.publication_id == bindparam("publication", type_=BigInteger), is_visible())
        .order_by(releases.c.version.desc())
        .limit(bindparam("limit", type_=BigInteger))
    )
    return query.where(releases.c.version < bindparam("before", type_=BigInteger)) if before else query


def outlined(connection: Connection, publication: int, *, most: int, record: int) -> list[Stretch]:
    """All visible releases as at most so many stretches of versions, oldest first; few of them one by one.

    A stretch begins where a multiple of its length ends, so that most stay as they are when there are more releases.
    """
    newest = connection.execute(
        select(func.max(releases.c.version)).where(releases.c.publication_id == publication, is_visible())
    ).scalar_one()
    length = 1
    while (newest or 0) > most * length:
        length *= 2
    scale = cast(releases.c.noise["scale"].as_string(), Float(53))
    amount = func.coalesce(charges.c.rho, charges.c.epsilon)
    on_record = and_(charges.c.start <= record, record < charges.c.stop)
    query = (
        select(
            func.min(releases.c.version).label("first"),
            func.max(releases.c.version).label("last"),
            func.count().filter(releases.c.role == "model").label("models"),
            func.max(releases.c.time).label("time"),
            func.max(releases.c.published_at).label("published_at"),
            func.min(scale).label("least_noise"),
            func.max(scale).label("most_noise"),
            func.min(amount).label("least_charge"),
            func.max(amount).label("most_charge"),
            func.coalesce(func.sum(amount).filter(on_record), 0.0).label("on_record"),
        )
        .outerjoin(charges, and_(charges.c.stream_id == releases.c.stream_id, charges.c.id == releases.c.charge))
        .where(releases.c.publication_id == publication, is_visible())
        .group_by((releases.c.version - 1) // length)
        .order_by("first")
    )
    return [Stretch(**row._asdict()) for row in connection.execute(query)]


def models_after(connection: Connection, publication: int, version: int, *, limit: int) -> list[ReleaseInfo]:
    """The visible ones with role `model`, oldest first."""
    query = (
        select(*_INFO)
        .where(
            releases.c.publication_id == publication,
            releases.c.version > version,
            releases.c.role == "model",
            is_visible(),
        )
        .order_by(releases.c.version)
        .limit(limit)
    )
    return [ReleaseInfo(**row) for row in _without_parameters(connection, connection.execute(query).all())]


def parameters(connection: Connection, publication: int, version: int) -> NDArray[np.float64]:
    row = connection.execute(
        select(releases.c.parameters, releases.c.shape).where(
            releases.c.publication_id == publication, releases.c.version == version
        )
    ).one()
    return array(row)


def _without_parameters(connection: Connection, rows: Sequence[Any]) -> list[dict[str, Any]]:
    """All but the parameters, which only evaluations have, as `counts`."""
    counts = _counts(connection, [row for row in rows if row.noise.get("added_to") == NoisyCounts.added_to])
    paid = of_ids(connection, rows[0].stream_id, [row.charge for row in rows]) if rows else {}
    return [
        {
            "version": row.version,
            "time": row.time,
            "role": row.role,
            "window": (row.window_start, row.window_stop),
            "fit": (row.fit_start, row.fit_stop),
            "parent": row.parent,
            "shape": row.shape,
            "model": row.model,
            "noise": row.noise,
            "charge": paid[row.charge],
            "published_at": row.published_at,
            "counts": counts.get(row.version),
        }
        for row in rows
    ]


def _counts(connection: Connection, rows: Sequence[Any]) -> dict[int, NDArray[np.float64]]:
    if not rows:
        return {}
    query = select(releases.c.version, releases.c.parameters, releases.c.shape).where(
        releases.c.publication_id == rows[0].publication_id, releases.c.version.in_([row.version for row in rows])
    )
    return {row.version: array(row) for row in connection.execute(query)}


def array(row: Any) -> NDArray[np.float64]:
    """Return the parameters of a row that has their bytes and their shape."""
    return np.frombuffer(row.parameters, dtype="<f8").reshape(row.shape)
