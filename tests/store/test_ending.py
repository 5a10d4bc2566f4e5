"""A publication that ends, or whose records are erased, leaves all that is remembered of others."""
# ruff: noqa: F811 - a fixture is another file's

from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
from sqlalchemy import Connection, select, update

from service.ledger import open_entry
from service.store import attempts, erasing, labels, parked, parts, publications, streams, tables, waits
from service.store.parked import Parked
from service.store.unwritten import Left
from tests.store.test_spending import connection, described  # noqa: F401

RECORD = 3


def remember(connection: Connection, publication: publications.Publication) -> None:
    """Write down something of everything that the next step may need."""
    parts.keep(connection, publication.id, Left(numbers=(1,), new={1: np.zeros(2)}, digest="0" * 64))
    labels.ask(connection, publication, [RECORD], [], seconds=60, charge=0)
    assert labels.answer(connection, publication.id, publication.name, RECORD, 1)
    assert not attempts.note(connection, publication.id, 0, 0), "it is the first one of this publication"
    waits.note(connection, publication.id, 1, "it needs more memory")
    step = {"position": 0, "version": 0, "due_at": None, "following_due": 2, "lineage": "", "content": b""}
    ours = {"publication_id": publication.id, "stream_id": publication.stream_id}
    parked.put(connection, Parked(tick=datetime.now(UTC), **step, **ours))


def test_what_another_publication_remembers_stays(connection: Connection):
    for name in ("s", "t"):
        streams.create(
            connection, name=name, log=name, schema={}, retention="keep", epsilon=Decimal(2), delta=Decimal(0)
        )
    connection.execute(update(tables.streams).values(records=10))
    ends, stays = (publications.create(connection, each, described(f"p{each}")) for each in (1, 2))
    for each in (ends, stays):
        remember(connection, each)
    erasing.erase(connection, 1, 0, 10)
    answers = [labels.answers(connection, each.id, 0, 10) for each in (ends, stays)]
    assert answers == [[], [(RECORD, 1)]]
    parts.keep(connection, ends.id, Left(numbers=(2,), new={2: np.zeros(2)}, digest="1" * 64))
    assert [*parts.load(connection, ends.id).parts] == [2]
    open_entry(connection, ends).end("stopped")
    for table in (
        tables.parts,
        tables.memories,
        tables.label_requests,
        tables.attempts,
        tables.waits,
        tables.parked,
    ):
        assert connection.execute(select(table.c.publication_id)).scalars().all() == [stays.id], table.name
