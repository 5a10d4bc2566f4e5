"""The meaning of a publication's name to a key, which learns nothing of streams that it may not see."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sqlalchemy import text

from service.store.database import Database
from tests.api.test_records import refused
from tests.conftest import Service, ok, publication, unique

WINDOW = {"kind": "sliding_window", "block": 5, "blocks": 1}


def limited(service: Service, *streams: str, scope: str = "admin") -> httpx.Client:
    return service.client(service.key(scope, streams=list(streams)))


def make(client: httpx.Client, stream: str, name: str) -> httpx.Response:
    return client.post("/v1/publications", json=publication(stream, WINDOW) | {"name": name})


def stream_of(client: httpx.Client, name: str) -> str:
    return ok(client.get(f"/v1/publications/{name}"))["stream"]


def alike(answer: httpx.Response, name: str) -> tuple:
    """All that an answer tells but for what differs anyway: when, which number, and the name that was asked for."""
    content = {key: value for key, value in answer.json().items() if key not in ("id", "created_at")}
    headers = {
        key: value for key, value in answer.headers.items() if key not in ("date", "x-request-id", "content-length")
    }
    return answer.status_code, json.dumps([content, headers]).replace(name, "NAME")


def test_a_foreign_name_is_as_free_as_any_to_a_limited_key(service: Service):
    theirs = service.publish(service.stream(), WINDOW)
    mine, fresh = service.stream(), "x" * (len(theirs) + 1)
    admin = limited(service, mine)
    answers = [make(admin, mine, name) for name in (theirs, fresh)]
    assert [each.status_code for each in answers] == [201, 201]
    assert alike(answers[0], theirs) == alike(answers[1], fresh)
    for name in (theirs, fresh):
        refused(make(admin, mine, name), 409, "name-taken")
        assert stream_of(admin, name) == mine


def test_a_name_is_taken_where_the_key_can_see_it(service: Service):
    first, second = service.stream(epsilon=1), service.stream(epsilon=1)  # one publication each uses all of it
    name = service.publish(first, WINDOW)
    for client in (service.client(), limited(service, first, second)):
        for stream in (first, second):
            refused(make(client, stream, name), 409, "name-taken")
    ok(make(limited(service, second), second, name), 201)
    refused(make(limited(service, second), second, name), 409, "name-taken")
    refused(make(service.client(), service.stream(), name), 409, "name-taken")


@pytest.fixture(scope="module")
def shared(service: Service) -> tuple[str, str, str, str]:
    """Three streams with a publication of the same name, in this order; the first has a release of its own."""
    streams = [service.stream() for _ in range(3)]
    name = service.publish(streams[0], WINDOW, epsilon=0.25)
    for stream in streams[1:]:
        ok(make(limited(service, stream), stream, name), 201)
    service.post(streams[1], [[1, 2]] * 10, [0, 1] * 5)
    client = limited(service, streams[1], scope="read")
    ok(client.get(f"/v1/publications/{name}/releases/latest", headers={"Prefer": "wait=60"}))
    return name, *streams


def test_a_name_means_the_oldest_publication_that_the_key_may_see(service: Service, shared):
    name, *streams = shared
    for seen, meant in (
        (streams, streams[0]),
        (streams[1:], streams[1]),
        (streams[2:], streams[2]),
        ([streams[2], streams[0]], streams[0]),
    ):
        assert stream_of(limited(service, *seen, scope="read"), name) == meant
    assert stream_of(service.client(), name) == streams[0]
    refused(limited(service, service.stream()).get(f"/v1/publications/{name}"), 404, "not-found")


def test_every_route_means_the_same_publication(service: Service, shared):
    name, first, second, third = shared
    path = f"/v1/publications/{name}"
    for client in (service.client(), limited(service, first), limited(service, third)):
        refused(client.get(f"{path}/releases/latest"), 404, "not-found")
        refused(client.post(f"{path}/predict", json={"x": [[1, 2]]}), 404, "not-found")
        refused(client.get(f"{path}/releases/1"), 404, "not-found")
        assert ok(client.get(f"{path}/releases"))["items"] == []
    client = limited(service, second)
    assert ok(client.get(f"{path}/releases/latest"))["window"] == {"start": 5, "end": 10}
    assert ok(client.get(f"{path}/releases/1"))["version"] == 1
    assert len(ok(client.post(f"{path}/predict", json={"x": [[1, 2]]}))["labels"]) == 1
    assert ok(client.get(f"{path}/releases"))["items"]
    assert ok(client.get(f"{path}/releases/outline"))["items"]
    with client.stream("GET", f"{path}/events") as events:
        assert (
            json.loads(next(line for line in events.iter_lines() if line.startswith("data:"))[5:])["publication"]
            == name
        )


def test_readers_at_the_same_moment_each_get_their_own(service: Service, shared):
    """Many who ask one question share its answer; a name is another question to keys that see other streams."""
    name, first, second, third = shared
    path = f"/v1/publications/{name}/releases/latest"
    clients = [limited(service, stream, scope="read") for stream in (first, second, third)]
    with ThreadPoolExecutor(30) as pool:
        statuses = list(pool.map(lambda index: clients[index % 3].get(path).status_code, range(300)))
    assert statuses == [404, 200, 404] * 100


def test_stopping_by_name_stops_only_what_it_means(service: Service):
    first, second = service.stream(), service.stream()
    name = service.publish(first, WINDOW)
    admin = limited(service, second)
    ok(make(admin, second, name), 201)
    assert ok(admin.delete(f"/v1/publications/{name}"))["stream"] == second
    listed = [each for each in ok(service.client().get("/v1/publications"))["items"] if each["name"] == name]
    assert [(each["stream"], each["state"]) for each in listed] == [(second, "stopped"), (first, "running")]
    refused(make(admin, second, name), 409, "name-taken")


@pytest.mark.more
def test_of_many_who_ask_for_a_name_at_once_one_gets_it(service: Service):
    """The keys see each other's publications; keys that don't each get the name."""
    streams = [service.stream() for _ in range(8)]
    name = unique("publication")
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda stream: make(service.client(), stream, name).status_code, streams))
    assert sorted(statuses) == [201] + [409] * 7
    name = unique("publication")
    clients = [(limited(service, stream), stream) for stream in streams]
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda each: make(*each, name).status_code, clients))
    assert statuses == [201] * 8


def test_a_limited_admin_learns_no_names_of_streams(service: Service):
    """Whether it is taken or not, a stream that the key may not have is not there."""
    admin, taken = limited(service, service.stream()), service.stream()
    schema = {"features": 2, "task": {"kind": "classification", "classes": 2}, "budget": {"epsilon": 1}}
    answers = [admin.post("/v1/streams", json=schema | {"name": name}) for name in (taken, unique("stream"))]
    answers += [make(admin, name, unique("publication")) for name in (taken, unique("stream"))]
    refusals = [(each.status_code, each.json()) for each in answers]
    assert refusals[1:] == refusals[:-1]
    refused(answers[0], 404, "not-found")


def test_metrics_and_the_ledger_tell_publications_of_one_name_apart(service: Service, shared):
    name, *streams = shared
    lines = service.client().get("/metrics").text.splitlines()
    running = [line for line in lines if line.startswith(f'perennial_publication_running{{publication="{name}"')]
    assert sorted(line.split('stream="')[1].split('"')[0] for line in running) == sorted(streams)
    samples = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    for stream in streams:
        shares = ok(service.client().get(f"/v1/streams/{stream}/ledger"))["publications"]
        assert [each["name"] for each in shares] == [name]


def test_a_name_is_looked_up_by_an_index(service: Service):
    database = Database(service.settings.database_url)
    with database.transaction() as connection:
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        plan = connection.execute(
            text("EXPLAIN SELECT id FROM publications WHERE name = 'a' ORDER BY id LIMIT 1")
        ).scalars()
        assert "publications_name_id_idx" in "\n".join(plan)
    database.close()


def test_a_tag_of_a_release_is_of_one_publication_alone(service: Service):
    """A browser in which another key has signed in asks with the tags of what it was given before."""
    streams = [service.stream(), service.stream()]
    name = service.publish(streams[0], WINDOW)
    ok(make(limited(service, streams[1]), streams[1], name), 201)
    clients = [limited(service, each, scope="read") for each in streams]
    for stream, client in zip(streams, clients, strict=True):
        service.post(stream, [[1, 2]] * 5, [0, 1, 0, 1, 0])
        ok(client.get(f"/v1/publications/{name}/releases/latest", headers={"Prefer": "wait=60"}))
    for which in ("latest", "1"):
        path = f"/v1/publications/{name}/releases/{which}"
        tags = [client.get(path).headers["etag"] for client in clients]
        for client, mine, other in ((clients[0], *tags), (clients[1], *reversed(tags))):
            for tag, status in ((mine, 304), (other, 200), ('"1.json.1"', 304)):
                answers = [client.get(path, headers={"If-None-Match": tag}) for _ in range(2)]  # the second from memory
                assert [(each.status_code, each.headers["etag"]) for each in answers] == [(status, mine)] * 2
