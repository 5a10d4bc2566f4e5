"""`publish_delay` over HTTP: what it may be, what a plan says of it, and that all that is seen follows the tick."""

import contextlib
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import select

from service.store.database import Database
from service.store.tables import parked, publications
from tests.conftest import Service, ok, publication, unique, wait_until

BATCHES = {"kind": "independent_batches", "batch": 4}
TICK = 0.5


def make(service: Service, stream: str, **more: Any) -> dict[str, Any]:
    body = publication(stream, BATCHES, **more)
    return ok(service.client().post("/v1/publications", json=body), 201)


def moment(timestamp: str) -> datetime:
    return datetime.fromisoformat(timestamp)


@pytest.mark.parametrize(
    ("settings", "delay"), [({"publish_delay": None}, 1), ({"publish_delay": 0}, 0), ({"publish_delay": 2.5}, 2.5)]
)
def test_it_is_told_as_it_was_asked_for_and_is_a_second_by_default(service: Service, settings, delay):
    made = make(service, service.stream(), **settings)
    assert made["publish_delay"] == delay
    assert ok(service.client().get(f"/v1/publications/{made['name']}"))["publish_delay"] == delay
    plan = ok(service.client().post("/v1/plan", json=publication(made["stream"], BATCHES, **settings)))
    assert plan["timing"]["publish_delay"] == delay


def test_a_request_without_it_gets_a_second(service: Service):
    body = publication(service.stream(), BATCHES)
    del body["publish_delay"]
    assert ok(service.client().post("/v1/publications", json=body), 201)["publish_delay"] == 1


@pytest.mark.parametrize("value", [-1, 0.01, 86_401, "1", True, 1e-320])
def test_other_values_are_refused(service: Service, value):
    answer = service.client().post("/v1/plan", json=publication(service.stream(), BATCHES, publish_delay=value))
    assert ok(answer, 422)["errors"][0]["field"] == "publish_delay"


def test_where_steps_are_due_by_queries_there_is_no_tick(service: Service):
    body = {"name": unique("stream"), "task": {"kind": "categorical", "cardinality": 4}}
    stream = ok(service.client().post("/v1/streams", json=body | {"budget": {"epsilon": 1, "delta": 0}}), 201)["name"]
    queries = {
        "name": unique("publication"),
        "stream": stream,
        "mechanism": {"kind": "linear_queries", "first": 100, "hits": 2},
        "privacy": {"epsilon": 1, "delta": 0},
    }
    refused = ok(service.client().post("/v1/publications", json=queries | {"publish_delay": 1}), 422)
    assert "leave it out" in refused["detail"]
    assert ok(service.client().post("/v1/publications", json=queries), 201)["publish_delay"] == 0


def test_a_plan_warns_where_fits_may_be_late_or_tell_their_time(service: Service):
    stream = service.stream(features=1000, classes=10)
    alone = service.client(service.key("read", streams=[stream]))  # fits of other streams' publications may queue too

    def warning(batch: int, delay: float) -> str | None:
        body = publication(stream, BATCHES | {"batch": batch}, publish_delay=delay)
        return ok(alone.post("/v1/plan", json=body))["timing"].get("warning")

    assert "tells of its records" in warning(4, 0)
    assert warning(4, 3600) is None
    assert "longer publish_delay" in warning(1_000_000, 1)
    assert warning(1_000_000, 86_400) is None


def test_a_plan_tells_a_limited_key_nothing_of_the_fits_of_others(service: Service):
    streams = [service.stream(features=1000, classes=10) for _ in range(2)]
    large = BATCHES | {"batch": 1_000_000}
    service.publish(streams[0], large)
    limited = service.client(service.key("read", streams=streams[1:]))
    plan = ok(limited.post("/v1/plan", json=publication(streams[1], large)))["timing"]
    assert plan["queue_seconds"] == plan["fit_seconds"] > 1


def test_release_charge_events_and_what_is_spent_follow_the_tick(service: Service):
    stream = service.stream()
    name = make(service, stream, publish_delay=TICK)["name"]
    client = service.client()
    service.post(stream, [[0.1, 0.2]] * 4, [0, 1, 0, 1])
    with client.stream("GET", f"/v1/publications/{name}/events") as events:
        event = next(line for line in events.iter_lines() if line.startswith("id:"))
    assert event == "id: 1"
    release = ok(client.get(f"/v1/publications/{name}/releases/1"))
    (charge,) = ok(client.get(f"/v1/streams/{stream}/ledger/charges"))["items"]
    assert release["published_at"] == charge["charged_at"]
    at = moment(release["published_at"])
    assert Decimal(str(at.timestamp())) % Decimal(str(TICK)) == 0
    assert ok(client.get(f"/v1/streams/{stream}/ledger"))["spent"]["epsilon"] == 1


def waits_for_its_tick(service: Service, name: str) -> bool:
    """Return whether a finished step of the publication waits in the database for its tick."""
    database = Database(service.settings.database_url)
    finished = select(parked.c.publication_id).join(publications, publications.c.id == parked.c.publication_id)
    with contextlib.closing(database), database.transaction() as connection:
        return connection.execute(finished.where(publications.c.name == name)).first() is not None


def test_before_the_tick_nothing_tells_that_the_step_is_finished(service: Service):
    stream = service.stream()
    name = make(service, stream, publish_delay=86_400)["name"]
    client = service.client()
    before = ok(client.get(f"/v1/publications/{name}"))
    service.post(stream, [[0.1, 0.2]] * 4, [0, 1, 0, 1])
    wait_until(lambda: waits_for_its_tick(service, name))
    after = ok(client.get(f"/v1/publications/{name}"))
    assert after["fit"]["state"] == "due", "for as long as its release has not appeared"
    assert after | {"fit": None} == before
    assert client.get(f"/v1/publications/{name}/releases/latest").status_code == 404
    shares = {each["name"]: each for each in ok(client.get(f"/v1/streams/{stream}/ledger"))["publications"]}
    assert shares[name]["spent"]["epsilon"] == 0
    stopped = ok(client.delete(f"/v1/publications/{name}"))
    assert stopped["state"] == "stopped"
    shares = {each["name"]: each for each in ok(client.get(f"/v1/streams/{stream}/ledger"))["publications"]}
    assert (shares[name]["spent"]["epsilon"], shares[name]["reserved"]["epsilon"]) == (0, 0)


def test_the_tick_is_at_least_so_long_after_the_last_record_was_numbered(service: Service):
    stream = service.stream()
    name = make(service, stream, publish_delay=1)["name"]
    began = datetime.now(UTC)  # the server's clock is this machine's
    service.post(stream, [[0.1, 0.2]] * 4, [0, 1, 0, 1])
    (release,) = service.released(name, time=4)
    assert moment(release["published_at"]) >= began + timedelta(seconds=1)
