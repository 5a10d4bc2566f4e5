"""Everything at a glance, for whoever watches the service."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, select, text, true

from service.privacy.account import Loss
from service.privacy.profile import covered
from service.store import spending, streams
from service.store.publications import newest_visible
from service.store.publications import of_stream as publications_of
from service.store.tables import entries, publications, releases, shown
from service.store.tables import streams as streams_table

T = publications.c.publish_delay * text("interval '1 second'")

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
    """`overdue_records`: numbered since the next fit had all it needs and its tick was to come; 0 once it has ended."""

    name: str
    stream: str
    running: bool
    halted: bool
    overdue_records: int
    versions: int
    latest: int | None
    age_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Overview:
    streams: list[StreamState]
    publications: list[PublicationState]


def overview(connection: Connection, *, declassified: Declassified) -> Overview:
    """What there is now. declassified: says of a publication how many records it no longer protects."""
    latest = newest_visible(role="model")
    due_at = (  # when the last record that the next fit needs was numbered
        select(entries.c.numbered_at)
        .where(entries.c.stream_id == publications.c.stream_id, entries.c.start < shown.c.due)
        .order_by(entries.c.start.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = (
        select(
            publications,
            shown.c.due.label("visible_due"),
            newest_visible().label("visible_version"),
            latest.label("visible_latest"),
            streams_table.c.name.label("stream"),
            streams_table.c.records,
            streams_table.c.distrusted,
            func.extract("epoch", func.clock_timestamp() - releases.c.published_at).label("age_seconds"),
            func.coalesce(due_at + 2 * T < func.clock_timestamp(), true()).label("tick_has_come"),
        )
        .join(streams_table, streams_table.c.id == publications.c.stream_id)
        .join(shown, shown.c.publication_id == publications.c.id)
        .outerjoin(
            releases,
            and_(releases.c.publication_id == publications.c.id, releases.c.version == latest),
        )
        .order_by(publications.c.id)
    )
    rows = connection.execute(query).all()
    return Overview(
        streams=[_stream(connection, each, declassified) for each in streams.every(connection)],
        publications=[
            PublicationState(
                name=row.name,
                stream=row.stream,
                running=row.state == "running",
                halted=row.state == "halted" or (row.state == "running" and row.distrusted is not None),
                overdue_records=max(0, row.records - row.visible_due)
                if row.state == "running" and row.tick_has_come
                else 0,
                versions=row.visible_version or 0,
                latest=row.visible_latest,
                age_seconds=None if row.age_seconds is None else float(row.age_seconds),
            )
            for row in rows
        ],
    )


def _stream(connection: Connection, stream: streams.Stream, declassified: Declassified) -> StreamState:
    of_it = publications_of(connection, stream.id)
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
        reserved=spending.reserved(connection, stream.id, of_it).shown(),
        spent=Loss.of(stream.visible_epsilon, stream.visible_delta).shown(),
        declassified=covered(
            (each.start, each.start + declassified(stream.schema, each.configuration, each.visible_position))
            for each in of_it
        ),
    )
