"""The explorer's data sets and explorations. Nothing here is of a stream, and no ledger knows of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Connection, Row, Text, delete, func, insert, literal, select, update
from sqlalchemy.dialects import postgresql

from service.store import leases
from service.store.database import read_together
from service.store.tables import datasets, explorations, findings
from service.store.tables import leases as leased

MAX_DATASETS = 20  # that a key may keep
MAX_KEPT = 50  # explorations of a key; then its oldest that has ended goes
UNDER_WAY = ("waiting", "running")


class TooMany(Exception):
    """So much is kept, or waits, already."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A data set without its content."""

    id: int
    key_id: int
    name: str
    records: int
    features: int
    classes: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """`done`: how many of its cells are; `progress`: of the one that runs, from 0 to 1."""

    id: int
    key_id: int
    comparison: dict[str, Any]
    cells: int
    done: int
    state: str
    reason: str | None
    progress: float
    created_at: datetime
    ended_at: datetime | None


_INFO = [column for column in datasets.c if column is not datasets.c.content]


def add_dataset(connection: Connection, key: int, name: str, shape: Mapping[str, int], content: bytes) -> DatasetInfo:
    """Keeps one. Raises TooMany."""
    _in_turn(connection)
    stored = select(func.count()).select_from(datasets).where(datasets.c.key_id == key)
    if connection.execute(stored).scalar_one() >= MAX_DATASETS:
        raise TooMany
    values = {"key_id": key, "name": name, "content": content, **shape}
    return DatasetInfo(**connection.execute(insert(datasets).values(values).returning(*_INFO)).one()._asdict())


def datasets_of(connection: Connection, key: int) -> list[DatasetInfo]:
    rows = connection.execute(select(*_INFO).where(datasets.c.key_id == key).order_by(datasets.c.id.desc()))
    return [DatasetInfo(**row._asdict()) for row in rows]


def find_dataset(connection: Connection, identity: int, key: int) -> DatasetInfo | None:
    row = connection.execute(select(*_INFO).where(datasets.c.id == identity, datasets.c.key_id == key)).one_or_none()
    return DatasetInfo(**row._asdict()) if row else None


def content(connection: Connection, identity: int) -> bytes | None:
    content_bytes: bytes | None = connection.execute(
        select(datasets.c.content).where(datasets.c.id == identity)
    ).scalar_one_or_none()
    return content_bytes


def drop_dataset(connection: Connection, identity: int) -> None:
    connection.execute(delete(datasets).where(datasets.c.id == identity))


def add(
    connection: Connection, key: int, comparison: Mapping[str, Any], cells: int, *, most_waiting: int
) -> Exploration:
    """Keeps one, to be run when those before it are. Raises TooMany where too many wait."""
    _in_turn(connection)
    under_way = select(func.count()).select_from(explorations).where(explorations.c.state.in_(UNDER_WAY))
    if connection.execute(under_way).scalar_one() >= most_waiting:
        raise TooMany
    ended = explorations.c.key_id == key, explorations.c.state.not_in(UNDER_WAY)
    newest = select(explorations.c.id).where(*ended).order_by(explorations.c.id.desc()).limit(MAX_KEPT - 1)
    connection.execute(delete(explorations).where(*ended, explorations.c.id.not_in(newest)))
    values = {"key_id": key, "comparison": comparison, "cells": cells}
    identity = connection.execute(insert(explorations).values(values).returning(explorations.c.id)).scalar_one()
    leases.create(connection, leases.exploration(identity))
    return _get(connection, identity)


def find(connection: Connection, identity: int, key: int) -> Exploration | None:
    mine = select(explorations.c.id).where(explorations.c.id == identity, explorations.c.key_id == key)
    return _get(connection, identity) if connection.execute(mine).one_or_none() else None


def page(connection: Connection, key: int, *, limit: int, before: int | None) -> list[Exploration]:
    query = _query().where(explorations.c.key_id == key).order_by(explorations.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(explorations.c.id < before)
    return [_exploration(row) for row in connection.execute(query)]


def findings_by_cell(connection: Connection, identity: int) -> dict[int, dict[str, Any]]:
    """Return what its cells found, by their numbers."""
    rows = connection.execute(
        select(findings.c.cell, findings.c.found).where(findings.c.exploration_id == identity).order_by(findings.c.cell)
    )
    return {row.cell: row.found for row in rows}


def cancel(connection: Connection, identity: int) -> None:
    """If it has not ended, it ends here; whoever runs it stops when he next looks."""
    end(connection, identity, "cancelled")


def under_way(connection: Connection) -> Sequence[int]:
    """Those that wait or run, the oldest first."""
    (rows,) = read_together(connection, (_UNDER_WAY, {}))
    return [row.id for row in rows]


_UNDER_WAY = (
    select(explorations.c.id)
    .where(explorations.c.state == func.any(literal(list(UNDER_WAY), ARRAY(Text))))
    .order_by(explorations.c.id)
)


def begin(connection: Connection, identity: int) -> Exploration | None:
    """One that is run from now on; None if it has ended meanwhile."""
    running = update(explorations).where(explorations.c.id == identity, explorations.c.state.in_(UNDER_WAY))
    begun = connection.execute(running.values(state="running", progress=0.0)).rowcount
    return _get(connection, identity) if begun else None


def report(connection: Connection, identity: int, progress: float) -> bool:
    """How far the cell that runs is; False: it was cancelled."""
    running = explorations.c.id == identity, explorations.c.state == "running"
    return bool(connection.execute(update(explorations).where(*running).values(progress=progress)).rowcount)


def keep(connection: Connection, identity: int, cell: int, what: Mapping[str, Any]) -> None:
    """Store the result of a cell; if two ran the same cell, that of the first."""
    connection.execute(
        postgresql.insert(findings).values(exploration_id=identity, cell=cell, found=what).on_conflict_do_nothing()
    )


def end(connection: Connection, identity: int, state: str, reason: str | None = None) -> None:
    going = explorations.c.id == identity, explorations.c.state.in_(UNDER_WAY)
    ended = {"state": state, "reason": reason, "ended_at": func.now()}
    if connection.execute(update(explorations).where(*going).values(ended)).rowcount:
        connection.execute(delete(leased).where(leased.c.resource == leases.exploration(identity)))


def _in_turn(connection: Connection) -> None:
    """Lock what is counted and then added to, so that two transactions do not both find room for one more."""
    connection.execute(select(func.pg_advisory_xact_lock(func.hashtext("perennial explorer"))))


def _query() -> Any:
    done = (
        select(func.count())
        .select_from(findings)
        .where(findings.c.exploration_id == explorations.c.id)
        .scalar_subquery()
        .label("done")
    )
    return select(explorations, done)


def _get(connection: Connection, identity: int) -> Exploration:
    return _exploration(connection.execute(_query().where(explorations.c.id == identity)).one())


def _exploration(row: Row[Any]) -> Exploration:
    return Exploration(**row._asdict())
