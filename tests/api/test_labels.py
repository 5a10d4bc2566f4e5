"""Labels that people give: asked for over HTTP, leased, given once, waited for so long and no longer."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from sqlalchemy import func, select, update

from service.api.notifier import Notifier
from service.api.routes.labels import LOOK_AGAIN_SECONDS
from service.ledger.verify import look
from service.store import labels
from service.store.database import Database
from service.store.tables import label_requests, publications
from tests import chance
from tests.conftest import HANG_SECONDS, Service, ok, serving, unique, wait_until

NEARLY_ALL = {"epsilon": 26}


def unlabelled(service: Service, **more) -> str:
    body = {"name": unique("stream"), "features": 2, "task": {"kind": "unlabelled"}, "budget": {"epsilon": 100}} | more
    return ok(service.client().post("/v1/streams", json=body), 201)["name"]


def publish(service: Service, stream: str, *, privacy=NEARLY_ALL, **settings) -> str:
    """One that selects nearly everything: a record is passed over with probability e^-25."""
    mechanism = {"kind": "active_learning", "batching": "fixed_window", "size": 4, "threshold": 9.0} | settings
    if privacy is NEARLY_ALL:
        mechanism = {"epsilon_selection": 25} | mechanism
    return service.publish(stream, mechanism, **privacy, learner={"kind": "noisy_gradient_descent"})


def post(service: Service, stream: str, x) -> None:
    path = f"/v1/streams/{stream}"
    entry = ok(service.client().post(f"{path}/records", json={"x": np.asarray(x).tolist()}), 202)["entry"]
    wait_until(lambda: service.client().get(f"{path}/entries/{entry}").status_code == 200)


def next_request(service: Service, publication: str, *, wait: int = 60, key: str | None = None):
    """The next record to label; None: there is none."""
    path = f"/v1/publications/{publication}/label-requests"
    answer = service.client(key).get(path, headers={"Prefer": f"wait={wait}"} if wait else {})
    return None if answer.status_code == 204 else ok(answer)


def give(service: Service, publication: str, record, label, key: str | None = None):
    path = f"/v1/publications/{publication}/labels"
    return service.client(key).post(path, json={"record": record, "label": label})


def charges(service: Service, stream: str):
    return ok(service.client().get(f"/v1/streams/{stream}/ledger/charges?limit=1000"))["items"][::-1]


def findings(service: Service, stream: str):
    """Return what of a stream's ledger does not hold."""
    database = Database(service.settings.database_url)
    try:
        with database.transaction() as connection:
            identity = connection.exec_driver_sql(f"SELECT id FROM streams WHERE name = '{stream}'").scalar_one()
        with database.transaction() as connection:
            return look(connection, identity)[1]
    finally:
        database.close()


@pytest.mark.more
def test_ten_labels_make_a_model(service: Service):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).astype(np.float32)
    privacy = {"epsilon": 1000, "delta": 1e-6}
    stream, labeller = unlabelled(service, budget=privacy), service.key("label")
    publication = publish(service, stream, privacy=privacy, batching="fixed_batch", size=5, learning_rate=1.0)
    post(service, stream, x)
    seen = []
    for _ in range(10):
        request = next_request(service, publication, key=labeller)
        assert request["x"] == x[request["record"]].tolist()
        assert 1 <= request["waiting"] <= 5
        seen.append(request["record"])
        ok(give(service, publication, request["record"], int(request["x"][0] > 0), key=labeller))
    assert seen == sorted(set(seen))
    releases = service.released(publication, time=seen[-1] + 1)
    assert [release["version"] for release in releases] == [1, 2]
    assert [release["fit"]["end"] for release in releases] == [seen[4] + 1, seen[9] + 1]
    (weights,) = releases[-1]["parameters"]["values"]
    chance.assert_above(weights[0], 0.14, mean=0.414, spread=0.018, runs=300)  # five labels show the way
    predicted = ok(service.client().post(f"/v1/publications/{publication}/predict", json={"x": [[5, 0], [-5, 0]]}))
    assert predicted["labels"] == [int(side * weights[0] + weights[-1] > 0) for side in (1, -1)]
    assert findings(service, stream) == []


@pytest.mark.more
def test_every_record_is_charged_when_it_arrives_and_a_release_charges_nothing_more(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream, epsilon_selection=2, epsilon_update=3)
    post(service, stream, np.ones((9, 2)))
    answered = [next_request(service, publication)]
    while len(answered) < answered[0]["waiting"]:
        answered.append(next_request(service, publication))
    for request in answered:
        ok(give(service, publication, request["record"], 1))
    (release, *_) = service.released(publication, time=4)
    wait_until(lambda: charges(service, stream)[-1]["end"] >= 8)
    rows = charges(service, stream)
    assert {(each["epsilon"], each["version"]) for each in rows} == {(5.0, None)}
    assert [each["start"] for each in rows] == [0, *(each["end"] for each in rows[:-1])]
    assert release["charge"] in rows
    assert release["charge"]["end"] == release["fit"]["end"] == 4
    ledger = ok(service.client().get(f"/v1/streams/{stream}/ledger"))
    assert ledger["spent"]["epsilon"] == 5
    assert findings(service, stream) == []


def test_nobody_is_asked_for_what_another_is_at_until_the_lease_ends(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream, lease_seconds=600)
    post(service, stream, np.ones((4, 2)))
    first = next_request(service, publication)
    others = [next_request(service, publication, wait=0) for _ in range(first["waiting"] - 1)]
    assert len({first["record"], *(each["record"] for each in others)}) == first["waiting"]
    assert next_request(service, publication, wait=0) is None
    change_requests(service, publication, leased_until=func.now())
    again = next_request(service, publication)
    assert again["record"] in {first["record"], *(each["record"] for each in others)}


def test_who_waits_looks_again_for_what_another_let_lie(service: Service, monkeypatch):
    """Nobody tells that a lease has ended."""
    stream, waits = unlabelled(service), []
    publication = publish(service, stream, lease_seconds=600)
    post(service, stream, np.ones((4, 2)))
    for _ in range(next_request(service, publication)["waiting"] - 1):
        next_request(service, publication, wait=0)

    async def wait(_: asyncio.Event, seconds: float) -> None:
        waits.append(seconds)
        await asyncio.to_thread(change_requests, service, publication, leased_until=func.now())

    monkeypatch.setattr(Notifier, "wait", staticmethod(wait))
    assert next_request(service, publication) is not None
    assert waits == [LOOK_AGAIN_SECONDS]


@pytest.mark.more
def test_what_is_not_answered_in_time_is_learnt_without(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream, label_seconds=600)
    post(service, stream, np.ones((12, 2)))
    request = next_request(service, publication)

    def learnt() -> bool:
        change_requests(service, publication, expires_at=func.now())
        return ok(service.client().get(f"/v1/publications/{publication}"))["latest"] == 3

    wait_until(learnt)
    releases = service.released(publication, time=12)
    assert [release["fit"] for release in releases] == [{"start": at, "end": at + 4} for at in (0, 4, 8)]
    late = give(service, publication, request["record"], 1)
    assert ok(late, 409)["type"] == "urn:perennial:problem:label-not-awaited"
    assert findings(service, stream) == []


@pytest.mark.more
@pytest.mark.parametrize("wrong", [2, -1, "1", 0.5, True, None])
def test_a_wrong_or_second_answer_changes_nothing(service: Service, wrong):
    stream = unlabelled(service)
    publication = publish(service, stream)
    post(service, stream, np.ones((2, 2)))
    record = next_request(service, publication)["record"]
    ok(give(service, publication, record, wrong), 422)
    assert ok(give(service, publication, record, 1))["record"] == record
    ok(give(service, publication, record, 0), 409)
    ok(give(service, publication, 10**6, 0), 409)


def test_of_many_who_answer_at_once_one_is_taken(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream)
    post(service, stream, np.ones((2, 2)))
    record = next_request(service, publication)["record"]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda label: give(service, publication, record, label % 2), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7


def test_who_waits_gets_the_record_when_it_comes(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream)
    assert next_request(service, publication, wait=0) is None
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next_request, service, publication, wait=60)
        threading.Event().wait(0.2)
        post(service, stream, np.ones((4, 2)))
        assert waiting.result(200)["record"] in range(4)


def test_who_went_away_while_waiting_is_given_nothing(service: Service):
    """Else it would be leased to nobody, and everybody would wait until that lease ends."""
    stream = unlabelled(service)
    publication = publish(service, stream, size=1, batching="fixed_batch", lease_seconds=1000)
    path = f"{service.url}/v1/publications/{publication}/label-requests"
    patience = httpx.Timeout(HANG_SECONDS, read=0.3)
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(path, headers={"Authorization": f"Bearer {service.admin_key}", "Prefer": "wait=60"}, timeout=patience)
    post(service, stream, np.ones((1, 2)))
    assert next_request(service, publication)["record"] == 0


def test_head_tells_whether_there_is_a_record_and_leases_none(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream, size=1, batching="fixed_batch", lease_seconds=1000)
    path, client = f"/v1/publications/{publication}/label-requests", service.client(service.key("label"))

    assert client.head(path).status_code == 204
    post(service, stream, np.ones((1, 2)))
    wait_until(lambda: client.head(path).status_code == 200)
    answer = client.head(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert "content-length" not in answer.headers
    record = service.client().get(path)
    assert ok(record)["record"] == 0
    assert answer.headers["cache-control"] == record.headers["cache-control"]
    answer = client.head(path, headers={"Prefer": "wait=60"})
    assert answer.status_code == 204
    assert "preference-applied" not in answer.headers


def test_how_many_labels_came_is_told_to_who_may_give_some(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream)
    post(service, stream, np.ones((4, 2)))
    body = next_request(service, publication)["waiting"]
    path = f"/v1/publications/{publication}"
    assert ok(service.client().get(path))["labels"] == {"waiting": body, "answered": 0}
    ok(give(service, publication, next_request(service, publication)["record"], 1))
    labeller, reader = service.key("read", "label"), service.key("read")
    assert ok(service.client(labeller).get(path))["labels"] == {"waiting": body - 1, "answered": 1}
    listed = ok(service.client(labeller).get("/v1/publications?limit=1"))["items"]
    assert listed == [ok(service.client(labeller).get(path))]
    assert ok(service.client(reader).get(path))["labels"] is None
    assert ok(service.client(reader).get("/v1/publications?limit=1"))["items"][0]["labels"] is None
    other = service.publish(service.stream(), {"kind": "sliding_window", "block": 5, "blocks": 1})
    assert ok(service.client(labeller).get(f"/v1/publications/{other}"))["labels"] is None
    boundary = [
        ok(service.client().get(f"/v1/publications/{each}/card"))["trust_boundary"] for each in (publication, other)
    ]
    assert ["The people who label" in str(each) for each in boundary] == [True, False]


def labels_of(service: Service, publication: str):
    return ok(service.client().get(f"/v1/publications/{publication}"))["labels"]


def change_requests(service: Service, publication: str, **values) -> None:
    """Change all that a publication asks for, in the database."""
    mine = select(publications.c.id).where(publications.c.name == publication).scalar_subquery()
    database = Database(service.settings.database_url)
    with database.transaction() as connection:
        connection.execute(update(label_requests).where(label_requests.c.publication_id == mine).values(**values))
    database.close()


@pytest.mark.more
@pytest.mark.parametrize("erased", ["before it is asked for", "while somebody is at it", "after it was answered"])
def test_an_erased_record_is_shown_to_nobody_and_waited_for_like_one_that_nobody_labels(service: Service, erased):
    stream = unlabelled(service)
    publication = publish(service, stream)
    post(service, stream, np.ones((2, 2)))

    def erase() -> None:
        ok(service.client().delete(f"/v1/streams/{stream}/records?start=1&end=2"), 202)

    if erased == "before it is asked for":
        erase()
    post(service, stream, np.ones((2, 2)))
    wait_until(lambda: labels_of(service, publication)["waiting"] == 4)
    seen = [next_request(service, publication)["record"]]
    while (request := next_request(service, publication, wait=0)) is not None:
        seen.append(request["record"])
    assert seen == ([0, 2, 3] if erased == "before it is asked for" else [0, 1, 2, 3])
    if erased == "after it was answered":
        ok(give(service, publication, 1, 1))
    if erased != "before it is asked for":
        erase()
    assert labels_of(service, publication) == {"waiting": 4, "answered": 0}
    refused = ok(give(service, publication, 1, 1), 409)
    assert refused["type"] == "urn:perennial:problem:label-not-awaited"
    assert "erased" in refused["detail"]
    assert ok(give(service, publication, 0, 1))["waiting"] == 3
    assert next_request(service, publication, wait=0) is None
    for record in (2, 3):
        ok(give(service, publication, record, 1))
    assert labels_of(service, publication) == {"waiting": 1, "answered": 3}
    assert ok(service.client().get(f"/v1/publications/{publication}/releases"))["items"] == []
    change_requests(service, publication, expires_at=func.now())
    (release,) = service.released(publication, time=4)
    assert release["fit"] == {"start": 0, "end": 4}
    assert findings(service, stream) == []


def test_a_slot_that_came_empty_is_shown_to_nobody_and_takes_no_answer(service: Service):
    """Its number is too large once it is mapped."""
    stream = unlabelled(service, feature_map={"kind": "standardize", "mean": 0, "scale": 0.5})
    publication = publish(service, stream)
    post(service, stream, [[1, 1], [3e38, 1], [1, 1], [1, 1]])
    assert next_request(service, publication)["record"] == 0
    assert [next_request(service, publication, wait=0)["record"] for _ in range(2)] == [2, 3]
    assert next_request(service, publication, wait=0) is None
    ok(give(service, publication, 1, 1), 409)
    assert labels_of(service, publication) == {"waiting": 4, "answered": 0}


@pytest.mark.parametrize("empty", ["erased", "came empty"])
def test_what_is_empty_when_it_is_read_is_shown_to_nobody_though_it_was_leased(service: Service, empty):
    """As if it was erased between lease and reading, or asked for before requests were set aside."""
    stream = unlabelled(service, feature_map={"kind": "standardize", "mean": 0, "scale": 0.5})
    publication = publish(service, stream)
    post(service, stream, [[3e38 if empty == "came empty" else 1, 1], [1, 1], [1, 1], [1, 1]])
    if empty == "erased":
        ok(service.client().delete(f"/v1/streams/{stream}/records?start=0&end=1"), 202)
    wait_until(lambda: labels_of(service, publication)["waiting"] == 4)
    change_requests(service, publication, leased_until=None)
    assert [next_request(service, publication, wait=0)["record"] for _ in range(3)] == [1, 2, 3]
    assert next_request(service, publication, wait=0) is None


def test_labels_that_come_with_the_records_are_learnt_from_at_once(service: Service):
    stream = service.stream(epsilon=100)
    publication = publish(service, stream)
    service.post(stream, np.ones((10, 2)).tolist(), [1] * 10)
    releases = service.released(publication, time=8)
    assert [release["time"] for release in releases] == [4, 8]
    answer = service.client().get(f"/v1/publications/{publication}/label-requests")
    assert ok(answer, 409)["type"] == "urn:perennial:problem:no-labels"
    assert findings(service, stream) == []


def test_nothing_is_asked_for_a_publication_that_was_stopped(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream)
    post(service, stream, np.ones((4, 2)))
    record = next_request(service, publication)["record"]
    ok(service.client().delete(f"/v1/publications/{publication}"))
    assert next_request(service, publication, wait=0) is None
    ok(give(service, publication, record, 1), 409)


def test_labels_are_given_by_keys_with_that_scope_alone(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream)
    for scopes, status in ((["read"], 403), (["ingest"], 403), (["label"], 204)):
        path = f"/v1/publications/{publication}/label-requests"
        assert service.client(service.key(*scopes)).get(path).status_code == status


def test_a_record_that_somebody_looks_at_is_kept_nowhere_else(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream)
    post(service, stream, np.ones((4, 2)))
    answer = service.client().get(f"/v1/publications/{publication}/label-requests", headers={"Prefer": "wait=60"})
    assert ok(answer)["x"] == [1.0, 1.0]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["preference-applied"] == "wait=60"


def test_a_record_that_cannot_be_read_is_leased_to_nobody_and_the_answer_says_why(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream, size=1, batching="fixed_batch", lease_seconds=1000)
    post(service, stream, np.ones((1, 2)))
    wait_until(lambda: labels_of(service, publication)["waiting"])
    elsewhere = service.settings.model_copy(update={"segment_store": service.settings.segment_store / "elsewhere"})
    key = {"Authorization": f"Bearer {service.admin_key}"}
    with serving(elsewhere) as url:
        answer = httpx.get(f"{url}/v1/publications/{publication}/label-requests", headers=key)
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:perennial:problem:segments-unavailable")
    assert next_request(service, publication, wait=0)["record"] == 0


def test_a_lease_that_is_given_back_leaves_what_was_set_aside(service: Service):
    stream = unlabelled(service)
    publication = publish(service, stream, size=1, batching="fixed_batch", lease_seconds=1000)
    post(service, stream, np.ones((1, 2)))
    assert next_request(service, publication)["record"] == 0
    ok(service.client().delete(f"/v1/streams/{stream}/records?start=0&end=1"), 202)
    identity = ok(service.client().get(f"/v1/publications/{publication}"))["id"]
    database = Database(service.settings.database_url)
    with database.transaction() as connection:
        labels.give_back(connection, identity, 0)
        assert not labels.any_free(connection, identity, seconds=1000)
    database.close()
