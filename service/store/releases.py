"""Releases: noisy models, each written once and never changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, insert, select

from service.store import ledger
from service.store.tables import releases


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


@dataclass(frozen=True, kw_only=True)
class Release(ReleaseInfo):
    """One version, whole."""

    parameters: NDArray[np.float64]


_INFO = [column for column in releases.c if column is not releases.c.parameters]


def append(
    connection: Connection,
    *,
    publication: int,
    stream: int,
    version: int,
    charge: int,
    time: int,
    role: str,
    window: tuple[int, int],
    fit: tuple[int, int],
    parent: int | None,
    parameters: NDArray[np.float64],
    model: dict[str, Any],
    noise: dict[str, Any],
    published_at: datetime,
) -> None:
    """(publication, version) is unique: a second writer of the same version fails here, whatever it believed."""
    connection.execute(
        insert(releases).values(
            publication_id=publication,
            version=version,
            stream_id=stream,
            charge=charge,
            time=time,
            role=role,
            window_start=window[0],
            window_stop=window[1],
            fit_start=fit[0],
            fit_stop=fit[1],
            parent=parent,
            shape=list(parameters.shape),
            parameters=parameters.astype("<f8").tobytes(),
            model=model,
            noise=noise,
            published_at=published_at,
        )
    )


def find(connection: Connection, publication: int, version: int) -> Release | None:
    row = connection.execute(
        select(releases).where(releases.c.publication_id == publication, releases.c.version == version)
    ).one_or_none()
    return Release(**_told(connection, [row])[0], parameters=_array(row)) if row else None


def page(connection: Connection, publication: int, *, limit: int, before: int | None) -> list[ReleaseInfo]:
    """Newest first."""
    query = (
        select(*_INFO).where(releases.c.publication_id == publication).order_by(releases.c.version.desc()).limit(limit)
    )
    if before is not None:
        query = query.where(releases.c.version < before)
    return [ReleaseInfo(**told) for told in _told(connection, connection.execute(query).all())]


def models_after(connection: Connection, publication: int, version: int, *, limit: int) -> list[ReleaseInfo]:
    """Those with role `model`, oldest first."""
    query = (
        select(*_INFO)
        .where(releases.c.publication_id == publication, releases.c.version > version, releases.c.role == "model")
        .order_by(releases.c.version)
        .limit(limit)
    )
    return [ReleaseInfo(**told) for told in _told(connection, connection.execute(query).all())]


def parameters(connection: Connection, publication: int, version: int) -> NDArray[np.float64]:
    row = connection.execute(
        select(releases.c.parameters, releases.c.shape).where(
            releases.c.publication_id == publication, releases.c.version == version
        )
    ).one()
    return _array(row)


def _told(connection: Connection, rows: Sequence[Any]) -> list[dict[str, Any]]:
    """All but the parameters."""
    charge = ledger.charges(connection, rows[0].stream_id, [row.charge for row in rows]) if rows else {}
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
            "charge": charge[row.charge],
            "published_at": row.published_at,
        }
        for row in rows
    ]


def _array(row: Any) -> NDArray[np.float64]:
    return np.frombuffer(row.parameters, dtype="<f8").reshape(row.shape)
