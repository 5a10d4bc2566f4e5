"""Everything at a glance, for whoever watches the service."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, select

from service.privacy.profile import covered
from service.store import labels, spending, streams
from service.store.labels import Progress
from service.store.publications import asks_people
from service.store.publications import of_stream as publications_of
from service.store.tables import publications, releases
from service.store.tables import streams as streams_table

Declassified = Callable[[Mapping[str, Any], Mapping[str, Any], int], int]
"""From a stream's schema, a publication's configuration and its position: how many records it no longer protects."""


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """Sums are {"epsilon": …, "delta": …}, the worst record's, rounded up."""

    name: str
    log: str
    entry: str
    sequence: int
    records: int
    halted: bool
    distrusted: bool
    dead_letters: int
    budget: dict[str, float]
    reserved: dict[str, float]
    spent: dict[str, float]
    declassified: int


@dataclass(frozen=True, kw_only=True)
class PublicationState:
    """`overdue_records`: numbered since the next fit had all it needs; 0 when it publishes nothing more.

    `label_requests`: None where nobody is asked for labels.
    """

    name: str
    stream: str
    running: bool
    halted: bool
    overdue_records: int
    versions: int
    latest: int | None
    age_seconds: float | None
    label_requests: Progress | None


@dataclass(frozen=True, kw_only=True)
class Overview:
    streams: list[StreamState]
    publications: list[PublicationState]


def overview(connection: Connection, *, declassified: Declassified) -> Overview:
    """What there is now. declassified: says of a publication how many records it no longer protects."""
    query = (
        select(
            publications,
            streams_table.c.name.label("stream"),
            streams_table.c.records,
            streams_table.c.distrusted,
            func.extract("epoch", func.clock_timestamp() - releases.c.published_at).label("age_seconds"),
        )
        .join(streams_table, streams_table.c.id == publications.c.stream_id)
        .outerjoin(
            releases,
            and_(releases.c.publication_id == publications.c.id, releases.c.version == publications.c.latest),
        )
        .order_by(publications.c.id)
    )
    rows = connection.execute(query).all()
    asked = labels.progress(connection, [row.id for row in rows if asks_people(row.plan)])
    return Overview(
        streams=[_stream(connection, each, declassified) for each in streams.every(connection)],
        publications=[
            PublicationState(
                name=row.name,
                stream=row.stream,
                running=row.state == "running",
                halted=row.state == "halted" or (row.state == "running" and row.distrusted is not None),
                overdue_records=max(0, row.records - row.due) if row.state == "running" else 0,
                versions=row.version,
                latest=row.latest,
                age_seconds=None if row.age_seconds is None else float(row.age_seconds),
                label_requests=asked.get(row.id),
            )
            for row in rows
        ],
    )


def _stream(connection: Connection, stream: streams.Stream, declassified: Declassified) -> StreamState:
    of_it = publications_of(connection, stream.id)
    worst = spending.worst(connection, stream.id, of_it)
    return StreamState(
        name=stream.name,
        log=stream.log,
        entry=stream.sealed_entry,
        sequence=stream.sealed_sequence,
        records=stream.records,
        halted=stream.halted is not None,
        budget={"epsilon": float(stream.epsilon), "delta": float(stream.delta)},
        distrusted=stream.distrusted is not None,
        dead_letters=streams.waiting_dead_letters(connection, stream.id),
        reserved=worst.reserved.shown(),
        spent=worst.spent.shown(),
        declassified=covered(
            (each.start, each.start + declassified(stream.schema, each.configuration, each.position)) for each in of_it
        ),
    )
