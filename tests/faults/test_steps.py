"""Killed before every step of ingest, numbering, fitting and publishing, which is after the one before; then restarted.

After each, every record that got a 202 is numbered once, in order, and all that is due is published and paid for once.
The steps are those that the code has (steps.py finds them), so a new one must be listed here, with a way to come there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from pathlib import Path

import httpx
import pytest
from redis import Redis
from sqlalchemy import Connection, delete, func, select, update

from service.embedded import Servers
from service.ledger import open_ledger
from service.log.connection import entries_key, state_key
from service.segments.files import SegmentFiles
from service.settings import Settings
from service.store import segments, streams, tables
from service.store.database import Database
from tests.conftest import make_world, ok, publication, run_out, serving, unique, wait_until
from tests.faults.load import Batch, Producer, check, drained, due, evaluation, set_up, waiting
from tests.faults.processes import Api, died, start_worker, working
from tests.faults.steps import When, in_the_code

pytestmark = pytest.mark.slow

LOOKS = {
    # They change nothing: before and after are one moment, and it lies between two of the steps below.
    "Appender.ready: log",
    "Audit.ask_invariants: commit",
    "Audit.look: commit",
    "Audit._vouched_for: commit",
    "Audit.walk: commit",
    "Audit.confirm: commit",
    "Audit.forget_ended: commit",
    "read: commit",
    "_read: commit",
    "Confirmer._committed: commit",
    "Confirmer._learn_logs: commit",
    "Publisher._publish_due: commit",
    "Dispatcher.look: commit",
    "Publisher._wants: commit",
    "Reader.check_each: log",
    "Reader.read: log",
    "Sweeper.orphans: commit",
    "Sealer._look: commit",
    "Sealer._read: commit",
    "Sweeper.sweep: commit",
    "Sealer._tidy: commit",
    "Ticker.step: commit",
    "wait: commit",
    "counted: commit",
    "ReleasedModels.predict: commit",
    "ReleasedModels.progress: commit",
    "locate: commit",
    "verify_segments: commit",
    "_against_its_mark: commit",
    "PatternReader._piece: commit",
    "PatternReader.first: commit",
    "_releases: commit",
    "_part: commit",
    "_parts: commit",
    "keep_their_servers: commit",
    # Loads the script that the next step runs, and asks how its server keeps what it is given.
    "Appender._load: log",
    "Appender._look_at_durability: log",
    "Appender.state: log",
}

ON_OBJECTS = {  # in the place of a folder, in test_simulator.py
    "SegmentObjects._create: object",
    "SegmentObjects._remove: object",
    "SegmentObjects.put: object",
}
BY_A_WORKER = {
    "Audit._walk_together: commit",
    "Confirmer._show: commit",
    "LeaseKeeper._renew: commit",
    "LeaseKeeper.appear: commit",
    "LeaseKeeper.drop: commit",
    "LeaseKeeper.take: commit",
    "LeaseKeeper.take_several: commit",
    "Publisher._committed: commit",
    "draw: fit",
    "Publisher._note: commit",
    "Reader.forget: log",
    "Reader.trim: log",
    "Eraser.delete_erased: commit",
    "Dropper.drop_unneeded: commit",
    "Merger.replace: commit",
    "Sealer._seal: commit",
    "SegmentFiles.delete: delete",
    "SegmentFiles.put_high_water_mark: sync",
    "SegmentFiles.put: sync",
    "Ticker._publish: commit",
    "_sync: sync",
}
MERGING = {"Merger.replace: commit", "SegmentFiles.delete: delete"}  # 16 segments, into one
WHEN_SOMETHING_IS_WRONG = {
    "Confirmer._distrust: commit",
    "Publisher._distrust: commit",
    "Publisher._halt: commit",
    "Reader.halt: log",
    "Sealer._guard: commit",
    "Ticker._distrust: commit",
}
ELSEWHERE = {
    # tests/worker/test_lost_log.py, test_restored.py and test_dead_letters.py: none needs a process to be seen.
    "Appender.drop_dead: log",
    # tests/segments/test_segment_files.py: of a mark that could not be written.
    "_gone_if_it_fails: delete",
    # tests/segments/objects: copies of what an object store has, which nobody misses.
    "SegmentObjects._drop_copies: delete",
    "SegmentObjects._new_copy: delete",
    # tests/worker/test_due_fits.py: why a step waits, which each worker says again that meets it.
    "Publisher._drawn: commit",
    # tests/worker/test_attempts.py: what a worker killed just before or after it leaves is the same.
    "LeaseKeeper.abandon: commit",
    # tests/worker/test_fits.py: of a process of its own, which writes nothing.
    "_taken: fit",
    # tests/worker/test_ticks.py: of a clock that was ahead; before and after the commit another worker does the same.
    "Ticker._take_ticks_anew: commit",
    # tests/worker/test_forgotten_batches.py: numbers of a week ago, of which the next look forgets what is left.
    "Dropper.forget_entries: commit",
    # tests/store/test_migrations.py: each is one transaction.
    "migrate: commit",
    "Appender.resume: log",
    "Reader.bury: log",
    "Reader.go_on: log",
}
BY_THE_API = {"Appender._evaluate: log", "Appender.create: log", "Services.run.<locals>.transact: commit"}
BY_UNITS = {  # tests/api/test_units.py and tests/worker/test_unit_erasing.py
    "erase_unit: commit",
    "_slots: commit",
    "get_unit.<locals>.look: commit",
}
BY_QUERIES = {  # tests/faults/test_queries.py
    "Answerer._confirmed: commit",
    "Answerer._give_back: commit",
    "Answerer._keep_lease: commit",
    "Answerer._look: commit",
    "close: commit",
}

BY_THE_EXPLORER = {  # tests/api/test_explorer.py
    "Explorer.step: commit",
    "Explorer._explore: commit",
    "Explorer._content: commit",
}


def test_every_step_that_there_is_is_listed():
    listed = (
        LOOKS,
        ON_OBJECTS,
        BY_A_WORKER,
        WHEN_SOMETHING_IS_WRONG,
        ELSEWHERE,
        BY_THE_API,
        BY_UNITS,
        BY_QUERIES,
        BY_THE_EXPLORER,
    )
    assert in_the_code() == set().union(*listed)
    assert sum(map(len, listed)) == len(in_the_code())


@dataclass
class Scene:
    """Streams and publications that are used again and again, by workers that die; the API lives on."""

    settings: Settings
    client: httpx.Client
    database: Database
    producers: dict[str, "Hand"] = field(default_factory=dict)
    unerased: Iterator[int] = field(default_factory=count)

    def recover(self) -> None:
        """A new worker numbers and publishes the rest, deletes what was erased, and ends; then all is as it must be."""
        run_out(self.database)
        hands = list(self.producers.values())
        with working(self.settings):
            for hand in hands:
                wait_until(lambda of=hand.stream: drained(self.client, of, hands))
            wait_until(lambda: not due(self.database))
            wait_until(lambda: not self._undeleted())
        check(self.database, SegmentFiles(self.settings.segment_store), hands)

    def _undeleted(self) -> list:
        with self.database.transaction() as connection:
            return [
                each
                for known in streams.every(connection)
                for each in segments.undeleted_erasures(connection, known.id)
            ]


class Hand(Producer):
    """A producer by hand: posts when it is told to."""

    def __init__(self, scene: Scene, stream: str, number: int) -> None:
        super().__init__(lambda: scene.client, stream, number)
        self._next = 0
        scene.producers[stream] = self

    def next(self, records: int) -> Batch:
        batch = Batch(self.number, self._next, self._next + records)
        self._next = batch.stop
        return batch

    def post(self, batches: int, *, records: int = 1) -> None:
        for _ in range(batches):
            assert self._post(self._client(), self.next(records))


def abandon(database: Database) -> None:
    """As if whoever held leases had died, and their time had passed."""
    with database.transaction() as connection:
        connection.execute(update(tables.leases).values(owner="dead", expires_at=func.clock_timestamp()))


@contextmanager
def a_scene(servers: Servers, folder: Path) -> Iterator[Scene]:
    settings = make_world(servers, folder, lease_seconds=1.0).settings
    database = Database(settings.database_url)
    headers = {"Authorization": f"Bearer {settings.admin_key.get_secret_value()}"}
    with serving(settings) as url, httpx.Client(base_url=url, headers=headers, timeout=200) as client:
        yield Scene(settings, client, database)
    database.close()


@pytest.fixture(scope="module")
def scene(servers, tmp_path_factory):
    with a_scene(servers, tmp_path_factory.mktemp("steps")) as made:
        windows = publication("kept", {"kind": "sliding_window", "block": 10, "blocks": 2})
        trees = {"kind": "online_leader", "batch": 6, "noise": "window_tree", "window": 4}
        online = publication("kept", trees, learner={"kind": "noisy_gradient_descent"})
        ticking = publication("kept", {"kind": "independent_batches", "batch": 6}, publish_delay=0.05)
        figures = evaluation("kept", ["windows", "ticking"], block=2)
        known = {"windows": windows, "online": online, "ticking": ticking, "figures": figures}
        set_up(made.client, ["kept"], known, evaluation={"every": 5})
        set_up(made.client, ["needed"], {}, retention="needed")
        set_up(made.client, [], {"batches": publication("needed", {"kind": "independent_batches", "batch": 4})})
        for number, stream in enumerate(["kept", "needed"]):
            Hand(made, stream, number).post(1, records=20)
        made.recover()
        yield made


@pytest.mark.more
@pytest.mark.parametrize("steps", [sorted(BY_A_WORKER)[start::2] for start in range(2)])
def test_workers_killed_at_every_step_one_after_the_other(scene: Scene, steps):
    """Each finds what the one before left, and has more to do; then a last one does the rest."""
    for step in steps:
        erased = next(scene.unerased)  # another one each time: nothing would be left to do for the same again
        scene.producers["kept"].post(17 if step in MERGING else 7)  # a segment each; every 6 records are a release
        scene.producers["needed"].post(2, records=4)
        ok(scene.client.delete(f"/v1/streams/kept/records?start={erased}&end={erased + 1}"), 202)
        if step == "Publisher._note: commit":
            abandon(scene.database)
        died(start_worker(scene.settings, (step, "before")))
        run_out(scene.database)
        with scene.database.transaction() as connection:  # a second kill at the same step would halt its publication
            connection.execute(delete(tables.attempts))
    scene.recover()


def test_an_api_killed_at_any_step(scene: Scene):
    """Nothing of its own follows, and the client did not hear of it."""
    for step in sorted(BY_THE_API):
        for when in ("before", "after"):
            kill_an_api(scene, step, when)
    scene.recover()


def kill_an_api(scene: Scene, step: str, when: When) -> None:
    hand, name = scene.producers["kept"], unique("made")
    stream = {"name": name, "features": 1, "task": {"kind": "unlabelled"}, "budget": {"epsilon": 1, "delta": 0}}
    mechanism = publication("kept", {"kind": "independent_batches", "batch": 100}) | {"name": name}
    batch = hand.next(3)
    api = Api(scene.settings, (step, when))
    with api.client() as client:
        ok(client.get("/v1/streams"))
        api.now()
        if step == "Appender._evaluate: log":
            assert not hand._post(client, batch)
        else:
            path, body = ("/v1/streams", stream) if step == "Appender.create: log" else ("/v1/publications", mechanism)
            with pytest.raises(httpx.HTTPError):
                client.post(path, json=body)
    died(api.process)
    if step == "Appender._evaluate: log":
        assert hand._post(scene.client, batch)
    elif step == "Appender.create: log":
        ok(scene.client.post("/v1/streams", json=stream), 201)
    else:
        ok(scene.client.post("/v1/publications", json=mechanism), 201 if when == "before" else 409)
        ok(scene.client.delete(f"/v1/publications/{name}"))


@pytest.fixture(scope="module")
def trouble(servers, tmp_path_factory):
    with a_scene(servers, tmp_path_factory.mktemp("trouble")) as made:
        yield made


def spoil(connection: Connection, stream: streams.Stream, name: str, step: str, settings: Settings) -> None:
    """Do what a worker that comes to this step finds to be wrong."""
    publication = tables.publications.c.name == name
    if step == "Publisher._halt: commit":  # as if more had been charged than it may ever charge
        charged = select(tables.publications.c.id, 2, 4, Decimal(2)).where(publication)
        spent = tables.spent.insert().from_select(["publication_id", "start", "stop", "amount"], charged)
        connection.execute(spent)
    elif step == "Confirmer._distrust: commit":
        connection.execute(update(tables.streams).where(tables.streams.c.id == stream.id).values(head="another"))
    elif step.endswith("_distrust: commit"):
        connection.execute(update(tables.publications).where(publication).values(seal="x"))
    else:
        with Redis.from_url(settings.redis_url) as redis:
            redis.delete(state_key(stream.log), entries_key(stream.log))


@pytest.mark.more
@pytest.mark.parametrize("step", sorted(WHEN_SOMETHING_IS_WRONG))
def test_a_worker_killed_while_it_stops_what_is_wrong(trouble: Scene, step):
    """The next one stops it as well, and says why; nothing was published meanwhile."""
    stream, name = unique("stream"), unique("publication")
    delay = 1 if step.startswith("Ticker") else 0
    configuration = publication(stream, {"kind": "independent_batches", "batch": 2}, publish_delay=delay)
    set_up(trouble.client, [stream], {name: configuration})
    hand = Hand(trouble, stream, 0)
    mine = tables.streams.c.name == stream
    dying = start_worker(trouble.settings, (step, "before"))
    hand.post(1, records=2)
    wait_until(lambda: ok(trouble.client.get(f"/v1/publications/{name}"))["latest"] == 1)

    def spoiled() -> int:
        """Return how many versions there are once something is wrong; 0: no step waits for the tick to find it at."""
        if delay:
            hand.post(1, records=2)
        with trouble.database.transaction() as connection:
            row = streams.find(connection, stream)
            open_ledger(connection, row.id)  # no tick is taken meanwhile
            if delay and name not in waiting(trouble.database):
                return 0
            spoil(connection, row, name, step, trouble.settings)
            mine = tables.publications.c.name == name
            return connection.execute(select(tables.publications.c.version).where(mine)).scalar_one()

    made = wait_until(spoiled)
    if step.startswith("Publisher"):
        hand.post(1, records=2)
    died(dying)
    run_out(trouble.database)

    def reason() -> str | None:
        shown = ok(trouble.client.get(f"/v1/publications/{name}"))
        return shown["reason"] or ok(trouble.client.get(f"/v1/streams/{stream}"))["halted"]

    with working(trouble.settings):
        wait_until(reason)
        refused = trouble.client.post(f"/v1/streams/{stream}/records", json={"x": [[0, 0]], "y": [0]})
        assert refused.status_code == (503 if step.startswith(("Reader", "Sealer")) else 202)
    assert 1 <= ok(trouble.client.get(f"/v1/publications/{name}"))["latest"] <= made
    with trouble.database.transaction() as connection:  # the next test's workers have nothing to do with it
        connection.execute(update(tables.streams).where(mine).values(distrusted="over", halted="over"))
