"""The way out: versions never change, tags and waiting work as HTTP says, predictions follow from what is published."""

import json
import threading
import time

import httpx
import numpy as np
import pytest
from safetensors import safe_open

from tests.api.test_records import refused
from tests.conftest import Service, ok, serving, wait_until

JSON, FILE = "application/json", "application/vnd.safetensors"
TEXTS = {"publication", "role", "published_at"}
BLOCKS_OF_FIVE = {"kind": "sliding_window", "block": 5, "blocks": 1}


@pytest.fixture
def published(service: Service) -> tuple[str, str]:
    """A stream and a publication that releases every five records, with one release."""
    return publish_once(service)


@pytest.fixture(scope="module")
def name(service: Service) -> str:
    """Such a publication, of which tests only read."""
    return publish_once(service)[1]


def publish_once(service: Service) -> tuple[str, str]:
    stream = service.stream()
    name = service.publish(stream, BLOCKS_OF_FIVE)
    five_more(service, stream)
    service.reaches(name, time=5)
    return stream, name


def five_more(service: Service, stream: str) -> None:
    service.post(stream, [[1, 0], [0, 1], [-1, 0], [0, -1], [1, 1]], [1, 1, 0, 0, 1])


def latest(service: Service, name: str, **headers: str):
    return service.client().get(f"/v1/publications/{name}/releases/latest", headers=headers)


def test_before_the_first_release_there_is_nothing(service: Service):
    name = service.publish(service.stream(), BLOCKS_OF_FIVE)
    for answer in (
        latest(service, name),
        service.client().post(f"/v1/publications/{name}/predict", json={"x": [[1, 2]]}),
    ):
        refused(answer, 404, "not-found")
        assert answer.json()["detail"].startswith("Nothing is published yet")
    refused(service.client().get(f"/v1/publications/{name}/releases/1"), 404, "not-found")
    assert ok(service.client().get(f"/v1/publications/{name}/releases")) == {"items": []}


def test_a_release_has_everything_the_contract_names(service: Service, name):
    answer = latest(service, name)
    release = ok(answer)
    assert answer.headers["content-location"] == f"/v1/publications/{name}/releases/1"
    assert answer.headers["vary"] == "Accept, Authorization, Cookie"
    assert answer.headers["etag"].startswith('"')
    assert release["version"] == 1
    assert release["time"] == 5
    assert release["role"] == "model"
    assert release["window"] == release["fit"] == {"start": 0, "end": 5}
    assert release["parent"] is None
    assert release["parameters"]["shape"] == list(np.shape(release["parameters"]["values"])) == [1, 3]
    assert {"loss", "classes", "intercept", "norm_bound", "feature_map"} <= release["model"].keys()
    assert {"distribution", "scale", "sensitivity", "dimension"} <= release["noise"].keys()
    assert release["charge"]["version"] == 1
    assert release["published_at"].endswith("Z")
    (listed,) = ok(service.client().get(f"/v1/publications/{name}/releases"))["items"]
    assert listed == release | {"parameters": {"shape": [1, 3]}}


def test_a_tag_that_still_holds_is_not_sent_again(service: Service, name):
    first = latest(service, name)
    for tag in (first.headers["etag"], f'"x", W/{first.headers["etag"]}', "*"):
        again = latest(service, name, **{"If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert latest(service, name, **{"If-None-Match": '"other"'}).status_code == 200


def test_a_version_never_changes(service: Service, published):
    stream, name = published
    url = f"/v1/publications/{name}/releases/1"
    before = service.client().get(url)
    five_more(service, stream)
    service.reaches(name, time=10)
    after = service.client().get(url)
    assert (before.content, before.headers["etag"]) == (after.content, after.headers["etag"])


@pytest.mark.more
@pytest.mark.parametrize("with_tag", [True, False])
def test_waiting_ends_with_the_next_release(service: Service, published, with_tag):
    stream, name = published
    headers = {"Prefer": "wait=60"}
    if with_tag:
        headers["If-None-Match"] = latest(service, name).headers["etag"]
    answers = []
    waiter = threading.Thread(target=lambda: answers.append(latest(service, name, **headers)))
    waiter.start()
    time.sleep(0.2)
    assert not answers
    five_more(service, stream)
    waiter.join(200)
    (answer,) = answers
    assert ok(answer)["version"] == 2
    assert answer.headers["preference-applied"] == "wait=60"


def test_waiting_before_the_first_release_ends_with_it(service: Service):
    stream = service.stream()
    name = service.publish(stream, BLOCKS_OF_FIVE)
    answers = []
    waiter = threading.Thread(target=lambda: answers.append(latest(service, name, Prefer="wait=60")))
    waiter.start()
    time.sleep(0.1)
    five_more(service, stream)
    waiter.join(200)
    assert ok(answers[0])["version"] == 1


def test_waiting_in_vain_answers_as_without_waiting(service: Service, name):
    tag = latest(service, name).headers["etag"]
    assert latest(service, name, Prefer="wait=1", **{"If-None-Match": tag}).status_code == 304
    assert ok(latest(service, name, Prefer="respond-async, wait=1"))["version"] == 1
    empty = service.publish(service.stream(), BLOCKS_OF_FIVE)
    answer = latest(service, empty, Prefer="wait=1")
    assert (answer.status_code, answer.headers["preference-applied"]) == (404, "wait=1")


def test_who_has_an_older_version_need_not_wait(service: Service, published):
    stream, name = published
    tag = latest(service, name).headers["etag"]
    five_more(service, stream)
    service.reaches(name, time=10)
    began = time.monotonic()
    assert ok(latest(service, name, Prefer="wait=60", **{"If-None-Match": tag}))["version"] == 2
    assert time.monotonic() - began < 50


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        ("application/json", JSON),
        ("Application/JSON; charset=utf-8", JSON),
        (FILE, FILE),
        (f"{FILE}, */*", FILE),
        (f"{FILE};q=0.5, application/json;q=0.4", FILE),
        (f"{FILE};q=0.5, application/*;q=0.6", JSON),
        (f"*/*, {FILE};q=0", JSON),
        ("application/json;q=0, */*;q=0.1", FILE),
        ("text/html, */*;q=0.001", JSON),
        ("text/html", None),
        ("application/json;q=0", None),
        ("*/*;q=0.000", None),
        ("text/*, application/jsonl", None),
    ],
)
def test_the_format_is_what_the_client_likes_best(service: Service, name, accept, given):
    answer = latest(service, name, Accept=accept)
    assert answer.headers["vary"] == "Accept, Authorization, Cookie"
    if given is None:
        refused(answer, 406, "not-acceptable")
    else:
        assert (answer.status_code, answer.headers["content-type"]) == (200, given)


def test_the_weights_are_a_safetensors_file_with_all_else_in_its_metadata(service: Service, name, tmp_path):
    release, answer = ok(latest(service, name)), latest(service, name, Accept=FILE)
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}-1.safetensors"'
    (tmp_path / "file").write_bytes(answer.content)
    with safe_open(tmp_path / "file", framework="numpy") as file:
        weights, metadata = file.get_tensor("weights"), file.metadata()
    assert weights.dtype == np.float64
    assert weights.tolist() == release["parameters"]["values"]
    content = {name: value if name in TEXTS else json.loads(value) for name, value in metadata.items()}
    assert content == {name: value for name, value in release.items() if name != "parameters"}


def test_each_format_has_its_own_tag_and_the_same_bytes_from_every_server(service: Service, name):
    tags = set()
    with serving(service.settings) as url, httpx.Client(base_url=url) as other:
        for accept in (JSON, FILE):
            here = latest(service, name, Accept=accept)
            headers = {"Accept": accept, "Authorization": f"Bearer {service.admin_key}"}
            there = other.get(f"/v1/publications/{name}/releases/1", headers=headers)
            assert (here.content, here.headers["etag"]) == (there.content, there.headers["etag"])
            tags.add(here.headers["etag"])
            assert latest(service, name, Accept=accept, **{"If-None-Match": here.headers["etag"]}).status_code == 304
    assert len(tags) == 2
    for accept in (JSON, FILE):
        others = ", ".join(tags - {latest(service, name, Accept=accept).headers["etag"]})
        assert latest(service, name, Accept=accept, **{"If-None-Match": others}).status_code == 200


def test_predictions_follow_from_the_published_weights(service: Service, name):
    release = ok(latest(service, name))
    x = np.array([[0.5, -0.25], [3.0, 4.0], [0.0, 0.0]])
    answer = ok(service.client().post(f"/v1/publications/{name}/predict", json={"x": x.tolist()}))
    bound = release["model"]["norm_bound"]
    clipped = x * np.minimum(1, bound / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300))
    sine = release["model"]["intercept_scale"]
    mapped = np.column_stack([clipped * np.sqrt(1 - sine**2), np.full(3, bound * sine)])
    positive = 1 / (1 + np.exp(-mapped @ np.array(release["parameters"]["values"][0])))
    assert answer["version"] == 1
    assert np.allclose(np.array(answer["scores"])[:, 1], positive, atol=1e-5)
    assert answer["labels"] == (positive > 0.5).astype(int).tolist()


def test_predictions_by_version_and_their_refusals(service: Service, name):
    url = f"/v1/publications/{name}/predict"
    assert ok(service.client().post(f"{url}?version=1", json={"x": [[1, 2]]}))["version"] == 1
    refused(service.client().post(f"{url}?version=9", json={"x": [[1, 2]]}), 404, "not-found")
    refused(service.client().post(url, json={"x": [[1]]}), 422, "invalid-records")
    refused(service.client().post(url, content='{"x":[[NaN,1]]}'), 422, "invalid-records")


def test_a_stopped_publication_publishes_nothing_more_and_keeps_what_it_has(service: Service, published):
    stream, name = published
    ok(service.client().delete(f"/v1/publications/{name}"))
    marker = service.publish(stream, BLOCKS_OF_FIVE)
    five_more(service, stream)
    service.reaches(marker, time=10)
    assert ok(latest(service, name))["version"] == 1


@pytest.mark.more
def test_the_whole_walk_is_in_the_openapi_document(service: Service):
    document = ok(service.client().get("/openapi.json"))
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], (method, path)
            if path not in ("/livez", "/readyz"):
                assert operation["security"], (method, path)
                assert {"401", "403"} <= operation["responses"].keys(), (method, path)
            for status, answer in operation["responses"].items():
                kind = "application/problem+json" if int(status) >= 400 and path != "/readyz" else None
                assert kind is None or set(answer["content"]) == {kind}, (method, path, status)
    assert "HTTPValidationError" not in document["components"]["schemas"]


@pytest.mark.more
def test_waiters_do_not_hold_each_other_up(service: Service, published):
    stream, name = published
    answers = []
    waiters = [
        threading.Thread(target=lambda: answers.append(latest(service, name, Prefer="wait=60"))) for _ in range(50)
    ]
    for waiter in waiters:
        waiter.start()
    time.sleep(0.5)
    five_more(service, stream)
    wait_until(lambda: len(answers) == 50)
    assert {ok(answer)["version"] for answer in answers} == {2}


def test_a_version_that_is_not_there_yet_is_never_unchanged(service: Service, name):
    for tag in ("*", '"99.json.1"'):
        answer = service.client().get(f"/v1/publications/{name}/releases/99", headers={"If-None-Match": tag})
        refused(answer, 404, "not-found")


@pytest.mark.parametrize(
    ("prefer", "waits"), [("respond-async, wait=1", True), ('a="b, wait=1"', False), ("wait=1x", False)]
)
def test_only_a_whole_number_of_seconds_is_waited(service: Service, name, prefer, waits):
    assert ("preference-applied" in latest(service, name, Prefer=prefer).headers) == waits


def test_headers_in_several_lines_are_one_list(service: Service, name):
    tag = latest(service, name).headers["etag"]
    url = f"/v1/publications/{name}/releases/latest"
    lines = [("If-None-Match", '"other"'), ("If-None-Match", tag)]
    assert service.client().get(url, headers=lines).status_code == 304


@pytest.mark.more
def test_an_outline_tells_few_releases_one_by_one_and_many_together(service: Service, monkeypatch):
    stream = service.stream()
    name = service.publish(stream, {"kind": "continual", "base": 20, "update_every": 5}, epsilon=2)
    for _ in range(10):
        five_more(service, stream)
    released = [{**each, "scale": each["noise"]["scale"]} for each in service.released(name, time=50)]
    url = f"/v1/publications/{name}/releases/outline"
    (worst,) = (each["spent"] for each in ok(service.client().get(f"/v1/streams/{stream}/ledger"))["publications"])

    def together(versions: list[dict]) -> dict:
        charges = [each["charge"]["epsilon"] for each in versions]
        on_record = [
            each["charge"] for each in versions if each["fit"]["start"] <= worst["record"] < each["fit"]["end"]
        ]
        return {
            "first": versions[0]["version"],
            "last": versions[-1]["version"],
            "models": sum(each["role"] == "model" for each in versions),
            "time": versions[-1]["time"],
            "published_at": versions[-1]["published_at"],
            "least_noise": min(each["scale"] for each in versions),
            "most_noise": max(each["scale"] for each in versions),
            "least_charge": min(charges),
            "most_charge": max(charges),
            "on_record": pytest.approx(sum(each["epsilon"] for each in on_record)),
        }

    assert ok(service.client().get(url))["items"] == [together([each]) for each in released]
    assert together(released)["on_record"] == worst["epsilon"]
    monkeypatch.setattr("service.api.routes.releases.MOST_STRETCHES", 3)
    length = next(each for each in (1, 2, 4, 8) if 3 * each >= len(released))
    assert length > 1
    stretches = [released[start : start + length] for start in range(0, len(released), length)]
    assert ok(service.client().get(url))["items"] == [together(each) for each in stretches]


def test_an_outline_of_nothing_is_empty(service: Service):
    name = service.publish(service.stream(), {"kind": "sliding_window", "block": 5, "blocks": 1})
    assert ok(service.client().get(f"/v1/publications/{name}/releases/outline"))["items"] == []
