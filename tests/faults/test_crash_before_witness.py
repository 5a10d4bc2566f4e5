"""A worker killed between a publishing commit and the file beside the segments that witnesses it.

Nobody saw anything that the file does not hold, all that was shown stays as it was, and a new worker goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from service.segments.files import SegmentFiles
from service.store import streams
from service.store.database import Database
from tests.conftest import World, ok, publication, run_out, wait_until
from tests.faults.load import Producer, check, drained, due, set_up
from tests.faults.processes import Api, Moment, died, end, start_worker, working
from tests.faults.readers import Reader, Shown

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

PROMPT = {"publish_delay": 0}
PUBLISHED: Moment = ("Publisher._committed: commit", "after")
MOMENTS: list[Moment] = [
    PUBLISHED,
    ("SegmentFiles.put_high_water_mark: sync", "before"),
    ("Confirmer._show: commit", "before"),
]
JUST_AFTER: list[Moment] = [  # one before; no more is lost
    ("SegmentFiles.put_high_water_mark: sync", "after"),
    ("Confirmer._show: commit", "after"),
]
STREAM, PUBLICATION = "s", "batches"


@dataclass
class Scene:
    """An API that is read all the time, and a stream under load whose worker dies."""

    world: World
    api: Api
    database: Database
    files: SegmentFiles
    shown: Shown
    producer: Producer

    def witnessed(self) -> int:
        """Up to which charge the file beside the segments goes."""
        with self.database.transaction() as connection:
            log = streams.find(connection, STREAM).log
        return (self.files.high_water_mark(log) or {}).get("charges", 0)

    def newest_shown(self) -> int:
        return max((version for _, version in self.shown.versions({PUBLICATION})), default=0)


@pytest.fixture
def scene(world: World, seed: str) -> Iterator[Scene]:
    api, shown = Api(world.settings), Shown()
    with api.client() as client:
        configuration = publication(STREAM, {"kind": "independent_batches", "batch": 20}, **PROMPT)
        set_up(client, [STREAM], {PUBLICATION: configuration})
    database = Database(world.settings.database_url)
    files = SegmentFiles(world.settings.segment_store)
    producer, reader = Producer(api.client, STREAM, 0, seed=seed), Reader(api.client, "API", shown, seed)
    reader.look_at(STREAM, (PUBLICATION,))
    for thread in (producer, reader):
        thread.start()
    yield Scene(world, api, database, files, shown, producer)
    producer._over.set()
    producer.join(200)
    reader.finish()
    end(api.process)
    database.close()


@pytest.mark.parametrize(
    "moments", [MOMENTS, pytest.param(JUST_AFTER, marks=pytest.mark.long)], ids=["before it is shown", "just after"]
)
def test_what_was_not_witnessed_was_not_shown_and_the_stream_goes_on(scene: Scene, moments: list[Moment]):
    with working(scene.world.settings):
        wait_until(lambda: scene.newest_shown() >= 2 and scene.shown.charges(STREAM))
    run_out(scene.database)
    for at in moments:  # each finds what the one before left
        died(start_worker(scene.world.settings, at, since=PUBLISHED))
        witnessed = scene.witnessed()
        with scene.api.client() as client:
            charges = ok(client.get(f"/v1/streams/{STREAM}/ledger/charges"))["items"]
            releases = ok(client.get(f"/v1/publications/{PUBLICATION}/releases"))["items"]
        assert max(each["id"] for each in charges) <= witnessed
        assert max(each["charge"]["id"] for each in releases) <= witnessed
        assert max(scene.shown.charges(STREAM)) <= witnessed
        run_out(scene.database)
    last = scene.newest_shown()
    with working(scene.world.settings), scene.api.client() as client:
        wait_until(lambda: scene.newest_shown() > last + 2)
        scene.producer.finish()
        wait_until(lambda: drained(client, STREAM, [scene.producer]))
        wait_until(lambda: not due(scene.database))
        assert ok(client.get(f"/v1/streams/{STREAM}"))["distrusted"] is None
        for _, version in scene.shown.versions({PUBLICATION}):
            answer = ok(client.get(f"/v1/publications/{PUBLICATION}/releases/{version}"))
            scene.shown.release(answer, "at the end")
    assert scene.shown.doubles() == {}
    check(scene.database, scene.files, [scene.producer])
