"""The memory of a mechanism between two steps: parts, each written once, as secret as records.

They are noise that later releases take back, and what follows from it: whoever reads them and the releases knows
something of records. No call reads them but the publisher's. They come and go in the transaction that publishes what
they were made with, so that a step that is not published has never been; what no later step needs is deleted. Their
digest is kept beside them: a step that went on from others would cost records more than they were charged.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import ARRAY, BigInteger, Connection, Select, bindparam, delete, func, insert, select
from sqlalchemy.dialects import postgresql

from service.store.database import pipelined, read, read_together, write
from service.store.step_records import SavedChange, SavedState
from service.store.tables import memories, parts


def load(connection: Connection, publication: int) -> SavedState:
    """All that a publication remembers."""
    return of_rows(*read_together(connection, *needed(publication)))


def needed(publication: int) -> tuple[tuple[Select[Any], dict[str, Any]], ...]:
    """Return what is to be read for `of_rows`."""
    mine = {"publication": publication}
    return (_PARTS, mine), (_DIGEST, mine)


def of_rows(rows: Sequence[Any], digest: Sequence[Any]) -> SavedState:
    """Return all that a publication remembers, of what was `needed`."""
    vectors = {row.number: np.frombuffer(row.content, dtype="<f8").reshape(row.shape) for row in rows}
    return SavedState(parts=vectors, digest=digest[0].digest if digest else None)


_MINE = bindparam("publication", type_=BigInteger)
_PARTS = select(parts).where(parts.c.publication_id == _MINE).order_by(parts.c.number)
_DIGEST = select(memories.c.digest).where(memories.c.publication_id == _MINE)


def keep(connection: Connection, publication: int, left: SavedChange) -> None:
    """Writes what is new of a publication's memory and deletes what is no longer in it; by their numbers."""
    if left.digest is None:
        return
    known = {row.number for row in read(connection, _NUMBERS, {"publication": publication})}
    new = [
        {
            "publication_id": publication,
            "number": number,
            "shape": list(values.shape),
            "content": values.astype("<f8").tobytes(),
        }
        for number, values in left.new.items()
        if number not in known
    ]
    with pipelined(connection):
        if gone := known.difference(left.numbers):
            write(connection, _DELETE, {"publication": publication, "gone": sorted(gone)})
        if new:
            write(connection, _INSERT, *new)
        write(connection, _PUT, {"publication_id": publication, "digest": left.digest})


_NUMBERS = select(parts.c.number).where(parts.c.publication_id == _MINE)
_DELETE = delete(parts).where(
    parts.c.publication_id == _MINE, parts.c.number == func.any(bindparam("gone", type_=ARRAY(BigInteger)))
)
_INSERT = insert(parts)
_PUT = postgresql.insert(memories)
_PUT = _PUT.on_conflict_do_update(index_elements=["publication_id"], set_={"digest": _PUT.excluded.digest})


def forget(connection: Connection, publication: int) -> None:
    """All that a publication remembers: it takes no further step."""
    for table in (parts, memories):
        connection.execute(delete(table).where(table.c.publication_id == publication))
