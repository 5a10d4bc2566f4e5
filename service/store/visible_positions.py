"""A publication's clock, worst record and state as they are shown: as they were when its stream was confirmed last.

They are committed with each step, and PostgreSQL may still forget that: see `publishing.confirmation`. A table of its
own holds them, since the process that confirms a stream must not wait for the process that publishes on it.

Statement. A publication that has ended is shown as running until every charge and release of its stream that was
committed before its end is confirmed. Until then it reserves all that it reserved while it ran: fresh noise may have
decided the end, and neither state nor reason nor reserve may tell of noise whose charge could still be lost.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    bindparam,
    func,
    insert,
    or_,
    select,
    update,
)

from service.store.database import read, write
from service.store.tables import publications, shown

_CHANGES = ("position", "due", "worst_amount", "state")
_NEVER_FALL = ("position", "worst_amount")


class PendingVisibility(NamedTuple):
    """Position, worst charge and state of a publication that are committed and not visible yet."""

    stream_id: int
    publication_id: int
    position: int
    due: int
    worst_record: int | None
    worst_amount: Decimal
    state: str
    reason: str | None

    @property
    def has_ended(self) -> bool:
        return self.state != "running"


def unseen(connection: Connection, identities: Sequence[int]) -> list[PendingVisibility]:
    """Return which publications of these streams have committed changes that are not visible yet."""
    return of_rows(read(connection, *needed(identities)))


def needed(identities: Sequence[int]) -> tuple[Select[Any], dict[str, Any]]:
    """Return the query whose rows `of_rows` parses, with its values."""
    return _UNSEEN, {"streams": list(identities)}


def of_rows(rows: Sequence[Any]) -> list[PendingVisibility]:
    """Return committed changes that are not visible yet, of the rows of the query of `needed`."""
    return [PendingVisibility(*row) for row in rows]


_UNSEEN = (
    select(
        publications.c.stream_id, publications.c.id, *(publications.c[name] for name in PendingVisibility._fields[2:])
    )
    .join(shown, shown.c.publication_id == publications.c.id)
    .where(
        or_(*(publications.c[name] != shown.c[name] for name in _CHANGES)),
        publications.c.stream_id == func.any(bindparam("streams", type_=ARRAY(BigInteger))),
    )
)


def show(connection: Connection, seen: list[PendingVisibility]) -> None:
    """Show what was `unseen` when the stream was confirmed; who is late with an older state changes nothing."""
    if seen:
        write(connection, _SHOW, *({f"new_{name}": value for name, value in each._asdict().items()} for each in seen))


_SHOW = (
    update(shown)
    .where(
        shown.c.publication_id == bindparam("new_publication_id"),
        *(shown.c[name] <= bindparam(f"new_{name}") for name in _NEVER_FALL),
        or_(shown.c.state == "running", shown.c.state == bindparam("new_state")),
    )
    .values({name: bindparam(f"new_{name}") for name in PendingVisibility._fields[2:]})
)


def begin(connection: Connection, publication: int, *, due: int) -> None:
    """Show a new publication: nothing is charged yet."""
    clock = {"position": 0, "due": due, "worst_amount": Decimal(0)}
    connection.execute(insert(shown).values(publication_id=publication, **clock))


def columns() -> list[ColumnElement[object]]:
    """Return the visible columns, labelled `visible_…`, for a query of publications."""
    return [shown.c[name].label(f"visible_{name}") for name in PendingVisibility._fields[2:]]
