"""Coins, labels and kill -9: no record's coin is tossed twice, none is passed over, and each is charged once."""

import httpx
import pytest
from sqlalchemy import delete

from service.publishing.confirmation import Confirmer
from service.segments.files import SegmentFiles
from service.store import tables
from service.store.database import Database
from tests.conftest import ok, run_out, wait_until
from tests.faults.load import check_ledger
from tests.faults.processes import Api, died, end, start_worker, working

pytestmark = pytest.mark.slow

SIZE = 4
EPSILON = {"epsilon": 26, "delta": 0}
MECHANISM = {"kind": "active_learning", "batching": "fixed_window", "size": SIZE, "threshold": 9.0}
MECHANISM["epsilon_selection"] = 25  # nearly every record is selected: all but one in e^25
LEARNER = {"kind": "noisy_gradient_descent"}
MOMENTS = [
    ("draw: fit", "after"),
    ("Publisher._committed: commit", "before"),
    ("Publisher._committed: commit", "after"),
]


def test_workers_killed_while_they_select_and_while_they_learn(world):
    """First with the coins of a window, then with the labels of it: twice nothing is left of that, then all is."""
    database, api = Database(world.settings.database_url), Api(world.settings)
    confirmer = Confirmer(database, SegmentFiles(world.settings.segment_store))
    answered: list[int] = []
    with api.client() as client:
        task = {"kind": "unlabelled"}
        ok(client.post("/v1/streams", json={"name": "s", "features": 1, "task": task, "budget": EPSILON}), 201)
        ok(client.post("/v1/streams/s/records", json={"x": [[1], [-1]] * (3 * SIZE // 2)}), 202)
        with working(world.settings):
            wait_until(lambda: ok(client.get("/v1/streams/s"))["records"] == 3 * SIZE)
        publication = {"name": "p", "stream": "s", "start": 0, "mechanism": MECHANISM, "learner": LEARNER}
        ok(client.post("/v1/publications", json=publication | {"privacy": EPSILON}), 201)
        run_out(database)
        left = []
        for at in 2 * MOMENTS:
            died(start_worker(world.settings, at))
            run_out(database)
            with database.transaction() as connection:  # a second kill at the same step would halt it
                connection.execute(delete(tables.attempts))
            confirmer.confirm(1)  # as another worker does: requests whose coins could be lost are not shown
            answered += answer_all(client)
            described = ok(client.get("/v1/publications/p"))
            left.append((len(answered), described["latest"]))
        assert left == [(0, None), (0, None), (SIZE, None), (SIZE, None), (SIZE, None), (SIZE, 1)]
        with working(world.settings):
            wait_until(
                lambda: answered.extend(answer_all(client)) or ok(client.get("/v1/publications/p"))["latest"] == 3
            )
        assert answered == list(range(3 * SIZE))
        releases = ok(client.get("/v1/publications/p/releases"))["items"][::-1]
        assert [(each["fit"]["start"], each["fit"]["end"]) for each in releases] == [(0, 4), (4, 8), (8, 12)]
        charges = ok(client.get("/v1/streams/s/ledger/charges?limit=1000"))["items"][::-1]
        assert [each["start"] for each in charges] == [0, *(each["end"] for each in charges[:-1])]
        assert charges[-1]["end"] == 3 * SIZE
        assert {each["epsilon"] for each in charges} == {EPSILON["epsilon"]}
    end(api.process)
    check_ledger(database, SegmentFiles(world.settings.segment_store))
    database.close()


def answer_all(client: httpx.Client) -> list[int]:
    """Labels whatever is asked for; returns which records that were."""
    records = []
    while (answer := client.get("/v1/publications/p/label-requests")).status_code != 204:
        records.append(ok(answer)["record"])
        ok(client.post("/v1/publications/p/labels", json={"record": records[-1], "label": records[-1] % 2}))
    return records
