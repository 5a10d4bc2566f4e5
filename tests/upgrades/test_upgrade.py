"""A data folder of the previous version goes on with this one, through a kill -9, and its ledger holds all the time.

make_folder.py says what is in the folder and how it was made.
"""

import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from service.embedded import Servers, embedded_database, embedded_servers
from service.embedded.postgres import SUPERUSER
from service.ledger import verify as ledger
from service.mechanisms.lifelong import encoder_pass
from service.segments.files import SegmentFiles
from service.store.database import Database
from service.store.migrate import migrate
from tests.conftest import ok, wait_until
from tests.faults.up import ROOT, Up
from tests.upgrades.make_folder import (
    DELAYED,
    DUMP,
    ENDED,
    PUBLICATIONS,
    RECORDS,
    STREAMS,
    answer_labels,
    ask,
    records,
    versions,
)

ARCHIVE = Path(__file__).with_name("folder.tar.xz")
NEW_RECORDS = 64
REMEMBERING = ("leader-blt", "leader-toeplitz", "leader-tree", "lifelong", "window-statistics", "numbers-statistics")
"""They read no record twice, and their noise is small: only memory says anything about the feature of old records."""
ENCODED = "lifelong-encoder"  # needs the extra `deep`

PROMISED = {
    "streams": "SELECT id, name, schema::text, promise FROM streams",
    "publications": "SELECT id, name, configuration::text, plan::text, promise FROM publications",
    "charges": "SELECT * FROM charges",
    "releases": "SELECT publication_id, version, number, parameters, model::text, noise::text, digest FROM releases",
}
REMEMBERED = {
    "memories": "SELECT publication_id, digest FROM memories",
    "parts": "SELECT publication_id, number, content FROM parts",
    "parked": "SELECT publication_id, position, version, content FROM parked",
    "labels": "SELECT publication_id, record, label FROM label_requests",
}

ATTEMPTED = (
    "SELECT p.name, p.due FROM publications p JOIN leases l ON l.resource = 'publication:' || p.id WHERE l.owner > ''"
)


class Folder(NamedTuple):
    """A data folder as the previous version left it, and the rows of its database, by table."""

    path: Path
    rows: dict[str, set[tuple]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The archived folder with its database restored. One test looks at it before the other one migrates it."""
    path = tmp_path_factory.mktemp("older") / "data"
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and newer
        archive.extractall(path)
    with embedded_servers(path) as servers:
        restore(servers, (path / DUMP).read_text())
        return Folder(path, rows(servers.service_url, PROMISED | REMEMBERED))


@pytest.fixture
def up(folder: Folder) -> Iterator[Up]:
    """This version on that folder, not started yet."""
    made = Up(folder.path)
    yield made
    if made.process.poll() is None:
        made.kill()


def restore(servers: Servers, dump: str) -> None:
    url = make_url(servers.database_url).set(drivername="postgresql", username=SUPERUSER)
    with psycopg.connect(url.render_as_string(False)) as connection:
        connection.execute(dump.encode())


def rows(url: str, queries: dict[str, str]) -> dict[str, set[tuple]]:
    database = Database(url)
    with database.transaction() as connection:
        rows = {name: set(connection.execute(text(query))) for name, query in queries.items()}
    database.close()
    return rows


@pytest.mark.more
def test_the_folder_has_something_of_everything(folder: Folder):
    looks = {
        "publications": "SELECT name, state FROM publications",
        "erased": "SELECT 1 FROM erasures",
        "labelled": "SELECT 1 FROM label_requests WHERE label IS NOT NULL",
        "unlabelled": "SELECT 1 FROM label_requests WHERE label IS NULL",
        "released": "SELECT name FROM publications WHERE version > 0",
    }
    with embedded_database(folder.path) as url:
        seen = rows(url, looks)
    running = {(name, "running") for name in (*PUBLICATIONS, DELAYED)}
    assert {tuple(row) for row in seen["publications"]} == running | {(name, "stopped") for name in ENDED}
    assert all((folder.rows | seen).values())
    assert {name for (name,) in seen["released"]} >= {*PUBLICATIONS, *ENDED} - {"queries"}


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_publication_goes_on_with_what_it_remembers(folder: Folder, up: Up):
    with embedded_servers(folder.path) as servers:
        attempted = rows(servers.service_url, {"": ATTEMPTED})[""]
        migrate(servers.database_url, service=servers.service_url)
        assert rows(servers.service_url, PROMISED | REMEMBERED) == folder.rows
        verify(folder.path, servers.service_url)
    up.start()
    with up.client() as client:
        before = versions(client)
        post(client, RECORDS, RECORDS + NEW_RECORDS // 2)
        for name, due in attempted:  # a second kill at the same step would halt it
            wait_until(lambda of=name, at=due: answer_labels(client, most=2**62) and is_past(client, of, at))
        wait_until(lambda: versions(client) != before)
    up.kill()
    with embedded_database(folder.path) as url:
        verify(folder.path, url)
    up.start()
    with up.client() as client:
        post(client, RECORDS + NEW_RECORDS // 2, RECORDS + NEW_RECORDS)
        for name in set(PUBLICATIONS) - without_releases():
            wait_until(lambda of=name: answer_labels(client, most=2**62) and goes_on(client, of))
        wait_until(lambda: ask(client, [3])["time"] == RECORDS + NEW_RECORDS)
        wait_until(lambda: versions(client)[DELAYED] >= len(folder.rows["parked"]))
        after = versions(client)
        assert all(after[name] == before[name] for name in ENDED)
        for name in REMEMBERING:
            old, new = newest(client, name)["parameters"]["values"][0][:2]
            assert old > new / 4 > 0, name
    up.stop()
    verify_as_a_user(folder.path)
    with embedded_database(folder.path) as url:
        later = rows(url, PROMISED)
    assert all(folder.rows[name] <= later[name] for name in PROMISED)
    counted = Counter(row.publication_id for row in later["releases"])
    assert all(max_of(later, publication) == number for publication, number in counted.items())


def verify(folder: Path, url: str) -> None:
    """Check what `perennial ledger verify` checks."""
    database = Database(url)
    with database.transaction() as connection:
        report = ledger.verify(connection)
    findings = [*report.findings, *ledger.verify_segments(database, SegmentFiles(folder / "segments"))]
    database.close()
    assert findings == []


def verify_as_a_user(folder: Path) -> None:
    """Run `perennial ledger verify`, which finds nothing."""
    command = [sys.executable, "-m", "service", "ledger", "verify", "--data-dir", str(folder)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def without_releases() -> set[str]:
    """Return the publications that release nothing for records alone."""
    return {"queries"} if encoder_pass.available() else {"queries", ENCODED}


def post(client: httpx.Client, start: int, end: int) -> None:
    """Post records that differ from those before: the other feature says which label they have."""
    for name in STREAMS:
        ok(client.post(f"/v1/streams/{name}/records", json=records(name, start, end, feature=1)), 202)
        wait_until(lambda of=name: ok(client.get(f"/v1/streams/{of}"))["records"] == end)


def goes_on(client: httpx.Client, name: str) -> bool:
    """Return whether the newest release has seen records that were posted after the kill."""
    assert ok(client.get(f"/v1/publications/{name}"))["state"] == "running"
    return newest(client, name)["time"] > RECORDS + NEW_RECORDS // 2


def is_past(client: httpx.Client, name: str, due: int) -> bool:
    """Return whether a publication has taken the step that was due at a record number."""
    return ok(client.get(f"/v1/publications/{name}"))["due"] != due


def newest(client: httpx.Client, name: str) -> dict[str, Any]:
    return ok(client.get(f"/v1/publications/{name}/releases/latest"))


def max_of(rows: dict[str, set], publication: int) -> int:
    """Return the newest version of a publication."""
    return max(row.version for row in rows["releases"] if row.publication_id == publication)
