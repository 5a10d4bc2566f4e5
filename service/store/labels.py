"""Labels that people are asked for: which records of a publication's batch, who is at it, and what they said.

A request is made in the transaction that commits the coins, and is open until it is answered or its time is over, by
PostgreSQL's clock. The step that learns from a batch is taken when none is open any more, so that what it learns from
does not change under it; with it, all requests of the batch are deleted, answers too. Requests and answers are as
secret as the records.

Statement. A selected slot is without bytes if its record was erased, or came empty (it is not finite after the
feature map). Its request is `set aside`: no person gets it, and it takes no answer, but it is open until its time is
over. An erasure deletes the answer, if there is one, so that the request is open again until the same time. So a set
aside request adds to `progress`, `any_open` and `answers` what a request adds that nobody answers: a function of the
slot's coin and of the time at which it was tossed. From the erasure on, none of them depends on what the record was,
on whether the slot came empty, or on whether and how it had been labelled. Erasing a record is an act of the
operator, and public. A step that began before the erasure may have read the record and its label.

Not stated: a person who sees every request that is handed out sees that a slot without bytes is not among them.
Against that person the guarantee holds for replacing one non-empty record by another, no more.

Why no answer survives: `ask` and `erase` run under the stream's lock, one after the other. `erase` updates every
request in its range, answered or not. A concurrent `answer` that locked the row first is undone by it; one that comes
second looks at the row again, as PostgreSQL does after waiting for a row, and finds it set aside. `lease` does the
same, and its caller reads the record afterwards, in another transaction, which sees an erasure that came between.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Select,
    and_,
    delete,
    exists,
    func,
    insert,
    literal_column,
    not_,
    or_,
    select,
    update,
)

from service.store.database import NEW_LABELS, NEW_RELEASE, notify
from service.store.publications import Publication
from service.store.segments import erased
from service.store.tables import label_requests, publications, streams

NEVER = literal_column("'infinity'::timestamptz", DateTime(timezone=True))
"""The end of the lease of a request that is set aside. Python has no such time: don't select it."""


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


def ask(
    connection: Connection,
    publication: Publication,
    records: Sequence[int],
    empty: Sequence[int],
    *,
    seconds: float,
    charge: int,
) -> None:
    """Ask for the labels of records, for so many seconds. The caller holds the lock of their stream.

    empty: those of them that were without bytes when their coins were tossed. charge: the stream's newest; the requests
    are visible once it is confirmed, since the coins that chose them could be lost before.
    """
    if not records:
        return
    expires_at = func.clock_timestamp() + timedelta(seconds=seconds)
    connection.execute(
        insert(label_requests).values(
            [
                {"publication_id": publication.id, "record": record, "expires_at": expires_at, "charge": charge}
                for record in records
            ]
        )
    )
    mine = label_requests.c.publication_id == publication.id
    gone = erased(connection, publication.stream_id, min(records), max(records) + 1)
    _set_aside(connection, mine, [*((each, each + 1) for each in empty), *gone])
    notify(connection, NEW_RELEASE, publication.name)  # whoever waits for anything of the publication looks again


def is_open() -> ColumnElement[bool]:
    """Return the condition that a request can still be answered; in a query."""
    return and_(label_requests.c.answered_at.is_(None), label_requests.c.expires_at > func.clock_timestamp())


def any_open() -> ColumnElement[bool]:
    """Return the condition that a publication has an open request; in a query of publications."""
    return exists().where(label_requests.c.publication_id == publications.c.id, is_open())


def _visible(identities: Collection[int]) -> ColumnElement[bool]:
    """Which requests may be shown, counted and answered: those of these publications whose coins are confirmed."""
    confirmed = (
        select(streams.c.confirmed_charges)
        .join(publications, publications.c.stream_id == streams.c.id)
        .where(publications.c.id == label_requests.c.publication_id)
        .scalar_subquery()
    )
    return and_(label_requests.c.publication_id.in_(identities), func.coalesce(label_requests.c.charge, 0) <= confirmed)


def lease(connection: Connection, publication: int, *, seconds: float) -> Leased | None:
    """Ask somebody for the label of the next record that nobody is at; None: there is none."""
    free = _free(publication, seconds).order_by(label_requests.c.record).limit(1).with_for_update(skip_locked=True)
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


def give_back(connection: Connection, publication: int, record: int) -> None:
    """End the lease of a record that could not be shown. One that was set aside meanwhile stays so."""
    mine = (label_requests.c.publication_id == publication, label_requests.c.record == record)
    leased = label_requests.c.leased_until.is_distinct_from(NEVER)
    connection.execute(update(label_requests).where(*mine, leased).values(leased_until=None))


def any_free(connection: Connection, publication: int, *, seconds: float) -> bool:
    """Return whether a record waits for its label and is leased to nobody. seconds: the length of leases."""
    return bool(connection.execute(select(_free(publication, seconds).exists())).scalar_one())


def _free(publication: int, seconds: float) -> Select[tuple[int]]:
    now, until = func.clock_timestamp(), label_requests.c.leased_until
    # One that ends too late was taken by a clock that was ahead and has been set right since.
    lapsed = or_(until <= now, and_(until > now + timedelta(seconds=seconds), until != NEVER))
    return select(label_requests.c.record).where(
        _visible([publication]), is_open(), or_(label_requests.c.leased_until.is_(None), lapsed)
    )


def progress(connection: Connection, of: Collection[int]) -> dict[int, Progress]:
    """Return it for each of these publications."""
    rows = connection.execute(
        select(
            label_requests.c.publication_id,
            func.count().filter(is_open()).label("waiting"),
            func.count(label_requests.c.answered_at).label("answered"),
        )
        .where(_visible(of))
        .group_by(label_requests.c.publication_id)
    )
    progress_of = {row.publication_id: Progress(waiting=row.waiting, answered=row.answered) for row in rows}
    return {each: progress_of.get(each, Progress()) for each in of}


def answer(connection: Connection, publication: int, name: str, record: int, label: int) -> bool:
    """Return whether the label is still asked for of somebody; then this is the answer, for as long as it is kept."""
    set_aside = label_requests.c.leased_until.is_not_distinct_from(NEVER)
    taken = connection.execute(
        update(label_requests)
        .where(_visible([publication]), label_requests.c.record == record, is_open(), not_(set_aside))
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
    """Delete the answers about records [start, stop) of a stream, and ask nobody for them any more.

    The caller holds the stream's lock.
    """
    mine = select(publications.c.id).where(publications.c.stream_id == stream)
    _set_aside(connection, label_requests.c.publication_id.in_(mine), [(start, stop)])


def _set_aside(connection: Connection, whose: ColumnElement[bool], ranges: Sequence[tuple[int, int]]) -> None:
    """Set requests aside, see the module. All of the ranges, answered or not: an answer may come at this moment."""
    for start, stop in ranges:
        connection.execute(
            update(label_requests)
            .where(whose, label_requests.c.record >= start, label_requests.c.record < stop)
            .values(leased_until=NEVER, answered_at=None, label=None)
        )
