"""Nobody can make it wait, or work, or remember without end: slow clients, floods, and what is too long or too deep."""

import json
import socket
import time
from collections.abc import Callable
from contextlib import closing
from itertools import count

import httpx
import pytest

from docs.http_reference import openapi as document
from service import metrics
from service.api.auth.allowance import MOST_KEPT, Allowance
from service.api.http import connections
from tests.api.test_configuration import CONFIGURED
from tests.api.test_records import VALID, refused
from tests.api.wires import AUTHORIZED, Wire, closed_with, wire
from tests.conftest import ADMIN_KEY, Service, make_world, ok, serving, wait_until


class TestSlowClients:
    @pytest.fixture
    def name(self, service: Service, stream: str) -> str:
        return service.publish(stream, ONE_BY_ONE)

    @pytest.fixture
    def hurry(self, monkeypatch) -> Callable[[], None]:
        """Let go who does not send at once, from when it is called: not who connects slowly, on a busy machine."""

        def hurried() -> None:
            monkeypatch.setattr(connections, "SECONDS_TO_SEND", 0.3)
            monkeypatch.setattr(connections, "SECONDS_STALLED", 0.3)

        return hurried

    @pytest.mark.parametrize(
        "sent",
        [
            pytest.param(b"", id="nothing"),
            pytest.param(b"GET /livez HTTP/1.1\r\nHost: h\r\nX: ", id="half a head"),
            pytest.param(
                f"POST /v1/streams HTTP/1.1\r\nHost: h\r\n{AUTHORIZED}\r\nContent-Length: 99\r\n\r\n{{".encode(),
                id="half a body",
            ),
        ],
    )
    def test_who_sends_nothing_more_is_let_go(self, service: Service, hurry, sent):
        with wire(service) as client:
            client.socket.sendall(sent)
            hurry()
            closed_with(client.all(), 408, "request-timed-out")

    def test_who_trickles_is_let_go(self, service: Service, stream: str, hurry):
        with wire(service) as client:
            client.post(stream, "Content-Length: 1000000")
            hurry()
            client.send_until_let_go(b" ")

    def test_a_long_body_has_as_long_as_the_least_rate_needs(self, service: Service, stream: str, hurry, monkeypatch):
        monkeypatch.setattr(connections, "LEAST_BYTES_A_SECOND", 5)
        body = json.dumps(VALID).encode().ljust(1500)
        with wire(service) as client:
            client.be_answered()
            hurry()
            client.post(stream, f"Content-Length: {len(body)}", body=body[:500])
            for start in (500, 1000):
                time.sleep(0.7)  # once a second it is looked who is late
                client.socket.sendall(body[start : start + 500])
            assert client.answer()[0] == 202

    def test_who_is_refused_can_not_go_on_sending(self, service: Service, hurry):
        with wire(service) as client:
            client.send("POST /v1/streams HTTP/1.1", "Host: h", "Transfer-Encoding: chunked")
            assert client.answer()[0] == 401
            hurry()
            client.send_until_let_go(b"400\r\n" + b" " * 1024 + b"\r\n")

    def test_who_reads_nothing_is_let_go(self, service: Service, hurry):
        before = metrics.LET_GO.labels("slow to read")._value.get()
        with wire(service) as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.be_answered()
            hurry()
            client.socket.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: h\r\n\r\n" * 150)
            wait_until(lambda: metrics.LET_GO.labels("slow to read")._value.get() > before)

    def test_our_own_time_does_not_count(self, service: Service, name: str, hurry):
        with wire(service) as client:
            client.be_answered()
            hurry()
            path = f"/v1/publications/{name}/releases/latest"
            client.send(f"GET {path} HTTP/1.1", "Host: h", AUTHORIZED, "Prefer: wait=2")
            status, headers, _ = client.answer()
        assert (status, headers["preference-applied"]) == (404, "wait=2")

    def test_what_comes_after_an_answer_and_is_no_request_keeps_no_connection_open(self, servers, tmp_path):
        server = serving(make_world(servers, tmp_path).settings)
        server._server.config.timeout_keep_alive = 1
        with server as url, closing(Wire(url)) as client:
            client.be_answered()
            client.socket.sendall(b"\r\n")
            assert client.all() == b""


ONE_BY_ONE = {"kind": "sliding_window", "block": 5, "blocks": 1}


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("GET /livez HTTP/1.1\r\nHost: h\r\nX: ", id="header"),
        pytest.param("GET /", id="address"),
        pytest.param(
            f"POST /v1/streams HTTP/1.1\r\n{AUTHORIZED}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", id="end"
        ),
        pytest.param("POST /v1/streams HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", id="chunk extension"),
    ],
)
def test_what_a_request_comes_packed_in_is_bounded(service: Service, start):
    with wire(service) as client:
        client.socket.sendall(start.encode())
        time.sleep(0.05)
        sent = 0
        try:
            while sent < 2**24:
                sent += client.socket.send(b"a" * 4096)
        except OSError:
            pass
        assert sent < 2**22  # what the kernel took beside what was read


MOST = connections.MOST_HEAD_BYTES


@pytest.mark.parametrize("pause", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    "head",
    [
        pytest.param(["GET /livez HTTP/1.1", "Host: h", "X: " + "a" * 100_000], id="header"),
        pytest.param(["GET /livez HTTP/1.1", "Host: h", *(f"X{n}: {'a' * 100}" for n in range(700))], id="headers"),
        pytest.param(["GET /" + "a" * 66_000 + " HTTP/1.1", "Host: h"], id="path"),
        pytest.param(["GET /" + "a" * 100_000 + " HTTP/1.1", "Host: h"], id="long path"),
        pytest.param(["GET /livez?" + "a" * 66_000 + " HTTP/1.1"], id="query"),
    ],
)
def test_a_head_that_is_too_large_is_refused_however_it_comes(service: Service, head, pause):
    with wire(service) as client:
        sent = "\r\n".join([*head, "", ""]).encode()
        client.socket.sendall(sent[:40_000])
        if pause:
            time.sleep(0.05)
        client.socket.sendall(sent[40_000:])
        closed_with(client.all(), 431, "head-too-large")


@pytest.mark.parametrize(("more", "body"), [(0, b" " * 200_000), (0, b""), (1, b"")])
def test_the_largest_head_is_taken_before_a_large_body_too(service: Service, more, body):
    start = f"POST /livez HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\nX: "
    head = start + "a" * (MOST - len(start) - 4 + more) + "\r\n\r\n"
    with wire(service) as client:
        client.send("GET /livez HTTP/1.1", "Host: h")
        assert client.answer()[0] == 200
        client.socket.sendall(head.encode() + body)
        assert client.answer()[0] == (431 if more else 405)


def test_what_is_not_http_is_a_problem(service: Service):
    with wire(service) as client:
        client.send("\x16\x03\x01 nonsense")
        closed_with(client.all(), 400, "malformed-request")


@pytest.mark.parametrize(
    "lines",
    [
        ["GET /livez HTTP/1.1"],
        ["GET /livez HTTP/1.1", "Host: h", "Host: h"],
        ["POST /v1/streams HTTP/1.0", "Transfer-Encoding: chunked"],
        ["POST /v1/streams HTTP/1.1", "Transfer-Encoding: chunked"],
    ],
)
def test_a_head_that_a_proxy_may_read_otherwise_is_a_problem(service: Service, lines):
    with wire(service) as client:
        client.send(*lines, body=b"2\r\n{}\r\n0\r\n\r\n" if "chunked" in lines[-1] else b"")
        closed_with(client.all(), 400, "malformed-request")


def test_an_old_client_needs_no_host(service: Service):
    with wire(service) as client:
        client.send("GET /livez HTTP/1.0")
        assert client.all().startswith(b"HTTP/1.1 200")


UPGRADES = [
    ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
    ("Connection: Upgrade", "Upgrade: websocket"),
    ("connection: keep-alive, upgrade", "upgrade: something/1.0, TLS/1.0"),
]


@pytest.mark.parametrize("piece", [1, 97, 100_000])
@pytest.mark.parametrize("upgrade", UPGRADES, ids=str)
def test_an_upgrade_is_passed_over(service: Service, stream: str, upgrade: tuple[str, ...], piece: int):
    hidden = b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"
    post = [f"POST /v1/streams/{stream}/records HTTP/1.1", "Host: h", AUTHORIZED, *upgrade]
    json_body = json.dumps(VALID).encode()
    get = ("GET /livez HTTP/1.1", "Host: h", *upgrade)
    requests = [
        (get, b"", 200),
        ((*post, f"Content-Length: {len(json_body)}"), json_body, 202),
        ((*post, "Transfer-Encoding: chunked"), b"%x\r\n%s\r\n0\r\n\r\n" % (len(json_body), json_body), 202),
        ((*post, f"Content-Length: {len(hidden)}"), hidden, 422),
        (("PATCH /livez HTTP/1.1", "Host: h", *upgrade, "Content-Length: 3"), b"abc", 405),
        (("HEAD /livez HTTP/1.1", "Host: h", *upgrade), b"", 200),
        (get, b"", 200),
    ]
    sent = b"".join("\r\n".join([*head, "", ""]).encode() + body for head, body, _ in requests)
    with wire(service) as client:
        for start in range(0, len(sent), piece):
            client.socket.sendall(sent[start : start + piece])
        client.send("GET /livez HTTP/1.1", "Host: h", "Connection: close")
        answers = client.all().split(b"HTTP/1.1 ")[1:]
    assert [int(answer[:3]) for answer in answers] == [*(status for *_, status in requests), 200]


@pytest.mark.parametrize("lines", [["POST /livez HTTP/1.0"], ["POST /livez HTTP/1.1", "Host: h", "Connection: close"]])
def test_an_upgrade_is_passed_over_before_the_connection_ends(service: Service, lines: list[str]):
    with wire(service) as client:
        client.send(*lines, *UPGRADES[0], "Content-Length: 3", body=b"abc")
        assert client.all().startswith(b"HTTP/1.1 405")


def test_a_tunnel_is_refused(service: Service):
    with wire(service) as client:
        client.send("CONNECT other:443 HTTP/1.1", "Host: h")
        closed_with(client.all(), 400, "malformed-request")


def test_there_are_only_so_many_connections(servers, tmp_path):
    settings = make_world(servers, tmp_path, max_connections=3).settings
    with serving(settings) as url:
        held = [Wire(url) for _ in range(3)]
        for each in held:
            each.send("GET /livez HTTP/1.1", "Host: h")
            assert each.answer()[0] == 200
        with closing(Wire(url)) as client:
            closed_with(client.all(), 503, "too-many-connections")
        held.pop().close()

        def let_in() -> bool:
            with closing(Wire(url)) as client:
                client.send("GET /livez HTTP/1.1", "Host: h", "Connection: close")
                return client.all().startswith(b"HTTP/1.1 200")

        wait_until(let_in)
        for each in held:
            each.close()


def test_a_full_backlog_refuses_and_stores_nothing(servers, tmp_path):
    settings = make_world(servers, tmp_path, max_backlog_batches=2).settings  # no worker numbers anything
    with serving(settings) as url:
        alone = Service(url, ADMIN_KEY, settings)
        stream = alone.stream()
        answers = [alone.client().post(f"/v1/streams/{stream}/records", json=VALID) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [202, 202, 429, 429]
        refused(answers[-1], 429, "backlog-full")
        assert answers[-1].headers["retry-after"] == "1"
        assert f'perennial_backlog_batches{{stream="{stream}"}} 2.0' in alone.client().get("/metrics").text
        ok(alone.client().post(f"/v1/streams/{alone.stream()}/records", json=VALID), 202)
        for client in alone.clients.values():
            client.close()


def test_a_key_that_uses_too_many_idempotency_keys_is_refused_and_others_go_on(servers, tmp_path):
    settings = make_world(servers, tmp_path, max_idempotency_keys=2).settings
    with serving(settings) as url:
        alone = Service(url, ADMIN_KEY, settings)
        stream, other = alone.stream(), alone.stream()
        flooding, honest = (alone.client(alone.key("ingest", streams=[stream])) for _ in range(2))

        def post(client: httpx.Client, key: str, stream: str = stream) -> httpx.Response:
            return client.post(f"/v1/streams/{stream}/records", json=VALID, headers={"Idempotency-Key": key})

        first = [post(flooding, str(number)) for number in range(2)]
        for key in ("2", "3"):
            refused(answer := post(flooding, key), 429, "idempotency-full")
            assert "remembers 2 Idempotency-Keys" in answer.json()["detail"]
            assert 24 * 3600 < int(answer.headers["retry-after"]) <= 36 * 3600
        assert [post(flooding, str(number)).json() for number in range(2)] == [ok(answer, 202) for answer in first]
        ok(flooding.post(f"/v1/streams/{stream}/records", json=VALID), 202)
        ok(post(honest, "2"), 202)
        ok(post(alone.client(), "2", other), 202)
        assert 'perennial_log_memory_bytes{primary="1"}' in alone.client().get("/metrics").text
        for client in alone.clients.values():
            client.close()


class TestRates:
    def test_who_asks_too_often_is_told_when_to_come_back(self, servers, tmp_path):
        rate = 1.0
        settings = make_world(servers, tmp_path, max_key_requests=rate).settings
        with serving(settings) as url:
            alone = Service(url, ADMIN_KEY, settings)
            other = alone.client(alone.key("read"))
            began, answered = time.monotonic(), 0
            while (answer := alone.client().get("/v1/keys")).status_code == 200:
                answered += 1
            assert answered <= 2 * rate + rate * (time.monotonic() - began) + 1
            refused(answer, 429, "too-many-requests")
            assert 1 <= int(answer.headers["retry-after"]) <= 2
            ok(other.get("/v1/streams"))
            time.sleep(int(answer.headers["retry-after"]))
            ok(alone.client().get("/v1/keys"))
            for client in alone.clients.values():
                client.close()

    def test_guesses_are_refused_and_hold_up_nobody_else(self, servers, tmp_path):
        settings = make_world(servers, tmp_path, max_unknown_keys=0.5).settings
        with serving(settings) as url:
            alone = Service(url, ADMIN_KEY, settings)
            ok(alone.client().get("/v1/streams"))
            with httpx.Client(base_url=url) as guesser:
                guesses = (
                    guesser.get("/v1/streams", headers={"Authorization": f"Bearer {guess}"}) for guess in count()
                )
                refused(next(guesses), 401, "unauthenticated")
                other = next(answer for answer in guesses if answer.status_code != 401)
                refused(other, 429, "too-many-requests")
                assert "retry-after" in other.headers
                refused(guesser.get("/v1/streams"), 401, "unauthenticated")
            assert ok(alone.client().get("/v1/streams")) == {"items": []}
            made = alone.client().post("/v1/keys", json={"name": "another", "scopes": ["read"]})  # all look again
            assert made.status_code == 201
            ok(alone.client().get("/v1/streams"))
            for client in alone.clients.values():
                client.close()

    def test_guesses_refuse_no_key_that_is_used_for_the_first_time(self, servers, tmp_path):
        """From the same address, as behind a router: a new key, a new session, and any key after a restart."""
        settings = make_world(servers, tmp_path, max_unknown_keys=0.001).settings

        def guess(url: str, secret: str = "prn_guess") -> int:
            return httpx.get(f"{url}/v1/keys", headers={"Authorization": f"Bearer {secret}"}).status_code

        with serving(settings) as url:
            admin = Service(url, ADMIN_KEY, settings)
            assert [guess(url), guess(url)] == [401, 429]
            made = ok(admin.client().post("/v1/keys", json={"name": "new", "scopes": ["admin"]}), 201)
            assert [guess(url, made["key"]), guess(url)] == [200, 429]
            with httpx.Client(base_url=url) as browser:
                begun = browser.post("/v1/session", headers={"Authorization": f"Bearer {made['key']}"})
                assert begun.status_code == 201
                assert browser.get("/v1/session").status_code == 200
                browser.cookies.set("perennial_session", "prs_guess")
                assert browser.get("/v1/session").status_code == 429
            revoked = ok(admin.client().post("/v1/keys", json={"name": "revoked", "scopes": ["admin"]}), 201)
            assert admin.client().delete(f"/v1/keys/{revoked['id']}").status_code == 204
            assert guess(url, revoked["key"]) == 429
            for client in admin.clients.values():
                client.close()
        with serving(settings) as url:
            assert [guess(url), guess(url)] == [401, 429]
            assert [guess(url, made["key"]), guess(url, ADMIN_KEY), guess(url)] == [200, 200, 429]

    def test_the_average_and_the_burst_are_as_they_are_set(self, monkeypatch):
        now = 1000.0
        monkeypatch.setattr("service.api.auth.allowance.time.monotonic", lambda: now)
        allowance, taken = Allowance(10, seconds=2), []
        for _ in range(1000):
            now += 0.01
            if not allowance.early("a"):
                allowance.count("a")
                taken.append(now)
        assert 100 + 20 - 2 <= len(taken) <= 100 + 20 + 2
        assert 0 < allowance.early("a") <= 0.1
        assert not allowance.early("b")

    def test_a_pause_saves_up_no_more_than_a_burst(self, monkeypatch):
        now = 1000.0
        monkeypatch.setattr("service.api.auth.allowance.time.monotonic", lambda: now)
        allowance = Allowance(10, seconds=2)
        allowance.count("a")
        now += 3600
        for _ in range(22):
            allowance.count("a")
        assert allowance.early("a") > 0

    def test_an_army_fills_no_memory(self):
        allowance = Allowance(1, seconds=1)
        for who in range(3 * MOST_KEPT):
            allowance.count(who)
        assert len(allowance._due) <= MOST_KEPT

    def test_an_army_makes_nobody_forgotten_who_asked_too_often(self, monkeypatch):
        now = 1000.0
        monkeypatch.setattr("service.api.auth.allowance.time.monotonic", lambda: now)
        allowance = Allowance(1, seconds=1)
        for _ in range(9):
            allowance.count("a")
        for who in range(MOST_KEPT - 1):
            allowance.count(who)
        now += 2
        allowance.count("one more")
        assert allowance.early("a") == 6
        assert set(allowance._due) == {"a", "one more"}


READING_JSON = [
    *CONFIGURED,
    "/v1/publications/{publication}/predict",
    "/v1/publications/{publication}/queries",
    "/v1/streams/{stream}/records",
]


def test_every_route_that_reads_json_is_known():
    calls = {path: operations.get("post", {}) for path, operations in document()["paths"].items()}
    reading = {path for path in calls if "application/json" in calls[path].get("requestBody", {}).get("content", ())}
    assert reading == set(READING_JSON)


@pytest.mark.parametrize("path", READING_JSON)
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 200_000, id="open"),
        pytest.param(b"[" * 900 + b"]" * 900, id="deep"),
        pytest.param(b'{"a":' * 50_000 + b"1" + b"}" * 50_000, id="deep objects"),
        pytest.param(b'{"mechanism":' * 400 + b"{}" + b"}" * 400, id="deep settings"),
        pytest.param(b'{"x":' + b"9" * 100_000 + b"}", id="long number"),
        pytest.param(b'{"name":"\\ud800","x":[["\\ud800"]]}', id="half a character"),
        pytest.param(b"\xff\xfe{}", id="not UTF-8"),
    ],
)
def test_what_is_too_deep_or_too_long_is_refused(service: Service, stream, counting, path, body):
    url = path.format(stream=stream, publication=counting if path.endswith("/queries") else stream)
    answer = service.client().post(url, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text


@pytest.fixture(scope="module")
def counting(service: Service) -> str:
    """A publication that answers queries."""
    stream = service.stream(features=None, task={"kind": "categorical", "cardinality": 3})
    mechanism = {"kind": "linear_queries", "first": 9, "hits": 1}
    wanted = {"name": stream, "stream": stream, "mechanism": mechanism, "privacy": {"epsilon": 1}}
    return ok(service.client().post("/v1/publications", json=wanted), 201)["name"]


@pytest.fixture(scope="module")
def stream(service: Service) -> str:
    """With a publication of its name that has a release."""
    stream = service.stream()
    name = service.publish(stream, {"kind": "sliding_window", "block": 2, "blocks": 1}, name=stream)
    service.post(stream, **VALID)
    service.reaches(name, time=2)
    return stream
