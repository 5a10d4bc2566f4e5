"""Everything at a glance, for whoever watches the service."""

from dataclasses import dataclass

from sqlalchemy import Connection, and_, case, func, or_, select, text, true

from service.ledger.summaries import Declassified, Totals, totals
from service.store import leases, streams
from service.store.due_fits import DUE_AT, IS_DUE, NOW, past
from service.store.publications import newest_visible
from service.store.tables import leases as leased
from service.store.tables import parked, publications, releases, shown
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
_OF_THIS_PUBLICATION = leased.c.resource == leases.publication_of(publications.c.id)
_WAITS_FOR_ITS_TICK = select(parked.c.publication_id).where(parked.c.publication_id == publications.c.id).exists()
_IS_FITTING = and_(
    or_(_WAITS_FOR_ITS_TICK, and_(leased.c.owner.is_not(None), leased.c.expires_at > func.clock_timestamp())),
    leased.c.taken_at >= DUE_AT,
)
_SINCE = case((_IS_FITTING, past(leased.c.taken_at)), else_=DUE_AT)
_PUBLICATIONS = (
    select(
        publications.c.name,
        shown.c.state,
        shown.c.due,
        newest_visible().label("versions"),
        _latest.c.version.label("latest"),
        streams_table.c.name.label("stream"),
        streams_table.c.records,
        streams_table.c.distrusted.is_not(None).label("distrusted"),
        func.extract("epoch", NOW - past(_latest.c.published_at)).label("age_seconds"),
        # A time that has not come was written by a clock that was ahead: nobody knows since when it is due.
        or_(NOW > DUE_AT + 2 * _TICK, DUE_AT >= NOW).label("tick_has_come"),
        case((IS_DUE, func.extract("epoch", NOW - _SINCE))).label("fit_seconds"),
        _IS_FITTING.label("fitting"),
    )
    .join(streams_table, streams_table.c.id == publications.c.stream_id)
    .join(shown, shown.c.publication_id == publications.c.id)
    .outerjoin(leased, _OF_THIS_PUBLICATION)
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
