"""A batch that is appended without the framework is answered, counted and refused as the application does it."""

import json
import socket
import time
from collections.abc import Callable

import httpx
import pytest

from service import metrics
from service.api import services
from service.api.ready_appends import ReadyAppends
from service.log import Appender, BacklogFull, IdempotencyConflict, IdempotencyFull, LogUnavailable
from service.settings import Settings
from tests.api.formats import ARROW, JSON, NDJSON, Arrow, as_json, as_rows
from tests.api.test_records import refused
from tests.conftest import ADMIN_KEY, HANG_SECONDS, Service, ok, serving, unique, wait_until

X, Y = [[1.0, 2.0], [3.0, 4.0]], [0, 1]
TOO_MANY = Settings.model_fields["max_batch_records"].default + 1
BODIES = {
    "json": (JSON, as_json(X, Y)),
    "parameters of a type": (f"{JSON.upper()}; charset=utf-8", as_json(X, Y)),
    "no type": (None, as_json(X, Y)),
    "empty type": ("", as_json(X, Y)),
    "another type": ("text/csv", b"1,2,0"),
    "ndjson": (NDJSON, as_rows(X, Y)),
    "arrow": (ARROW, Arrow("fixed")(X, Y)),
    "nothing": (JSON, b""),
    "no json": (JSON, b"{"),
    "no records": (JSON, as_json([], [])),
    "a wrong label": (JSON, as_json(X, [0, 7])),
    "a short row": (NDJSON, as_rows([[1.0], [2.0, 3.0]], Y)),
    "damaged": (ARROW, Arrow("fixed")(X, Y)[:-20]),
    "too many records": (JSON, b'{"x":[[0,0]%b],"y":[0%b]}' % (b",[0,0]" * (TOO_MANY - 1), b",0" * (TOO_MANY - 1))),
}
HEADERS = [{}, {"Idempotency-Key": "a" * 255}, {"Idempotency-Key": "a" * 256}, {"Idempotency-Key": ""}]


@pytest.fixture
def directly(monkeypatch) -> list[bool]:
    """Whether requests may be answered without the framework; then, for each request, whether it was looked at so."""
    noted, find = [True], ReadyAppends._find

    def look(self: ReadyAppends, scope: dict) -> object:
        ready = find(self, scope) if noted[0] else None
        if scope["path"].endswith("/records"):
            noted.append(ready is not None)
        return ready

    monkeypatch.setattr(ReadyAppends, "_find", look)
    return noted


@pytest.fixture(scope="module")
def url(service: Service) -> str:
    return f"/v1/streams/{service.stream()}/records"


def known(client: httpx.Client, url: str, directly: list[bool]) -> None:
    """Wait until the key and the stream are known, so that requests are answered without the framework."""
    wait_until(lambda: ok(client.post(url, content=as_json(X, Y)), 202) and directly[-1])


def answered_directly(post: Callable[[], httpx.Response], directly: list[bool]) -> httpx.Response:
    """Post until the answer comes without the framework; after each new key the API looks up all keys again."""
    answers: list[httpx.Response] = []
    wait_until(lambda: answers.append(post()) or directly[-1])
    return answers[-1]


def outcome(answer: httpx.Response) -> tuple[int, dict, dict]:
    headers, body = dict(answer.headers), answer.json()
    for changing in ("x-request-id", "date"):
        del headers[changing]
    if "entry" in body:
        assert len(answer.content) == int(headers.pop("content-length"))
        del body["entry"]
    return answer.status_code, headers, body


@pytest.mark.parametrize("more", HEADERS, ids=["plain", "a key", "a long key", "an empty key"])
@pytest.mark.parametrize("name", BODIES)
def test_it_is_what_the_application_answers(service: Service, url, directly, name, more):
    kind, body = BODIES[name]
    headers = ({} if kind is None else {"Content-Type": kind}) | more

    def post() -> httpx.Response:
        if 1 <= len(more.get("Idempotency-Key", "")) <= 255:
            headers["Idempotency-Key"] = unique("key")
        return service.client().post(url, content=body, headers=headers)

    known(service.client(), url, directly)
    plain = kind not in ("", "text/csv") and 0 < len(more.get("Idempotency-Key", "-")) <= 255 and name != "nothing"
    direct = answered_directly(post, directly) if plain else post()
    directly[0] = False
    whole = post()
    assert outcome(direct) == outcome(whole)
    assert not directly[-1]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BacklogFull(), 429, "backlog-full"),
        (IdempotencyConflict(), 422, "idempotency-conflict"),
        (IdempotencyFull(seconds=9, limit=3), 429, "idempotency-full"),
        (LogUnavailable("the log does not answer"), 503, "log-unavailable"),
        (ZeroDivisionError(), 500, "internal-error"),
    ],
)
def test_what_the_log_refuses_is_asked_once_and_answered_as_by_the_application(
    service: Service, url, directly, monkeypatch, error, status, kind
):
    known(service.client(), url, directly)
    before, tries = len(directly), []

    async def append(*_: object, **__: object) -> None:
        tries.append(directly[-1])
        raise error

    monkeypatch.setattr(Appender, "append", append)

    def post() -> httpx.Response:
        return service.client().post(url, content=as_json(X, Y))

    answers = [outcome(answered_directly(post, directly))]
    directly[0] = False
    answers.append(outcome(post()))
    assert len(tries) == len(directly) - before
    problems = [json.dumps(problem).partition("request ")[0] for _, _, problem in answers]  # but for the request's id
    assert problems[0] == problems[1]
    assert [code for code, _, _ in answers] == [status] * 2
    assert answers[0][2]["type"].endswith(f":{kind}")


def test_it_is_timed_under_its_route_and_its_records_are_counted(service: Service, url, directly):
    known(service.client(), url, directly)

    def counted() -> tuple[float, float]:
        route = {"method": "POST", "route": "/v1/streams/{stream}/records", "status": "202"}
        accepted = {"stream": url.split("/")[3]}
        return (
            metrics.API.get_sample_value("perennial_http_request_duration_seconds_count", route) or 0,
            metrics.API.get_sample_value("perennial_accepted_records_total", accepted) or 0,
        )

    (requests, records), headers, before = counted(), {"Idempotency-Key": unique("key")}, len(directly)

    def post() -> httpx.Response:
        return service.client().post(url, content=as_json(X, Y), headers=headers)

    for _ in range(2):  # the second is known again
        assert answered_directly(post, directly).status_code == 202
    assert counted() == (requests + len(directly) - before, records + len(X))


def test_a_key_of_another_stream_or_scope_appends_nothing(service: Service, url, directly):
    known(service.client(), url, directly)
    elsewhere = service.client(service.key("ingest", streams=[service.stream()]))
    reader = service.client(service.key("read"))
    for _ in range(3):  # at first its key is not known yet
        refused(elsewhere.post(url, content=as_json(X, Y)), 404, "not-found")
        refused(reader.post(url, content=as_json(X, Y)), 403, "forbidden")
        assert not any(directly[-2:])


def test_it_counts_for_the_rate_of_its_key_and_not_on_the_port_for_prometheus(
    service: Service, url, directly, monkeypatch
):
    monkeypatch.setattr(services, "SECONDS_OF_REQUESTS", 1000.0)
    run = serving(service.settings.model_copy(update={"max_key_requests": 0.01}))  # ten, and one in 100 seconds
    with run as address, httpx.Client(base_url=address, headers={"Authorization": f"Bearer {ADMIN_KEY}"}) as client:
        known(client, url, directly)
        refused(client.post(f"{run.metrics_url}{url}", content=as_json(X, Y)), 404, "not-found")
        answers = [client.post(url, content=as_json(X, [0, 7])).status_code for _ in range(40)]
        assert answers.count(422) < 20
        assert set(answers) == {422, 429}
        assert directly.count(True) > 5  # refusals are counted once, too


def test_a_body_that_comes_in_pieces_is_appended_directly_and_one_that_breaks_off_is_let_go(
    service: Service, url, directly, monkeypatch
):
    known(service.client(), url, directly)
    look, apps = ReadyAppends._find, []
    monkeypatch.setattr(ReadyAppends, "_find", lambda self, scope: apps.append(scope["app"]) or look(self, scope))
    body, port = as_json(X * 2000, Y * 2000), int(service.url.rpartition(":")[2])
    lines = (f"POST {url} HTTP/1.1", "Host: a", f"Authorization: Bearer {ADMIN_KEY}", f"Content-Length: {len(body)}")
    head = "\r\n".join((*lines, "", "")).encode()
    accepted = f'{{"accepted":{2 * 2000},'.encode()

    def sent_whole() -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) as client:
            for piece in (head, body[:10], body[10:20_000], body[20_000:]):
                client.sendall(piece)
                time.sleep(0.01)
            return client.recv(2**16)

    wait_until(lambda: accepted in sent_whole() and directly[-1])
    held = apps[-1].state.services.in_flight
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) as client:
        client.sendall(head + body[:-1])
        wait_until(lambda: held.all > 0)
    wait_until(lambda: held.all == 0)


def test_a_body_that_is_longer_than_a_setting_allows_is_refused(service: Service, url, directly):
    run = serving(service.settings.model_copy(update={"max_body_bytes": 1000}))
    with run as address, httpx.Client(base_url=address, headers={"Authorization": f"Bearer {ADMIN_KEY}"}) as client:
        known(client, url, directly)
        ok(client.post(url, content=as_json(X, Y).ljust(1000)), 202)
        refused(client.post(url, content=as_json(X, Y).ljust(1001)), 413, "too-large")


def test_a_key_in_two_lines_is_read_as_the_application_reads_it(service: Service, url, directly):
    """Else the same request would have another key when it is sent again, and be stored twice."""
    known(service.client(), url, directly)
    lines = [("Idempotency-Key", unique("key")), ("Idempotency-Key", unique("key"))]
    answers = []
    for directly[0] in (True, False):
        answers.append(ok(service.client().post(url, content=as_json(X, Y), headers=lines), 202))
    assert answers[0] == answers[1]
