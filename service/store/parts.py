"""What a mechanism has to remember between two steps: parts, each written once, as secret as records.

They are noise that later releases take back, and what follows from it: whoever reads them and the releases knows
something of records. No call reads them but the publisher's. They come and go in the transaction that publishes what
they were made with, so that a step that is not published has never been; what no later step needs is deleted.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, delete, insert, select

from service.store.publications import Publication
from service.store.tables import parts

Values = NDArray[np.float64]


def load(connection: Connection, publication: int, numbers: Sequence[int]) -> list[tuple[int, Values]]:
    """Those parts of a publication, in that order, as far as they are there."""
    query = select(parts).where(parts.c.publication_id == publication, parts.c.number.in_(numbers))
    found = {
        row.number: np.frombuffer(row.content, dtype="<f8").reshape(row.shape) for row in connection.execute(query)
    }
    return [(number, found[number]) for number in numbers if number in found]


def keep(connection: Connection, publication: Publication, memory: Sequence[tuple[int, Values]]) -> list[int]:
    """Writes what is new of a publication's memory and deletes what is no longer in it; returns its numbers.

    publication: as it is locked, with what it remembered so far.
    """
    numbers = [number for number, _ in memory]
    gone = set(publication.parts).difference(numbers)
    if gone:
        connection.execute(delete(parts).where(parts.c.publication_id == publication.id, parts.c.number.in_(gone)))
    new = {number: values for number, values in memory if number not in publication.parts}
    if new:
        connection.execute(
            insert(parts),
            [
                {
                    "publication_id": publication.id,
                    "number": number,
                    "shape": list(values.shape),
                    "content": values.astype("<f8").tobytes(),
                }
                for number, values in new.items()
            ],
        )
    return numbers
