"""Numbers: of batches and segments, of the releases of a stream, and what of them is shown."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, func, select

from service.ledger import spending
from service.privacy.accounting import composition
from service.privacy.accounting.composition import Slots
from service.store import streams, tables
from service.store.publications import Publication
from service.store.rows import Rows
from service.store.streams import Stream

_NUMBERS = select(*(tables.releases.c[name] for name in ("stream_id", "number", "digest"))).order_by(
    tables.releases.c.number
)
_PUBLICATIONS = select(tables.publications.c.stream_id, tables.publications.c.id)


def records(connection: Connection, stream: Stream) -> Iterator[str]:
    """Entries cover [entries_from, records) without a gap or an overlap; so do segments, but for dropped ones."""
    for table, name in ((tables.entries, "entries"), (tables.segments, "segments")):
        named = table.c.entry if table is tables.entries else table.c.file
        query = select(table.c.start, table.c.stop, named).where(table.c.stream_id == stream.id).order_by(table.c.start)
        position: int | None = stream.entries_from if name == "entries" else 0
        if name == "segments" and stream.retention == "needed":
            position = None
        last = None
        with connection.execute(query, execution_options={"yield_per": 1000}) as ranges:
            for start, stop, last in ranges:  # noqa: B007 - the last one is looked at below
                if start != (position if position is not None else start):
                    yield f"stream {stream.name}: {name} are not continuous at record {position}"
                position = stop
        if position not in (None, stream.records):
            yield f"stream {stream.name}: {name} end at record {position}, not at {stream.records}"
        if table is not tables.entries or last is None:
            continue
        if stream.sealed_entry not in (last, _last_dead_letter(connection, stream)):
            yield f"stream {stream.name}: its log is said to be numbered to another batch than {last}"


def _last_dead_letter(connection: Connection, stream: Stream) -> str | None:
    table = tables.dead_letters
    query = select(table.c.entry).where(table.c.stream_id == stream.id).order_by(table.c.id.desc()).limit(1)
    entry: str | None = connection.execute(query).scalar_one_or_none()
    return entry


def units(connection: Connection, stream: Stream) -> Iterator[str]:
    """No unit has more counting slots than its stream allows; those that were erased are as many as the row says."""
    table, unit = tables.units, stream.schema.get("unit")
    mine = table.c.stream_id == stream.id
    erased = connection.execute(select(func.count()).where(mine, table.c.erased)).scalar_one()
    if erased != stream.units_erased:
        yield f"stream {stream.name}: {erased} units are erased, not {stream.units_erased}"
    if unit is None:
        return
    beyond = (table.c.counted > unit["max_records"]) | (table.c.last >= stream.records)
    if connection.execute(select(func.count()).where(mine, beyond)).scalar_one():
        yield f"stream {stream.name}: a unit has more counting records than it may, or one that is not there"
    try:
        streams.secret_of_units(connection, stream)
    except streams.SecretLost as lost:
        yield f"stream {stream.name}: {lost}"


def releases(rows: Rows, stream: Stream) -> Iterator[str]:
    """Check that the stream's releases are numbered without a gap, and that no more is confirmed than there is."""
    number, digest = 0, None
    for number, row in enumerate(rows.of(_NUMBERS, tables.releases.c.stream_id, stream.id), 1):
        digest = row.digest
        if row.number != number:
            yield f"stream {stream.name}: release {number} of the stream is missing"
            return
    if (number, digest) != (stream.releases, stream.newest_release):
        yield f"stream {stream.name}: release {stream.releases} of the stream is missing or another"
    if stream.confirmed_charges > stream.charges or stream.confirmed_releases > stream.releases:
        yield f"stream {stream.name}: more is confirmed than was charged and released"


def shown(rows: Rows, stream: Stream, publications: Sequence[Publication]) -> Iterator[str]:
    """Check that no sum or clock is shown ahead of what is committed; once all is confirmed, nothing but that."""
    shown = composition.PrivacyLoss.of(stream.visible_epsilon, stream.visible_delta, stream.visible_rho)
    evaluated = composition.PrivacyLoss.of(
        stream.visible_evaluation_epsilon, stream.visible_evaluation_delta, stream.visible_evaluation_rho
    )
    for visible, slots in ((shown, None), (evaluated, Slots.EVALUATION)):
        worst = composition.worst(loss for *_, loss in spending.outlined(rows, stream.id, 0, 2**62, slots))
        if visible != worst if stream.confirmed_charges == stream.charges else not visible.within(worst):
            yield f"stream {stream.name}: what is shown as spent is not what its records have"
            break
    known = {row.id for row in rows.of(_PUBLICATIONS, tables.publications.c.stream_id, stream.id)}
    for identity in known - {each.id for each in publications}:
        yield f"stream {stream.name}: nothing is shown of the publication with id {identity}"
    for each in publications:
        ahead = (
            each.visible_position > each.position
            or each.visible_due > each.due
            or each.visible_worst_amount > each.worst_amount
        )
        ended = (each.visible_state, each.visible_reason) not in (("running", None), (each.state, each.reason))
        same = each.visible_worst_amount == each.worst_amount
        if ahead or ended or (same and each.visible_worst_record != each.worst_record):
            yield f"publication {each.name}: what is shown of its clock, its sum or its end is not what was committed"
