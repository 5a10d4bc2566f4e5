"""What a mechanism has to remember between two steps: parts, each written once, as secret as records.

They are noise that later releases take back, and what follows from it: whoever reads them and the releases knows
something of records. No call reads them but the publisher's. They come and go in the transaction that publishes what
they were made with, so that a step that is not published has never been; what no later step needs is deleted.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, insert, select

from service.store.tables import parts

Values = NDArray[np.float64]


def load(connection: Connection, publication: int) -> list[tuple[int, Values]]:
    """All parts of a publication with their numbers, in the order of these."""
    query = select(parts).where(parts.c.publication_id == publication).order_by(parts.c.number)
    return [
        (row.number, np.frombuffer(row.content, dtype="<f8").reshape(row.shape)) for row in connection.execute(query)
    ]


def keep(connection: Connection, publication: int, memory: Mapping[int, Values]) -> None:
    """Writes what is new of a publication's memory and deletes what is no longer in it; by their numbers."""
    if not memory:
        return
    mine = parts.c.publication_id == publication
    known = set(connection.execute(select(parts.c.number).where(mine)).scalars())
    if gone := known.difference(memory):
        connection.execute(delete(parts).where(mine, parts.c.number.in_(gone)))
    new = [
        {
            "publication_id": publication,
            "number": number,
            "shape": list(values.shape),
            "content": values.astype("<f8").tobytes(),
        }
        for number, values in memory.items()
        if number not in known
    ]
    connection.execute(insert(parts), new)
