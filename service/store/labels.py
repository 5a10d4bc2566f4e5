"""Labels that people are asked for: which records of a publication's batch, who is at it, and what they said.

A request is made in the transaction that commits the coins, and is open until it is answered or its time is over, by
PostgreSQL's clock. The step that learns from a batch is taken when none is open any more, so that what it learns from
does not change under it; with it, all requests of the batch are deleted, answers too. What nobody asks for any more is
not there. Requests and answers are as secret as the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, exists, func, insert, or_, select, update

from service.store.database import NEW_LABELS, NEW_RELEASE, notify
from service.store.segments import erased
from service.store.tables import label_requests, publications

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import ColumnElement, Connection

    from service.store.publications import Publication


@dataclass(frozen=True, kw_only=True)
class Leased:
    """A record that somebody is asked to label until then; and how many requests of its batch are open, with this."""

    record: int
    until: datetime
    expires_at: datetime
    waiting: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How many labels a publication asks for now and has not got, and how many of the same batch it has."""

    waiting: int = 0
    answered: int = 0


def ask(connection: Connection, publication: Publication, records: Sequence[int], *, seconds: float) -> None:
    """Asks for the labels of records, for so long; of those that are still there, under the lock of their stream."""
    if not records:
        return
    mine = label_requests.c.publication_id == publication.id
    expires_at = func.clock_timestamp() + timedelta(seconds=seconds)
    connection.execute(
        insert(label_requests).values(
            [{"publication_id": publication.id, "record": record, "expires_at": expires_at} for record in records]
        )
    )
    _withdraw(connection, mine, erased(connection, publication.stream_id, min(records), max(records) + 1))
    notify(connection, NEW_RELEASE, publication.name)  # whoever waits for anything of the publication looks again


def is_open() -> ColumnElement[bool]:
    """That a request can still be answered; in a query."""
    return and_(label_requests.c.answered_at.is_(None), label_requests.c.expires_at > func.clock_timestamp())


def any_open() -> ColumnElement[bool]:
    """That a publication has an open request; in a query of publications."""
    return exists().where(label_requests.c.publication_id == publications.c.id, is_open())


def lease(connection: Connection, publication: int, *, seconds: float) -> Leased | None:
    """Asks somebody for the label of the next record that nobody is at; None: there is none."""
    free = (
        select(label_requests.c.record)
        .where(
            label_requests.c.publication_id == publication,
            is_open(),
            or_(label_requests.c.leased_until.is_(None), label_requests.c.leased_until <= func.clock_timestamp()),
        )
        .order_by(label_requests.c.record)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    row = connection.execute(
        update(label_requests)
        .where(label_requests.c.publication_id == publication, label_requests.c.record == free.scalar_subquery())
        .values(leased_until=func.clock_timestamp() + timedelta(seconds=seconds))
        .returning(label_requests.c.record, label_requests.c.leased_until, label_requests.c.expires_at)
    ).one_or_none()
    if row is None:
        return None
    return Leased(
        record=row.record,
        until=min(row.leased_until, row.expires_at),
        expires_at=row.expires_at,
        waiting=progress(connection, [publication])[publication].waiting,
    )


def progress(connection: Connection, of: Collection[int]) -> dict[int, Progress]:
    """Of each of these publications."""
    rows = connection.execute(
        select(
            label_requests.c.publication_id,
            func.count().filter(is_open()).label("waiting"),
            func.count(label_requests.c.answered_at).label("answered"),
        )
        .where(label_requests.c.publication_id.in_(of))
        .group_by(label_requests.c.publication_id)
    )
    found = {row.publication_id: Progress(waiting=row.waiting, answered=row.answered) for row in rows}
    return {each: found.get(each, Progress()) for each in of}


def answer(connection: Connection, publication: int, name: str, record: int, label: int) -> bool:
    """Whether that was asked for, and still is: then this is the answer, for ever."""
    taken = connection.execute(
        update(label_requests)
        .where(label_requests.c.publication_id == publication, label_requests.c.record == record, is_open())
        .values(label=label, answered_at=func.clock_timestamp())
    ).rowcount
    if taken:
        notify(connection, NEW_LABELS, name)
    return bool(taken)


def answers(connection: Connection, publication: int, start: int, stop: int) -> list[tuple[int, int]]:
    """(record, label) of what was answered of the records of [start, stop)."""
    rows = connection.execute(
        select(label_requests.c.record, label_requests.c.label).where(
            label_requests.c.publication_id == publication,
            label_requests.c.record >= start,
            label_requests.c.record < stop,
            label_requests.c.label.isnot(None),
        )
    )
    return [(row.record, row.label) for row in rows]


def forget(connection: Connection, publication: int) -> None:
    """All that a publication asked for, and what was answered: it was learnt from, or never will be."""
    connection.execute(delete(label_requests).where(label_requests.c.publication_id == publication))


def erase(connection: Connection, stream: int, start: int, stop: int) -> None:
    """The answers about records of a stream, and that they are asked for; batches count them all the same."""
    mine = select(publications.c.id).where(publications.c.stream_id == stream)
    _withdraw(connection, label_requests.c.publication_id.in_(mine), [(start, stop)])
    notify(connection, NEW_LABELS)


def _withdraw(connection: Connection, whose: ColumnElement[bool], ranges: Sequence[tuple[int, int]]) -> None:
    for start, stop in ranges:
        connection.execute(
            delete(label_requests).where(whose, label_requests.c.record >= start, label_requests.c.record < stop)
        )
