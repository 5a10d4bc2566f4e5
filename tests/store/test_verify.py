"""`ledger verify` finds every tampering and names it; so does a worker, which then publishes nothing more."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import ARRAY, Column, Connection, delete, func, insert, literal_column, select, text, update
from sqlalchemy import types as sql
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DataError, IntegrityError

from service.ledger import open_entry
from service.ledger import verify as walking
from service.ledger.verify import unit_counts, verify, verify_segments
from service.ledger.verify.released import Run, as_begun
from service.segments.files import SegmentDamaged, SegmentFiles
from service.settings import Settings
from service.store import publications, rows, segments, streams, tables
from service.store.database import Database
from service.store.rows import RowsTogether
from service.store.tables import APPEND_ONLY
from tests.conftest import make_world
from tests.store.conftest import publish_some
from tests.worker.conftest import Bench, bench  # noqa: F401


@pytest.mark.parametrize("added_to", ["running_sums", "statistics"])
def test_noise_that_later_steps_take_back_goes_on_as_its_run_began(added_to):
    fields = {"added_to": added_to, "distribution": "gaussian", "dimension": 5, "sensitivity": 1.0, "largest": 9.0}

    def findings(*noises: dict[str, Any]) -> int:
        run = Run()
        return sum(len([*as_begun("here", run, fields | noise)]) for noise in noises)

    both = {"scale": 1.0, "weights": {"second": 1.0, "label": 1.0}}
    two, four = (both | {"factor": {"kind": "tree", "steps": steps}} for steps in (2, 4))
    for_ever = both | {"factor": {"kind": "toeplitz", "bands": 3, "decay": 0.5}}
    assert findings(two, two, four, four, four, four, two) == 0
    assert findings(two, four, four) == 1
    assert findings(two, two | {"scale": 0.9}) == 1
    assert findings(two, two | {"largest": 8.0}) == 1
    assert findings(*[for_ever] * 50, for_ever | {"scale": 0.9}) == 1
    assert findings(two, {"added_to": "weights", "scale": 3.0}, two) == 0


@pytest.fixture(scope="module")
def settings(servers, tmp_path_factory) -> Settings:
    return make_world(servers, tmp_path_factory.mktemp("verify")).settings


@pytest.fixture(scope="module")
def files(settings: Settings) -> SegmentFiles:
    return SegmentFiles(settings.segment_store)


@pytest.fixture(scope="module")
def published(settings: Settings) -> Iterator[Database]:
    """As a superuser sees it, who can do everything."""
    publish_some(settings, records=8, every_learner=False)
    database = Database(make_url(settings.migration_url).set(username="postgres").render_as_string(False))
    yield database
    database.close()


class Undo(Exception):
    """Ends a transaction without a trace."""


def assert_together_as_alone(connection: Connection, expected: list[str]) -> None:
    """Wherever the only stream, walked alone, showed what does not hold, it does so too when walked as among others."""
    with suppress(DataError):
        (stream,) = streams.every(connection)
        among = [*walking._of_stream(RowsTogether(connection, [stream.id]), stream)]
        alone = expected[: len(expected) - len([*walking._numbers(connection, stream)])]
        assert among == alone or "what was never written" in str(among)


def findings(database: Database, *tamper) -> list[str]:
    texts: list[str] = []

    def look(connection: Connection) -> None:
        if tamper:  # foreign keys and triggers are in nobody's way
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            for table in {each.table for each in tamper} & {*APPEND_ONLY}:
                connection.execute(text(f"ALTER TABLE {table.name} DISABLE TRIGGER append_only"))
        for statement in tamper:
            assert connection.execute(statement).rowcount
        texts.extend(verify(connection, isolated=not tamper).findings)
        assert_together_as_alone(connection, texts)
        raise Undo

    with pytest.raises(Undo), database.transaction() as connection:
        look(connection)
    return texts


@pytest.mark.parametrize("at_once", [2, rows.AT_ONCE])
def test_an_honest_ledger_has_no_findings(published: Database, at_once, monkeypatch):
    """Few rows are read at once, and many through a cursor."""
    monkeypatch.setattr(rows, "AT_ONCE", at_once)
    assert findings(published) == []
    assert findings(published, delete(tables.releases).where(tables.releases.c.version == 3))


LEDGER = {
    tables.charges: "charge",
    tables.releases: "version|release",
    tables.segments: "segment",
    tables.publications: "publication",
    tables.streams: "stream",
    tables.spent: "publication",
    tables.outlines: "stream",
    tables.kept_reservations: "stream",
    tables.shown: "publication",
}
VERDICTS = {
    tables.streams.c.halted: "why it is not numbered now, which every look at the log finds out anew",
    tables.streams.c.distrusted: "what the last look found out",
    tables.streams.c.marked: "whether there was ever a mark, which the next confirmation says anew",
    tables.streams.c.place: "where its log is: another one tells another sequence",
    tables.streams.c.sealed_sequence: "the log tells another: then nothing more is numbered",
}


def another(column: Column[Any]) -> Any:
    """Return what is not there."""
    match column.type:
        case sql.DateTime():
            return column + text("interval '1 second'")
        case sql.Boolean():
            return ~column
        case ARRAY():
            return func.array_append(column, 77)
        case sql.JSON():
            return text("""'{"another": 1}'""")
        case sql.LargeBinary():
            return column.op("||")(b"0")
        case sql.Text():
            return func.coalesce(column, "") + "0"
        case _:
            return func.coalesce(column, 0) + 1000


COLUMNS = [column for table in LEDGER for column in table.c if column.identity is None]  # which nobody can change


@pytest.mark.more
@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_no_column_of_the_ledger_can_be_changed_unnoticed(published: Database, column):
    """Change one row: the first that has something there, else any. PostgreSQL's own refusals count as noticed too."""
    table = column.table
    row = select(literal_column("ctid")).select_from(table).order_by(column.is_(None), literal_column("ctid")).limit(1)
    tamper = update(table).where(literal_column("ctid") == row.scalar_subquery()).values({column: another(column)})
    try:
        texts = findings(published, tamper)
    except IntegrityError:
        return
    assert any(re.search(LEDGER[table], each) for each in texts) == (column not in VERDICTS), texts


LAST = select(func.max(tables.releases.c.version)).scalar_subquery()
LEAST = (
    select(tables.outlines.c.start)
    .order_by(tables.outlines.c.epsilon, tables.outlines.c.delta, tables.outlines.c.start)
    .limit(1)
    .scalar_subquery()
)
NOISE = "releases.noise::jsonb"
CHARGES, RELEASES, SPENT, PUBLICATIONS = tables.charges, tables.releases, tables.spent, tables.publications


@pytest.mark.more
@pytest.mark.parametrize(
    ("tamper", "finding"),
    [
        (update(CHARGES).where(CHARGES.c.id == 3).values(start=CHARGES.c.start + 1), "charge 3: its hash"),
        (update(CHARGES).where(CHARGES.c.id == 3).values(previous_hash="0" * 64), "charge 3: its previous_hash"),
        (update(SPENT).values(amount=SPENT.c.amount + Decimal("1e-30")), "not what its charges add up to"),
        (delete(SPENT), "not what its charges add up to"),
        (update(CHARGES).where(CHARGES.c.epsilon.isnot(None)).values(epsilon=1.1), "its charges pass its cap"),
        (
            update(CHARGES).where(CHARGES.c.epsilon.isnot(None)).values(epsilon=CHARGES.c.epsilon / 2),
            "its noise costs more than its charge",
        ),
        (delete(RELEASES).where(RELEASES.c.version == 2), "version 2: it was charged, but there is no such release"),
        (update(RELEASES).where(RELEASES.c.version == 1).values(fit_start=1), "its charge is not on the records"),
        (update(tables.streams).values(records=9), "end at record 8, not at 9"),
        (
            update(tables.kept_reservations).values(epsilon=tables.kept_reservations.c.epsilon / 2),
            "what ended publications are said to keep",
        ),
        (update(tables.streams).values(epsilon=Decimal("1.5")), "more is reserved than the stream's budget"),
        (update(RELEASES).where(RELEASES.c.version == 2).values(parameters=b"\0" * 24), "version 2: its digest"),
        (update(RELEASES).where(RELEASES.c.version == 2).values(noise={"scale": 9, "sensitivity": 1}), "2: its digest"),
        (update(RELEASES).where(RELEASES.c.version == 2).values(model={}), "version 2: its digest"),
        (update(RELEASES).where(RELEASES.c.version == 2).values(role="base"), "version 2: its digest"),
        (update(RELEASES).where(RELEASES.c.version == 2).values(time=RELEASES.c.time + 1), "version 2: its digest"),
        (update(RELEASES).where(RELEASES.c.version == 2).values(window_stop=99), "version 2: its digest"),
        (update(RELEASES).where(RELEASES.c.version == 2).values(parent=None), "version 2: its digest"),
        (update(RELEASES).where(RELEASES.c.version == 2).values(published_at=func.now()), "version 2: its digest"),
        (delete(RELEASES).where(RELEASES.c.version == LAST), "it was the newest one, and is missing or another"),
        (update(tables.streams).values(head="0" * 64), "it was the newest one, and is missing or another"),
        (update(tables.publications).values(worst_amount=0), "what is told of its worst record"),
        (update(tables.outlines).values(epsilon=tables.outlines.c.epsilon / 2), "its records have spent at most"),
        (
            update(tables.outlines).where(tables.outlines.c.start == LEAST).values(epsilon=0),
            "its records have spent at most",
        ),
        (update(PUBLICATIONS).values(configuration=text("""'{"privacy": {"epsilon": 5, "delta": 0}}'""")), "guarantee"),
        (update(PUBLICATIONS).values(configuration={}), "what was never written there"),
        (update(PUBLICATIONS).values(epsilon=Decimal("1.01")), "another guarantee than is reserved for it"),
        (
            update(PUBLICATIONS).where(PUBLICATIONS.c.delta > 0).values(delta=PUBLICATIONS.c.delta / 2),
            "another guarantee than is reserved for it",
        ),
        (update(PUBLICATIONS).where(PUBLICATIONS.c.delta == 0).values(kind="zcdp"), "is not that of its delta"),
        (update(PUBLICATIONS).values(state="stopped"), "it is not as it was left"),
        (update(PUBLICATIONS).values(plan={}), "what it promises"),
        (update(PUBLICATIONS).values(obligations={}), "its obligations are not what their digest is of"),
        (update(PUBLICATIONS).values(obligations_digest="0" * 64), "its obligations are not what their digest is of"),
        (update(tables.streams).values(schema={}), "what it promises"),
        (update(PUBLICATIONS).values(configuration=text("'[]'")), "what it promises"),
        (update(PUBLICATIONS).values(obligations=text("'[]'")), "its obligations are not what their digest is of"),
        (update(tables.streams).values(schema=text("'[]'")), "what it promises"),
        (update(tables.segments).values(sha256=b""), "is not what was sealed"),
        (delete(tables.segments), "one is missing or another"),
        (update(tables.streams).values(grain=0), "its records have spent at most"),
        (delete(tables.segments), "segments end at record 0, not at 8"),
        (update(CHARGES).where(CHARGES.c.id == 3).values(epsilon=float("nan"), delta=0, rho=None), "3: its hash"),
        (update(CHARGES).where(CHARGES.c.id == 3).values(epsilon=float("inf"), delta=0, rho=None), "3: its hash"),
        (update(CHARGES).where(CHARGES.c.id == 3).values(stop=2**60), "charge 3: its hash"),
        (
            update(CHARGES).where(CHARGES.c.rho.isnot(None)).values(epsilon=CHARGES.c.rho, delta=0, rho=None),
            "not in the publication's currency",
        ),
        (delete(CHARGES).where(CHARGES.c.id == 2), "charge 2 is missing before it"),
        (update(RELEASES).where(RELEASES.c.number > 1).values(number=RELEASES.c.number + 99), "release 2 of the"),
        (update(RELEASES).values(number=100 - RELEASES.c.number), "not after that of the version before"),
        (update(RELEASES).where(RELEASES.c.version == 1).values(fit_stop=9), "its charge is not on the records"),
        (update(RELEASES).values(noise=text(f"jsonb_set({NOISE}, '{{dimension}}', '1')::json")), "not as long as"),
        (update(SPENT).values(amount=99), "more is spent than is reserved"),
        (update(PUBLICATIONS).values(latest=99), "it was the newest one, and is missing or another"),
        (update(tables.streams).values(confirmed_charges=1, visible_epsilon=99), "what is shown as spent is not"),
        (delete(tables.shown).where(tables.shown.c.publication_id == 1), "nothing is shown of the publication"),
        (update(CHARGES).where(CHARGES.c.id == 3).values(charged_at=text("'infinity'")), "was never written there"),
        (update(SPENT).values(amount=Decimal("NaN")), "what was never written there"),
        (
            update(RELEASES).where(RELEASES.c.version == 2).values(noise=text("""'{"scale": 1e999}'""")),
            "version 2: its digest",
        ),
        (
            insert(tables.kept_reservations).values(stream_id=1, start=99, epsilon=0, delta=1),
            "what ended publications are said to keep",
        ),
        (update(tables.publications).values(version=99), "version 99: it was the newest one"),
        (update(PUBLICATIONS).values(position=PUBLICATIONS.c.position - 1), "it was the newest one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tampering_is_found_and_named(published: Database, tamper, finding):
    assert any(finding in each for each in findings(published, tamper))


@pytest.mark.parametrize(
    ("tamper", "finding"),
    [
        (update(tables.entries).values(start=tables.entries.c.start + 1), "entries are not continuous at record 0"),
        (update(PUBLICATIONS).where(PUBLICATIONS.c.id == 1).values(stream_id=77), "with id 1 is charged on it, which"),
    ],
    ids=["a batch", "a publication"],
)
def test_what_is_elsewhere_than_it_was_written_is_named(published: Database, tamper, finding):
    assert any(finding in each for each in findings(published, tamper))


@pytest.mark.parametrize(
    ("tamper", "finding"),
    [
        (update(CHARGES).where(CHARGES.c.version == 2).values(version=99), "it was published without a charge"),
        (
            update(CHARGES).where(CHARGES.c.id == 3).values(publication_id=CHARGES.c.publication_id % 2 + 1),
            "it was published without a charge",
        ),
        (update(PUBLICATIONS).values(position=PUBLICATIONS.c.position + 1), "it was the newest one, and is missing"),
    ],
    ids=["of another version", "of another publication", "further"],
)
def test_what_is_otherwise_than_it_was_committed_is_named(published: Database, tamper, finding):
    assert any(finding in each for each in findings(published, tamper))


def test_a_schema_that_nobody_wrote_is_a_finding_where_units_are_counted(published: Database, files: SegmentFiles):
    with published.transaction() as connection:
        (stream,) = streams.every(connection)
    for schema in ({}, []):
        (finding,) = unit_counts.recounted(published, files, replace(stream, schema=schema))
        assert finding.startswith(f"stream {stream.name}: it holds what was never written there")


def test_a_publication_that_was_changed_stays_so_when_it_ends(published: Database):
    """Stopping it seals no clock but the one that was left."""
    with pytest.raises(Undo), published.transaction() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        running = next(each for each in publications.of_stream(connection, 1) if each.state == "running")
        mine = PUBLICATIONS.c.id == running.id
        connection.execute(update(PUBLICATIONS).where(mine).values(due=PUBLICATIONS.c.due + 1))
        open_entry(connection, running).end("stopped")
        texts = verify(connection, isolated=False).findings
        assert any(f"publication {running.name}: it is not as it was left" in each for each in texts)
        raise Undo


def test_charges_cut_from_the_end_are_missed(published: Database):
    """A shorter chain is whole in itself; that it was longer is known elsewhere."""
    cut = (
        delete(RELEASES).where(RELEASES.c.charge > 4),
        delete(CHARGES).where(CHARGES.c.id > 4),
    )
    assert any("it was the newest one, and is missing" in each for each in findings(published, *cut))


@pytest.mark.parametrize("place", [0, 1, 2], ids=["oldest", "middle", "newest"])
def test_every_segment_of_several_is_looked_at(bench: Bench, place):  # noqa: F811
    """On a stream without a charge: its records are what the next ones are fitted to."""
    sealer = bench.sealer()
    for value in range(3):
        bench.append(value)
        sealer.step(wait_milliseconds=10)
    assert list(verify_segments(bench.database, bench.files)) == []
    with pytest.raises(Undo), bench.database.transaction() as connection:
        segment = segments.holding(connection, bench.stream.id, 0, 3)[place]
        connection.execute(update(tables.segments).where(tables.segments.c.start == place).values(sha256=b"0" * 32))
        assert any("is not what was sealed" in each for each in verify(connection, isolated=False).findings)
        raise Undo
    (bench.world.settings.segment_store / bench.stream.log / segment.file).unlink()
    (finding,) = verify_segments(bench.database, bench.files)
    assert finding == f"stream s, records {place} to {place + 1}: its file {segment.file} is missing"


def test_a_mark_or_a_segment_that_can_not_be_read_is_a_finding_and_hides_no_other(bench: Bench):  # noqa: F811
    bench.append(1)
    bench.sealer().step(wait_milliseconds=10)
    with bench.database.transaction() as connection:
        segment = segments.first_from(connection, bench.stream.id, 0)
    path = bench.files.root / bench.stream.log / segment.file
    path.unlink()
    for each in (path, bench.files.root / f"{bench.stream.log}.witness"):
        each.mkdir()
    assert list(verify_segments(bench.database, bench.files)) == [
        "stream s: the file beside its segments that tells how far it had come can't be read (Is a directory)",
        f"stream s, records 0 to 1: its file {segment.file} can't be read (Is a directory)",
    ]


def test_a_segment_that_was_changed_or_is_gone_is_named(published: Database, files: SegmentFiles):
    with published.transaction() as connection:
        (stream,) = streams.every(connection)
        segment = segments.first_from(connection, stream.id, 0)
    assert list(verify_segments(published, files)) == []
    path = files.root / stream.log / segment.file
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (finding,) = verify_segments(published, files)
    assert finding.startswith(f"stream {stream.name}, records 0 to {segment.stop}: the segment {segment.file} does not")
    with pytest.raises(SegmentDamaged):
        files.read(stream.log, segment.file, segment.sha256, 0, 1)
    path.write_bytes(content)
    assert len(files.read(stream.log, segment.file, segment.sha256, 0, 1)["x"]) == 1
    path.rename(path.with_suffix(".away"))
    (finding,) = verify_segments(published, files)
    assert "is missing" in finding
    path.with_suffix(".away").rename(path)
