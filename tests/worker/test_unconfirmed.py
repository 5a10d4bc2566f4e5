"""No answer of the HTTP interface shows what is committed before the high-water mark holds it."""
# ruff: noqa: F811 - a fixture is another file's

from typing import Any

import httpx
import pytest

from service.ledger import spending
from service.store import visible_positions
from tests.conftest import ADMIN_KEY, serving
from tests.worker.published import Bench
from tests.worker.test_confirmation import crash_before_the_mark
from tests.worker.test_publishing import bench  # noqa: F401

PATHS = (
    "streams",
    "streams/s",
    "streams/s/ledger",
    "streams/s/ledger/charges",
    "publications",
    "publications/p",
    "publications/p/card",
    "publications/p/releases",
    "publications/p/releases/1",
    "publications/p/releases/latest",
    "publications/p/releases/outline",
)


@pytest.mark.parametrize("bench", ["needed"], indirect=True)
def test_no_answer_shows_what_is_not_confirmed(bench: Bench, monkeypatch):
    headers = {"Authorization": f"Bearer {ADMIN_KEY}", "If-None-Match": '"1.json.1"'}
    with serving(bench.world.settings) as url, httpx.Client(base_url=f"{url}/v1/", headers=headers) as client:

        def answers() -> dict[str, tuple[int, Any]]:
            each = {path: client.get(path) for path in PATHS}
            with monkeypatch.context() as many_ranges:
                many_ranges.setattr(spending, "exact", lambda *_: None)
                each["streams/s/ledger of many ranges"] = coarse = client.get("streams/s/ledger")
            assert (each["streams/s/ledger"].json()["exact"], coarse.json()["exact"]) == (True, False)
            return {path: (answer.status_code, answer.content and answer.json()) for path, answer in each.items()}

        before = answers()
        crash_before_the_mark(bench, monkeypatch)
        assert answers() == before
        bench.context().audit.confirm()
        after = answers()
    assert [path for path in after if after[path] == before[path]] == []


def test_what_is_shown_of_a_publication_never_falls(bench: Bench):
    """A late confirmation has an older clock, or a sum from before a charge that moved no clock."""
    bench.publish_all()
    now = bench.now()
    at = {
        "position": now.position,
        "due": now.due,
        "worst_amount": now.worst_amount,
        "state": "running",
        "reason": None,
    }
    for older in ({"worst_amount": now.worst_amount / 2}, {"position": now.position - 1, "due": now.due - 1}):
        late = {"stream_id": now.stream_id, "publication_id": now.id, "worst_record": 0} | at | older
        with bench.database.transaction() as connection:
            visible_positions.show(connection, [visible_positions.PendingVisibility(**late)])
        assert bench.now() == now
