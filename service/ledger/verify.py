"""Walks the whole ledger and recomputes every hash and bound, from the charges alone.

It believes nothing that was computed before: what a record has spent is added up anew from the charges and compared
with what publishing used, with each publication's cap, and with the stream's budget. What streams and publications
promise, what they were left as, releases and segments are compared with their digests.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DataError

from service.ledger import ledger, spending, witness
from service.privacy.accounting import account, claims
from service.privacy.loss import Kind, capacity
from service.store import publications, releases, segments, streams, tables
from service.store.database import ONE_VIEW, Database
from service.store.publications import Publication
from service.store.segment_files import SegmentDamaged, SegmentFiles
from service.store.segments import Segment
from service.store.streams import Stream


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was walked, and what does not hold."""

    streams: int
    charges: int
    findings: list[str]


def verify(connection: Connection, *, isolated: bool = True) -> Report:
    """Every stream, publication, charge and release; a finding names what does not hold. It takes little memory.

    `isolated`: see one moment of the whole ledger, however much is published meanwhile. For that nothing may have
    happened yet in the transaction.
    """
    if isolated:
        connection.execute(ONE_VIEW)
    try:
        known = streams.every(connection)
    except DataError:
        return Report(streams=0, charges=0, findings=["the table streams holds what was never written there"])
    findings = [
        finding
        for stream in known
        for finding in (
            *_of_stream(connection, stream),
            *_read(f"stream {stream.name}", _numbering(connection, stream)),
        )
    ]
    return Report(streams=len(known), charges=sum(each.charges for each in known), findings=findings)


def look(connection: Connection, stream: int, *, most: int = 100) -> tuple[Stream, list[str]]:
    """One stream and what of it does not hold, in a transaction of its own; its batches' numbers aside.

    Those are as many as batches were ever sent, and an invariant asks for them.
    """
    connection.execute(ONE_VIEW)
    found = streams.get(connection, stream)
    return found, list(islice(_of_stream(connection, found), most))


def _of_stream(connection: Connection, stream: Stream) -> Iterator[str]:
    """All that does not hold of one stream; `stream` must have been read in the same view of the database."""
    where = f"stream {stream.name}"
    yield from _read(where, _charges(connection, stream))
    yield from _read(where, _numbered_releases(connection, stream))
    yield from _read(where, _promised_by_stream(stream))
    yield from _read(where, _segments(connection, stream))
    yield from _read(where, _reserved(connection, stream))
    yield from _read(where, _shown(connection, stream))
    yield from _read(where, _publications(connection, stream))


def _publications(connection: Connection, stream: Stream) -> Iterator[str]:
    """All that does not hold of a stream's publications. Another stream may have publications of the same names."""
    for publication in publications.of_stream(connection, stream.id):
        for finding in _of_publication(connection, publication):
            yield f"{finding} (stream {stream.name})"


def _of_publication(connection: Connection, publication: Publication) -> Iterator[str]:
    where = f"publication {publication.name}"
    yield from _read(where, _promised(publication))
    yield from _read(where, _releases(connection, publication))
    yield from _read(where, _spent(connection, publication))
    yield from _read(where, _released(connection, publication))
    yield from _read(where, _arrivals(connection, publication))
    yield from _read(where, _coins(connection, publication))


def _read(where: str, found: Iterator[str]) -> Iterator[str]:
    """What can't be read or counted, like NaN or a time without end, is a finding too, and hides no other."""
    try:
        yield from found
    except (LookupError, TypeError, ValueError, ArithmeticError, DataError) as problem:
        yield f"{where}: it holds what was never written there ({type(problem).__name__})"


def _charges(connection: Connection, stream: Stream) -> Iterator[str]:
    """That every charge of a stream is what was written, and none is missing. It walks all of them in little memory."""
    previous = None
    number = 0
    for number, charge in enumerate(ledger.walk(connection, stream.id), 1):
        where = f"stream {stream.name}, charge {charge['id']}"
        if charge["id"] != number:
            yield f"{where}: charge {number} is missing before it"
            return
        if not ledger.intact(charge):
            yield f"{where}: its hash is not that of its content"
        if charge["previous_hash"] != previous:
            yield f"{where}: its previous_hash is not the hash of the charge before"
        previous = charge["hash"]
    if (number, previous) != (stream.charges, stream.head):
        yield f"stream {stream.name}, charge {stream.charges}: it was the newest one, and is missing or another"
    elsewhere = (
        select(tables.publications.c.id)
        .join(tables.charges, tables.charges.c.publication_id == tables.publications.c.id)
        .where(tables.charges.c.stream_id == stream.id, tables.publications.c.stream_id != stream.id)
        .distinct()
    )
    for publication in connection.execute(
        elsewhere
    ).scalars():  # not by name: who sees this stream may not see that one
        yield f"stream {stream.name}: the publication with id {publication} is charged on it, which is another stream's"


def _numbered_releases(connection: Connection, stream: Stream) -> Iterator[str]:
    """That the stream's releases are numbered without a gap, and that no more is confirmed than there is."""
    table, number, digest = tables.releases, 0, None
    query = select(table.c.number, table.c.digest).where(table.c.stream_id == stream.id).order_by(table.c.number)
    with connection.execute(query, execution_options={"yield_per": 1000}) as rows:
        for number, (found, digest) in enumerate(rows, 1):  # noqa: B007 - the last digest is looked at below
            if found != number:
                yield f"stream {stream.name}: release {number} of the stream is missing"
                return
    if (number, digest) != (stream.releases, stream.newest_release):
        yield f"stream {stream.name}: release {stream.releases} of the stream is missing or another"
    if stream.confirmed_charges > stream.charges or stream.confirmed_releases > stream.releases:
        yield f"stream {stream.name}: more is confirmed than was charged and released"


def _shown(connection: Connection, stream: Stream) -> Iterator[str]:
    """That no sum or clock is shown that is ahead of what is committed; once all is confirmed, nothing but that."""
    shown, worst = (stream.visible_epsilon, stream.visible_delta), spending.worst(connection, stream.id)
    if stream.confirmed_charges == stream.charges:
        wrong = shown != worst
    else:
        wrong = any(one > other for one, other in zip(shown, worst, strict=True))
    if wrong:
        yield f"stream {stream.name}: what is shown as spent is not what its records have"
    table = tables.publications
    known = set(connection.execute(select(table.c.id).where(table.c.stream_id == stream.id)).scalars())
    found = publications.of_stream(connection, stream.id)
    for identity in known - {each.id for each in found}:
        yield f"stream {stream.name}: nothing is shown of the publication with id {identity}"
    for each in found:
        ahead = (
            each.visible_position > each.position
            or each.visible_due > each.due
            or each.visible_worst_amount > each.worst_amount
        )
        same = each.visible_worst_amount == each.worst_amount
        if ahead or (same and each.visible_worst_record != each.worst_record):
            yield f"publication {each.name}: what is shown of its clock or its sum is not what was committed"


def _promised_by_stream(stream: Stream) -> Iterator[str]:
    if streams.promised(stream) != stream.promise:
        yield f"stream {stream.name}: what it promises, its budget or its schema, is not what its digest is of"


def _promised(publication: Publication) -> Iterator[str]:
    """That a publication promises what it did when it was made, and is as it was left."""
    where = f"publication {publication.name}"
    if publications.promised(publication) != publication.promise:
        yield f"{where}: what it promises, its settings or its stream's, is not what its digest is of"
    if not publications.as_left(publication):
        yield f"{where}: it is not as it was left"
    if publication.publish_delay != _delay(publication):
        yield f"{where}: its publish_delay is not the one that it was made with"


def _delay(publication: Publication) -> Decimal:
    """The publish_delay that was asked for, else the default, which is 0 where records are charged as they arrive."""
    if "publish_delay" in publication.configuration:
        return Decimal(str(publication.configuration["publish_delay"]))
    return Decimal(0) if _counts_in(publication) or _tosses(publication) else Decimal(1)


def _releases(connection: Connection, publication: Publication) -> Iterator[str]:
    """That every release is what was written, none is missing, and each has a charge of its own that pays for it."""
    previous = publication.promise
    number, latest, time, batched, of_stream = 0, None, publication.start, publication.start, 0
    run: dict[str, Any] = {}  # the noise of a run of steps that take back each other's, and how long it is yet
    for number, row in enumerate(releases.walk(connection, publication.id), 1):
        where = f"publication {publication.name}, version {row['version']}"
        if row["version"] != number:
            yield f"publication {publication.name}, version {number}: it is missing"
            return
        if row["number"] <= of_stream:
            yield f"{where}: its number on the stream is not after that of the version before"
        of_stream = row["number"]
        if not releases.intact(row, publication=publication.name, previous=previous):
            yield f"{where}: its digest is not that of its content"
        previous = row["digest"]
        latest = row["version"] if row["role"] == "model" else latest
        time = row["time"]
        yield from _read(where, _paid(where, publication, row))
        yield from _read(where, _as_begun(where, run, row["noise"]))
        if _tosses(publication) and row["fit_start"] < batched:
            yield f"{where}: it learnt from a batch that another had learnt from"
        batched = row["fit_stop"]
    told = publication.version, publication.digest, publication.latest
    reached = publication.start + publication.position
    # A step that only counts records in moves it on without a release.
    late = time > reached if _counts_in(publication) or _tosses(publication) else time != reached
    if (number, previous, latest) != told or late:
        where = f"publication {publication.name}, version {publication.version}"
        yield f"{where}: it was the newest one, and is missing or another"


def _paid(where: str, publication: Publication, row: Mapping[str, Any]) -> Iterator[str]:
    """That a release's charge is its own, on the records it read, or the last with which those arrived, and pays."""
    version = None if _tosses(publication) else row["version"]
    if (row["charged_publication_id"], row["charged_version"]) != (publication.id, version):
        yield f"{where}: it was published without a charge"
        return
    start = max(row["charged_start"], row["fit_start"]) if _tosses(publication) else row["fit_start"]
    if (row["charged_start"], row["charged_stop"]) != (start, row["fit_stop"]):
        yield f"{where}: its charge is not on the records it read"
    pure = row["charged_rho"] is None
    paid = Fraction(row["charged_epsilon"] if pure else row["charged_rho"])
    try:
        if row["noise"]["dimension"] != claims.dimension(row["noise"], row["shape"]):
            yield f"{where}: its noise is not as long as what it is added to"
        records = row["fit_stop"] - row["fit_start"]
        if claims.cost(Kind.PURE if pure else Kind.ZCDP, row["noise"], records=records) > paid:
            yield f"{where}: its noise costs more than its charge"
    except ValueError as problem:
        yield f"{where}: {problem}"


def _as_begun(where: str, run: dict[str, Any], noise: Mapping[str, Any]) -> Iterator[str]:
    """That noise which later steps take back goes on as its run began: what was charged then was for all of it."""
    if noise["added_to"] not in ("running_sums", "statistics"):
        return
    if not run.get("left", 0):
        run |= {"noise": noise, "left": noise["factor"].get("steps", math.inf)}
    run["left"] -= 1
    if noise != run["noise"]:
        yield f"{where}: its noise is not that with which its run began"


def _numbering(connection: Connection, stream: Stream) -> Iterator[str]:
    """Entries cover [0, records) without a gap or an overlap; so do segments, those that were dropped aside."""
    for table, name in ((tables.entries, "entries"), (tables.segments, "segments")):
        named = table.c.entry if table is tables.entries else table.c.file
        query = select(table.c.start, table.c.stop, named).where(table.c.stream_id == stream.id).order_by(table.c.start)
        position = None if name == "segments" and stream.retention == "needed" else 0
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


def _segments(connection: Connection, stream: Stream) -> Iterator[str]:
    """Each segment's row is what was written, and together they are those that were sealed, merged and dropped."""
    total = 0
    table = tables.segments
    query = select(table).where(table.c.stream_id == stream.id).order_by(table.c.start)
    with connection.execute(query, execution_options={"yield_per": 1000}) as rows:
        for row in rows:
            segment = Segment(start=row.start, stop=row.stop, file=row.file, sha256=row.sha256)
            if row.digest != segments.digest(stream.log, segment):
                yield f"stream {stream.name}, records {row.start} to {row.stop}: their segment is not what was sealed"
            total += int(row.digest, 16)
    if total % segments.MODULUS != stream.segments_sum:
        yield f"stream {stream.name}: its segments are not those that were sealed; one is missing or another"


def _reserved(connection: Connection, stream: Stream) -> Iterator[str]:
    """What is spent and reserved stays within the budget, and the summaries of both say what they sum up."""
    budget = account.Loss.of(stream.epsilon, stream.delta)
    found = publications.of_stream(connection, stream.id)
    every = spending.changes(connection, [each.id for each in found])
    drawn: list[spending.Stretch] = []
    grain = 1
    room = 4 * spending.MOST_RANGES
    for each in account.add_up([spending.account_of(publication) for publication in found], every):
        if each.end is not None and each.spent != account.Loss():
            drawn.append((each.start, each.end, each.spent))
            grain = spending.grain_to(each.end, grain)
        if len(drawn) > room:
            drawn = account.outline(drawn, grain)
            room = max(room, 2 * len(drawn))
        if not each.reserved.within(budget):
            yield f"stream {stream.name}, record {each.start}: more is reserved than the stream's budget"
        if not each.spent.within(each.reserved):
            yield f"stream {stream.name}, record {each.start}: more is spent than is reserved"
    told = spending.outlined(connection, stream.id, 0, 2**62)
    drawn = account.outline(drawn, grain)
    if grain != stream.grain or [each for each in told if each[2] != account.Loss()] != drawn:
        yield f"stream {stream.name}: what is told that its records have spent at most is not what they have"
    if spending.kept_stairs(connection, stream.id) != spending.stairs(connection, found):
        yield f"stream {stream.name}: what ended publications are said to keep is not what they charged"


def _spent(connection: Connection, publication: Publication) -> Iterator[str]:
    """Adds up a publication's charges anew, from record to record, beside what publishing counted."""
    kind, cap = capacity(publication.epsilon, publication.delta)
    if kind != publication.kind:
        yield f"publication {publication.name}: its kind is not that of its delta"
        return
    asked = publication.configuration["privacy"]
    if (Decimal(str(asked["epsilon"])), Decimal(str(asked["delta"]))) != (publication.epsilon, publication.delta):
        yield f"publication {publication.name}: its configuration is of another guarantee than is reserved for it"
    table = tables.charges
    currency = table.c.epsilon if kind is Kind.PURE else table.c.rho
    mine = table.c.publication_id == publication.id
    wrong = connection.execute(select(func.min(table.c.id)).where(mine, (currency > 0).isnot(True))).scalar_one()
    if wrong is not None:
        yield f"publication {publication.name}, charge {wrong}: it is not in the publication's currency"
        return
    up = select(table.c.start.label("record"), currency.label("amount")).where(mine)
    down = select(table.c.stop, -currency).where(mine)
    both = up.union_all(down).subquery()
    walked = connection.execute(select(both).order_by(both.c.record), execution_options={"yield_per": 1000})
    kept = spending.changes(connection, [publication.id])
    level, highest, differs = Fraction(0), Fraction(0), False
    with walked:
        for record, here in groupby(walked, key=attrgetter("record")):
            change = sum((Fraction(row.amount) for row in here), start=Fraction(0))
            level += change
            highest = max(highest, level)
            if change and not differs:
                differs = next(kept, None) != (record, publication.id, change)
    if differs or next(kept, None) is not None:
        yield f"publication {publication.name}: what is kept as spent is not what its charges add up to"
    if highest != publication.worst_amount:
        yield f"publication {publication.name}: what is told of its worst record is not what its charges add up to"
    if highest > cap:
        yield f"publication {publication.name}: its charges pass its cap"


def _released(connection: Connection, publication: Publication) -> Iterator[str]:
    """Every charge with a version has its release."""
    charge, release = tables.charges, tables.releases
    unreleased = connection.execute(
        select(charge.c.version)
        .outerjoin(release, (release.c.stream_id == charge.c.stream_id) & (release.c.charge == charge.c.id))
        .where(charge.c.publication_id == publication.id, charge.c.version.isnot(None), release.c.charge.is_(None))
        .order_by(charge.c.id)
    )
    for version in unreleased.scalars():
        yield f"publication {publication.name}, version {version}: it was charged, but there is no such release"


def _counts_in(publication: Publication) -> bool:
    """Whether its records are charged when they arrive, before anything is released of them."""
    return "first_instance" in publication.plan


def _arrivals(connection: Connection, publication: Publication) -> Iterator[str]:
    """That what is charged without a version is what each record owes, once, to each instance that was open.

    The first instance is told by the plan, each later one by the release with which it opened. Each record that is
    there when it opens, or arrives while it is open, pays for it before anything is measured of it.
    """
    if not _counts_in(publication):
        return
    where = f"publication {publication.name}"
    kind, instance = Kind(publication.kind), publication.plan["first_instance"]
    released = releases.walk(connection, publication.id)
    paid = 0  # so many records have paid for the instance that is open
    table = tables.charges
    query = select(table).where(table.c.publication_id == publication.id).order_by(table.c.id)
    with connection.execute(query, execution_options={"yield_per": 1000}) as rows:
        for row in rows:
            start, stop = row.start - publication.start, row.stop - publication.start
            if instance is None:
                yield f"{where}, charge {row.id}: it is for no instance that was open"
                return
            if row.version is None:
                amount = Fraction(row.epsilon if kind is Kind.PURE else row.rho)
                if start != paid or amount < claims.opening(kind, instance):
                    yield f"{where}, charge {row.id}: it is not what each record owes to the instance that was open"
                paid = stop
                continue
            noise = next(released)["noise"]
            if noise["instance"] != {name: instance[name] for name in ("opened", "scale")}:
                yield f"{where}, version {row.version}: it closed another instance than was open"
            if not instance["opened"] <= stop <= paid:
                yield f"{where}, version {row.version}: it measured records that had not paid for its instance"
            instance, paid = noise["next"], 0
    if instance is not None and paid != publication.position:
        yield f"{where}: not all of its records have paid for the instance that is open"


def _tosses(publication: Publication) -> bool:
    """Whether its records are charged at arrival for all that is ever released of them."""
    return "arrival" in publication.plan


def _coins(connection: Connection, publication: Publication) -> Iterator[str]:
    """That each record paid once, when its coin was tossed, for that coin and the update of its batch."""
    if not _tosses(publication):
        return
    where = f"publication {publication.name}"
    kind, paid = Kind(publication.kind), 0
    owed = claims.cost(kind, publication.plan["arrival"]["noise"], records=1)
    table = tables.charges
    query = select(table).where(table.c.publication_id == publication.id).order_by(table.c.id)
    with connection.execute(query, execution_options={"yield_per": 1000}) as rows:
        for row in rows:
            amount = Fraction(row.epsilon if kind is Kind.PURE else row.rho)
            if (row.version, row.start - publication.start) != (None, paid) or amount < owed:
                yield f"{where}, charge {row.id}: it is not what each record owes for its coin and an update, once"
            paid = row.stop - publication.start
    if paid != publication.position:
        yield f"{where}: not all of its records have paid for their coins"


def verify_segments(database: Database, files: SegmentFiles) -> Iterator[str]:
    """That every segment's file is there and holds what was written to it, while segments come, merge and go.

    And that no stream has come less far than the file beside its segments tells: that its record is not an old one.
    """
    with database.transaction() as connection:
        known = streams.every(connection)
    for stream in known:
        told = files.witness(stream.log)
        with database.transaction() as connection:
            against = witness.contradicts(connection, files, told, streams.get(connection, stream.id))
        if against is not None:
            yield f"stream {stream.name}: {against}"
        position = 0
        while True:
            with database.transaction() as connection:
                segment = segments.first_from(connection, stream.id, position)
                if segment is None:
                    break
                gone = segments.erased(connection, stream.id, segment.start, segment.stop, deleted=True)
            try:
                files.check(stream.log, segment.file, segment.sha256)
                wrong = _still_there(files, stream, segment, gone)
            except FileNotFoundError:
                wrong = f"its file {segment.file} is missing"
            except SegmentDamaged as damaged:
                wrong = str(damaged)
            if wrong is not None:
                with database.transaction() as connection:
                    if segments.first_from(connection, stream.id, position) != segment:
                        continue  # another took its place while we looked
                yield f"stream {stream.name}, records {segment.start} to {segment.stop}: {wrong}"
            position = segment.stop


def _still_there(files: SegmentFiles, stream: Stream, segment: Segment, gone: list[tuple[int, int]]) -> str | None:
    for start, stop in gone:
        rows = files.read(stream.log, segment.file, segment.sha256, start - segment.start, stop - segment.start)
        if any(column.any() for column in rows.values()):
            return f"records {start} to {stop} were erased, and are still in {segment.file}"
    return None
