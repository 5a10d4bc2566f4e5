"""Everything at a glance, for whoever watches the service."""

from dataclasses import dataclass

from sqlalchemy import Connection, case, func, select, text, true

from service.ledger.summaries import Declassified, Totals, totals
from service.store import streams
from service.store.due_fits import DUE_AT, IS_DUE, IS_FITTING, OF_THIS_PUBLICATION
from service.store.publications import newest_visible
from service.store.tables import leases as leased
from service.store.tables import publications, releases, shown
from service.store.tables import streams as streams_table

_TICK = publications.c.publish_delay * text("interval '1 second'")


@dataclass(frozen=True, kw_only=True)
class PublicationState:
    """`overdue_records`: numbered since the next fit had all it needs and its tick was to come; 0 once it has ended.

    `fitting_seconds`: for how long a worker has been at the next fit; `waiting_seconds`: for how long that has waited
    for one. None: it does not.
    """

    name: str
    stream: str
    running: bool
    halted: bool
    overdue_records: int
    versions: int
    latest: int | None
    age_seconds: float | None
    fitting_seconds: float | None
    waiting_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Overview:
    streams: list[Totals]
    publications: list[PublicationState]


# The newest visible model of a publication.
_latest = (
    select(releases.c.version, releases.c.published_at)
    .where(
        releases.c.publication_id == publications.c.id,
        releases.c.number <= streams_table.c.confirmed_releases,
        releases.c.role == "model",
    )
    .order_by(releases.c.version.desc())
    .limit(1)
    .lateral("latest")
)
_SINCE = case((IS_FITTING, leased.c.taken_at), else_=DUE_AT)
_PUBLICATIONS = (
    select(
        publications.c.name,
        publications.c.state,
        shown.c.due,
        newest_visible().label("versions"),
        _latest.c.version.label("latest"),
        streams_table.c.name.label("stream"),
        streams_table.c.records,
        streams_table.c.distrusted.is_not(None).label("distrusted"),
        func.extract("epoch", func.clock_timestamp() - _latest.c.published_at).label("age_seconds"),
        func.coalesce(func.clock_timestamp() > DUE_AT + 2 * _TICK, true()).label("tick_has_come"),
        case((IS_DUE, func.extract("epoch", func.clock_timestamp() - _SINCE))).label("fit_seconds"),
        IS_FITTING.label("fitting"),
    )
    .join(streams_table, streams_table.c.id == publications.c.stream_id)
    .join(shown, shown.c.publication_id == publications.c.id)
    .outerjoin(leased, OF_THIS_PUBLICATION)
    .outerjoin(_latest, true())
    .order_by(publications.c.id)
)


def overview(connection: Connection, *, declassified: Declassified) -> Overview:
    """Return what there is now. declassified: says of a publication how many records it no longer protects."""
    rows = connection.execute(_PUBLICATIONS).all()
    return Overview(
        streams=totals(connection, streams.every(connection), declassified=declassified),
        publications=[
            PublicationState(
                name=row.name,
                stream=row.stream,
                running=row.state == "running",
                halted=row.state == "halted" or (row.state == "running" and row.distrusted),
                overdue_records=max(0, row.records - row.due) if row.state == "running" and row.tick_has_come else 0,
                versions=row.versions or 0,
                latest=row.latest,
                age_seconds=None if row.age_seconds is None else float(row.age_seconds),
                fitting_seconds=None if row.fit_seconds is None or not row.fitting else float(row.fit_seconds),
                waiting_seconds=None if row.fit_seconds is None or row.fitting else float(row.fit_seconds),
            )
            for row in rows
        ],
    )
