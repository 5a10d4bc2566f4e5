"""Streams with units over HTTP: records of people, what is held of one, and that person's erasure."""

from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from service.store import streams
from service.store.database import Database
from service.store.tables import unit_secrets
from tests.conftest import Service, publication, serving, unique, wait_until

UNIT = {"max_records": 2, "min_separation": 2}
IDS = ["anna@example.org", "ümläut / slash?&#%", "7", "日本"]
LEADER = {"kind": "online_leader", "batch": 2}
LEARNER = {"kind": "noisy_gradient_descent"}


def done(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def people(service: Service) -> str:
    """A stream with units, of which some have more records than count."""
    name = unique("people")
    body = {
        "name": name,
        "features": 1,
        "task": {"kind": "classification", "classes": 2},
        "budget": {"epsilon": 1, "delta": 1e-6},
        "unit": UNIT,
    }
    made = done(service.client().post("/v1/streams", json=body))
    assert made["unit"] == UNIT
    ids = [IDS[0], IDS[1], IDS[0], 7, IDS[0], IDS[0], "7", IDS[1]]
    done(post(service, name, ids))
    wait_until(lambda: done(service.client().get(f"/v1/streams/{name}"))["records"] == len(ids))
    return name


def post(service: Service, stream: str, ids: list, **headers: str) -> httpx.Response:
    body = {"x": [[0.5]] * len(ids), "y": [1] * len(ids), "unit": ids}
    return service.client().post(f"/v1/streams/{stream}/records", json=body, headers=headers)


def held(service: Service, stream: str, unit: str) -> dict:
    return done(service.client().get(f"/v1/streams/{stream}/units/{quote(unit, safe='')}"))


def test_what_is_held_of_a_unit_is_its_records_that_count(service: Service, people: str):
    assert held(service, people, IDS[0])["records"] == [0, 2]
    assert held(service, people, IDS[1])["records"] == [1, 7]
    assert held(service, people, "7")["records"] == [3, 6], "a number is the unit of its digits"
    stranger = held(service, people, IDS[3])
    assert stranger == {"records": [], "counting": 0, "erased": False, "spent": {"epsilon": 0, "delta": 0}}


def test_a_record_without_a_unit_is_refused(service: Service, people: str):
    answer = service.client().post(f"/v1/streams/{people}/records", json={"x": [[0.5]], "y": [1]})
    assert answer.status_code == 422
    assert post(service, people, [None]).status_code == 422
    plain = service.stream()
    assert post(service, plain, ["a"]).status_code == 422


def test_a_request_that_is_repeated_is_one_request(service: Service, people: str):
    stream = unique("people")
    body = {"name": stream, "features": 1, "task": {"kind": "classification", "classes": 2}, "unit": UNIT}
    done(service.client().post("/v1/streams", json=body | {"budget": {"epsilon": 1, "delta": 0}}))
    first, second = (done(post(service, stream, ["a", "b"], **{"Idempotency-Key": "k"})) for _ in range(2))
    assert first == second
    assert post(service, stream, ["a", "c"], **{"Idempotency-Key": "k"}).status_code == 422


def test_a_publication_tells_what_a_unit_pays(service: Service, people: str):
    body = publication(people, LEADER, epsilon=1, learner=LEARNER)
    body["privacy"] = {"epsilon": 1, "delta": 1e-6}
    body["start"] = 0
    plan = done(
        service.client().post("/v1/plan", json={name: body[name] for name in body if name not in ("name", "start")})
    )
    assert plan["guarantee"]["unit"]["max_records"] == 2
    made = done(service.client().post("/v1/publications", json=body))
    service.reaches(made["name"], time=8)
    newest = done(service.client().get(f"/v1/publications/{made['name']}/releases/latest"))
    assert newest["model"]["units"] == 2
    spent = held(service, people, IDS[0])["spent"]
    assert 0 < spent["epsilon"] <= 1
    assert spent["delta"] == 1e-6
    page = done(service.client().get(f"/v1/streams/{people}/ledger"))
    assert page["spent"]["epsilon"] >= spent["epsilon"]
    done(service.client().delete(f"/v1/publications/{made['name']}"))
    again = service.client().post("/v1/publications", json=body | {"name": unique("p"), "start": 100})
    assert again.status_code == 409, "a stopped publication that has charged gives nothing back"


@pytest.mark.parametrize(
    ("mechanism", "learner"),
    [
        (
            {"kind": "online_leader", "batch": 2, "noise": "window_tree", "window": 3}
            | {"expiry": "block", "acknowledge_declassification": True},
            LEARNER,
        ),
    ],
)
def test_a_mechanism_that_nobody_has_shown_is_refused(service: Service, people: str, mechanism, learner):
    body = publication(people, mechanism, learner=learner, epsilon=1)
    answer = service.client().post("/v1/publications", json=body)
    assert answer.status_code == 422, answer.text
    assert "unit" in answer.text


@pytest.mark.more
def test_scales_are_learnt_of_units_and_models_are_counted_on_them(service: Service):
    stream = unique("people")
    body = {
        "name": stream,
        "features": 1,
        "task": {"kind": "classification", "classes": 2},
        "unit": {"max_records": 4},
    }
    done(service.client().post("/v1/streams", json=body | {"budget": {"epsilon": 10, "delta": 1e-5}}))
    common = {"stream": stream, "privacy": {"epsilon": 1, "delta": 1e-6}, "start": 0, "publish_delay": 0}
    scales, leader, counted = (unique(kind) for kind in ("scales", "leader", "counted"))
    for name, more in {
        scales: {"mechanism": {"kind": "preparation", "records": 4}},
        leader: {"mechanism": LEADER, "learner": LEARNER, "features": {"from": scales}},
        counted: {"mechanism": {"kind": "evaluation", "of": [leader], "block": 4}},
    }.items():
        done(service.client().post("/v1/publications", json=common | {"name": name} | more))
    done(post(service, stream, ["a", "a", "b", "a", "c", "a", "a", "b"]))
    service.reaches(counted, time=8)
    units = []
    for name in (scales, counted):
        newest = done(service.client().get(f"/v1/publications/{name}/releases/latest"))
        units.append(newest["model"].get("units", newest["model"].get("slots")))
    assert units == [2, 3]


def test_an_erased_unit_leaves_nothing_and_comes_back_as_nothing(service: Service, caplog):
    stream = unique("people")
    body = {
        "name": stream,
        "features": 1,
        "task": {"kind": "classification", "classes": 2},
        "unit": {"max_records": 9},
    }
    done(service.client().post("/v1/streams", json=body | {"budget": {"epsilon": 1, "delta": 0}}))
    done(post(service, stream, [IDS[1], "b", IDS[1]]))
    wait_until(lambda: done(service.client().get(f"/v1/streams/{stream}"))["records"] == 3)
    path = f"/v1/streams/{stream}/units/{quote(IDS[1], safe='')}"
    answer = service.client().delete(path)
    assert (answer.status_code, answer.json()) == (202, {"records": [0, 2]})
    assert done(service.client().delete(path)) == {"records": [0, 2]}
    done(post(service, stream, ["b", IDS[1]]))
    wait_until(lambda: done(service.client().get(f"/v1/streams/{stream}"))["records"] == 5)
    assert held(service, stream, IDS[1])["records"] == [0, 2]
    assert held(service, stream, IDS[1])["erased"]
    assert held(service, stream, "b")["records"] == [1, 3]
    erased = done(service.client().get(f"/v1/streams/{stream}"))["erased"]
    assert [(each["start"], each["end"]) for each in erased["ranges"]] == [(0, 1), (2, 3)]


@pytest.mark.more
def test_what_a_unit_has_spent_stays_though_its_records_are_dropped(service: Service):
    """One of two records is lost, and counted as one that paid the most; a unit without records spent nothing."""
    stream = unique("people")
    body = {
        "name": stream,
        "features": 1,
        "task": {"kind": "classification", "classes": 2},
        "unit": {"max_records": 3},
        "retention": "needed",
    }
    done(service.client().post("/v1/streams", json=body | {"budget": {"epsilon": 3, "delta": 0}}))
    batches = publication(
        stream, {"kind": "independent_batches", "batch": 6}, learner={"kind": "output_perturbation"}, epsilon=3
    )
    made = done(service.client().post("/v1/publications", json=batches))
    done(post(service, stream, ["a", "b", "c"] * 2))
    service.reaches(made["name"], time=6)
    wait_until(lambda: held(service, stream, "a")["spent"]["epsilon"] == 2)
    done(post(service, stream, ["d"] * 6))
    service.reaches(made["name"], time=12)
    wait_until(lambda: done(service.client().get(f"/v1/streams/{stream}"))["kept"]["start"] >= 6)
    after = held(service, stream, "a")
    assert (after["records"], after["counting"], after["spent"]["epsilon"]) == ([], 2, 2)
    assert held(service, stream, "e")["spent"]["epsilon"] == 0
    assert done(service.client().delete(f"/v1/streams/{stream}/units/a")) == {"records": []}
    assert held(service, stream, "a")["spent"]["epsilon"] == 2, "its spent budget stays spent"


def test_whoever_is_no_admin_may_ask_nothing_of_a_unit(service: Service, people: str):
    path = f"/v1/streams/{people}/units/a"
    for scope in ("read", "ingest"):
        key = done(service.client().post("/v1/keys", json={"name": unique("k"), "scopes": [scope]}))["key"]
        with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {key}"}) as client:
            assert [client.get(path).status_code, client.delete(path).status_code] == [403, 403]


@pytest.mark.parametrize("wrong", ["%ff", "", "x" * 257])
def test_an_address_that_names_no_unit_is_refused(service: Service, people: str, wrong):
    answer = service.client().get(f"/v1/streams/{people}/units/{wrong}")
    assert answer.status_code in (404, 422)
    if answer.status_code == 422:
        assert [error["field"] for error in answer.json()["errors"]] == ["path.unit"]
    assert service.client().get(f"/v1/streams/{service.stream()}/units/a").status_code == 404


def test_a_stream_whose_secret_is_lost_takes_nothing_more_and_halts(service: Service):
    stream = unique("people")
    body = {"name": stream, "features": 1, "task": {"kind": "classification", "classes": 2}, "unit": UNIT}
    done(service.client().post("/v1/streams", json=body | {"budget": {"epsilon": 1, "delta": 0}}))
    database = Database(service.settings.database_url)
    with database.transaction() as connection:
        identity = streams.find(connection, stream).id
        connection.execute(unit_secrets.update().where(unit_secrets.c.stream_id == identity).values(secret=bytes(32)))
    database.close()
    assert service.client().get(f"/v1/streams/{stream}/units/a").status_code == 503
    assert post(service, stream, ["a"]).status_code == 503
    assert "secret" in done(service.client().get(f"/v1/streams/{stream}"))["halted"]


@pytest.mark.parametrize(
    "unit",
    [
        {},
        {"max_records": 0},
        {"max_records": 2**16 + 1},
        {"max_records": 1, "min_separation": 0},
        {"max_records": 1.5},
        3,
    ],
)
def test_bounds_that_are_none_are_refused(service: Service, unit):
    body = {"name": unique("s"), "features": 1, "task": {"kind": "unlabelled"}, "unit": unit}
    answer = service.client().post("/v1/streams", json=body | {"budget": {"epsilon": 1, "delta": 0}})
    assert answer.status_code == 422


def test_the_contents_of_records_over_the_bound_change_nothing_byte_for_byte(service: Service):
    """A person with 200 records where 16 count: what the 184 others say is in no segment."""
    files = []
    for other in (0.25, -0.75):
        stream = unique("people")
        settings = {
            "name": stream,
            "features": 1,
            "task": {"kind": "classification", "classes": 2},
            "unit": {"max_records": 16},
        }
        done(service.client().post("/v1/streams", json=settings | {"budget": {"epsilon": 1, "delta": 0}}))
        body = {"x": [[0.5]] * 16 + [[other]] * 184, "y": [1] * 16 + [int(other > 0)] * 184, "unit": ["a"] * 200}
        done(service.client().post(f"/v1/streams/{stream}/records", json=body))
        wait_until(lambda name=stream: done(service.client().get(f"/v1/streams/{name}"))["records"] == 200)
        database = Database(service.settings.database_url)
        with database.transaction() as connection:
            log = streams.find(connection, stream).log
        database.close()
        (file,) = (service.settings.segment_store / log).iterdir()
        files.append(load(file.read_bytes()))
    one, two = files
    assert one["counts"].sum() == 16
    assert all(len(np.unique(each.pop("unit"), axis=0)) == 1 for each in files), "each stream has a secret of its own"
    assert {"x", "y", "counts"} <= one.keys()
    assert {name: each.tobytes() for name, each in one.items()} == {name: each.tobytes() for name, each in two.items()}


def test_where_segments_cannot_be_read_the_answer_says_so(service: Service, people: str):
    elsewhere = service.settings.model_copy(update={"segment_store": service.settings.segment_store / "elsewhere"})
    headers = {"Authorization": f"Bearer {service.admin_key}"}
    with serving(elsewhere) as url:
        for method in ("GET", "DELETE"):
            answer = httpx.request(method, f"{url}/v1/streams/{people}/units/nobody", headers=headers)
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:perennial:problem:segments-unavailable")
