"""Metrics are compared with what the service knows otherwise."""

import itertools
import re
import socket
import threading
import time

import httpx
import pytest
import structlog

from service import metrics
from service.api.http import server
from service.api.routes import metrics as route
from service.ledger import open_entry
from service.settings import Settings
from service.store import publications, streams
from service.store.database import Database
from tests.api.test_labels import give, next_request, post, publish, unlabelled
from tests.conftest import ADMIN_KEY, HANG_SECONDS, Service, World, ok, publication, serving, unique, wait_until
from tests.monitoring.expositions import look
from tests.ports import free_port

MILLISECOND = 0.001  # Valkey's clock has no smaller unit
ONE_BY_ONE = {"kind": "sliding_window", "block": 5, "blocks": 1}
FIVE = {"x": [[1, 0], [0, 1], [-1, 0], [0, -1], [1, 1]], "y": [1, 1, 0, 0, 1]}


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch):
    monkeypatch.setattr(route, "SECONDS_BETWEEN_LOOKS", 0.0)


def test_records_are_counted_when_accepted_and_when_numbered(service: Service):
    stream = service.stream()
    service.post(stream, **FIVE)
    headers = {"Idempotency-Key": unique("key")}
    for _ in range(2):
        ok(service.client().post(f"/v1/streams/{stream}/records", json=FIVE, headers=headers), 202)
    wait_until(lambda: look(service.url, ADMIN_KEY).of("perennial_numbered_records_total", stream=stream) == 10)
    assert look(service.url, ADMIN_KEY).of("perennial_accepted_records_total", stream=stream) == 10
    assert look(service.url, ADMIN_KEY).of("perennial_backlog_batches", stream=stream) == 0


def test_budgets_are_those_of_the_ledger(service: Service):
    stream = service.stream(epsilon=3, delta=1e-6)
    name = service.publish(stream, ONE_BY_ONE, epsilon=1, delta=1e-7)
    service.post(stream, **FIVE)
    service.reaches(name, time=5)
    ledger, samples = ok(service.client().get(f"/v1/streams/{stream}/ledger")), look(service.url, ADMIN_KEY)
    for kind in ("budget", "reserved", "spent"):
        for part in ("epsilon", "delta"):
            assert samples.of(f"perennial_{kind}_{part}", stream=stream) == ledger[kind][part] > 0


@pytest.mark.more
def test_releases_have_a_version_and_an_age(service: Service):
    stream = service.stream()
    name = service.publish(stream, ONE_BY_ONE)
    labels = {"publication": name, "stream": stream}
    assert look(service.url, ADMIN_KEY).of("perennial_release_version", **labels) is None
    began = time.monotonic()
    service.post(stream, **FIVE)
    service.reaches(name, time=5)
    samples = look(service.url, ADMIN_KEY)
    assert samples.of("perennial_release_version", **labels) == 1
    assert 0 < samples.of("perennial_release_age_seconds", **labels) <= time.monotonic() - began
    assert samples.of("perennial_publication_running", **labels) == 1
    assert samples.of("perennial_publication_overdue_records", **labels) == 0
    ok(service.client().delete(f"/v1/publications/{name}"))
    assert look(service.url, ADMIN_KEY).of("perennial_publication_running", **labels) == 0


def test_what_waits_and_what_halted_is_told(world: World):
    with serving(world.settings) as url:
        service = Service(url, ADMIN_KEY, world.settings)
        with service.client() as client:
            stream = service.stream()
            name = service.publish(stream, ONE_BY_ONE)
            assert look(url, ADMIN_KEY).of("perennial_lag_seconds", stream=stream) == 0
            began = time.monotonic()
            for _ in range(2):
                ok(client.post(f"/v1/streams/{stream}/records", json=FIVE), 202)
            time.sleep(0.05)
            samples = look(url, ADMIN_KEY)
            assert samples.of("perennial_numbered_records_total", stream=stream) == 0
            assert samples.of("perennial_backlog_batches", stream=stream) == 2
            assert samples.of("perennial_backlog_bytes", stream=stream) > 2 * 5 * 2 * 4
            assert 0.05 < samples.of("perennial_lag_seconds", stream=stream) <= time.monotonic() - began + MILLISECOND
            assert samples.of("perennial_stream_halted", stream=stream) == 0
            assert samples.of("perennial_publication_halted", publication=name) == 0
            database = Database(str(world.settings.database_url))
            with database.transaction() as connection:
                streams.halt(connection, streams.find(connection, stream).id, "why")
                open_entry(connection, publications.find(connection, name)).end("halted", "why")
            database.close()
            samples = look(url, ADMIN_KEY)
            assert samples.of("perennial_stream_halted", stream=stream) == 1
            assert samples.of("perennial_publication_halted", publication=name) == 1


def test_nothing_tells_how_many_labels_people_are_asked_for(service: Service):
    stream = unlabelled(service)
    name = publish(service, stream)
    post(service, stream, [[1, 0]] * 4)
    wait_until(lambda: look(service.url, ADMIN_KEY).of("perennial_numbered_records_total", stream=stream) == 4)
    request = next_request(service, name)
    ok(give(service, name, request["record"], 1))
    ok(give(service, name, request["record"], 1), 409)
    samples = look(service.url, ADMIN_KEY)
    assert samples.of("perennial_publication_running", publication=name) == 1
    families = [line.split()[2] for line in samples.text.splitlines() if line.startswith("# TYPE")]
    assert not [each for each in families if "label" in each]
    mine = [line for line in samples.text.splitlines() if f'"{name}"' in line or '"/v1/publications/' in line]
    assert mine
    assert not [line for line in mine if "label" in line]


def test_fits_are_timed_by_the_worker(service: Service):
    """For each stream: another one may have a publication of that name. One of both waits for its ticks."""
    both = [service.stream(), service.stream()]
    name = unique("timed")
    for stream, publish_delay in zip(both, (0, 1), strict=True):
        body = publication(stream, ONE_BY_ONE) | {"name": name, "publish_delay": publish_delay}
        ok(service.client(service.key("admin", streams=[stream])).post("/v1/publications", json=body), 201)
        service.post(stream, **FIVE)
    for what, stream in itertools.product(("fit", "publish"), both):
        labels = f'publication="{name}",stream="{stream}"'
        count = f"perennial_{what}_duration_seconds_count{{{labels}}} 1.0\n"
        wait_until(lambda count=count: count in metrics.exposition(metrics.WORKER).decode())
        total = re.search(
            rf"perennial_{what}_duration_seconds_sum{{{labels}}} (.+)", metrics.exposition(metrics.WORKER).decode()
        )
        assert total is not None
        assert float(total[1]) in {*metrics.STEPS_SECONDS, metrics.BEYOND_STEPS_SECONDS}
    assert "python_info" not in metrics.exposition(metrics.WORKER).decode()


@pytest.mark.parametrize("histogram", [metrics.FIT, metrics.PUBLISH])
def test_what_a_worker_tells_of_a_fit_of_20_ms_it_tells_of_one_of_300_ms(histogram):
    def buckets(*seconds: float) -> list[str]:
        name = unique("timed")
        for each in seconds:
            histogram.labels(name, "s").observe(each)
        lines = metrics.exposition(metrics.WORKER).decode().splitlines()
        return [line.replace(name, "timed") for line in lines if f'"{name}"' in line]

    assert buckets(0.02) == buckets(0.3) != []
    assert buckets(0.02, 61.0) == buckets(0.999, 600.0)
    assert buckets(700.0) == buckets(70_000.0)
    assert len({tuple(buckets(each)) for each in (1.0, 1.001, 10.5, 60.5, 600.5)}) == 5


def test_answers_are_timed_by_the_template_of_their_route(service: Service):
    hidden = unique("never-in-a-metric")
    name = "perennial_http_request_duration_seconds_count"
    labels = {"method": "GET", "route": "/v1/streams/{stream}", "status": "404"}
    before = look(service.url, ADMIN_KEY).of(name, **labels) or 0
    service.client().get(f"/v1/streams/{hidden}")
    service.client().get(f"/{hidden}")
    service.client().request("BREW", f"/v1/streams/{hidden}")
    service.client().post(f"/v1/streams/{hidden}/records", json={"x": [[1, 2]], "y": [0]})
    samples = look(service.url, ADMIN_KEY)
    assert samples.of(name, **labels) == before + 1
    assert samples.of(name, route="unknown", status="404") >= 1
    assert samples.of(name, method="POST", route="/v1/streams/{stream}/records", status="404") >= 1
    assert hidden not in samples.text
    assert "BREW" not in samples.text


def test_it_answers_when_everything_else_is_away(tmp_path):
    port = free_port()
    away = Settings(
        _env_file=None,
        redis_url=f"redis://127.0.0.1:{port}/0",
        database_url=f"postgresql://nobody@127.0.0.1:{port}/nothing",
        worker_metrics=tmp_path / "no socket",
    )
    running = serving(away)
    with running as url:
        samples = look(running.metrics_url)
        assert httpx.get(f"{url}/metrics", headers={"Authorization": "Bearer unknown"}).status_code == 503
    assert [samples.of(f"perennial_{part}_up") for part in ("database", "log", "worker")] == [0, 0, 0]
    assert samples.of("process_start_time_seconds") > 0


def test_many_who_ask_cost_one_look(service: Service, monkeypatch):
    look(service.url, ADMIN_KEY)
    monkeypatch.setattr(route, "SECONDS_BETWEEN_LOOKS", HANG_SECONDS)
    service.stream(name=(name := unique("unseen")))
    assert look(service.url, ADMIN_KEY).of("perennial_stream_halted", stream=name) is None
    monkeypatch.setattr(route, "SECONDS_BETWEEN_LOOKS", 0.0)
    assert look(service.url, ADMIN_KEY).of("perennial_stream_halted", stream=name) == 0


class TestWorkerBesideIt:
    @pytest.fixture
    def url(self, world: World, tmp_path):
        self.path = tmp_path / "worker.sock"
        with serving(world.settings.model_copy(update={"worker_metrics": self.path})) as url:
            yield url

    def test_its_metrics_are_told_too_as_long_as_it_lives(self, url):
        metrics.FAILURES.labels("a-publication", "s").inc(0)
        for predecessor_killed in (False, True):
            if predecessor_killed:
                with socket.socket(socket.AF_UNIX) as left:
                    left.bind(str(self.path))
            assert look(url, ADMIN_KEY).of("perennial_worker_up") == 0
            with metrics.worker_serving(Settings(_env_file=None, worker_metrics=self.path)):
                samples = wait_until(lambda: (seen := look(url, ADMIN_KEY)).of("perennial_worker_up") and seen)
                assert samples.of("perennial_publish_failures_total", publication="a-publication") == 0
            assert not self.path.exists()
        assert look(url, ADMIN_KEY).of("perennial_publish_failures_total", publication="a-publication") is None

    @pytest.mark.parametrize("says", [b"", b"# half a li", None])
    def test_one_that_hangs_or_dies_on_the_way_breaks_nothing(self, url, says):
        looked = threading.Event()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen()

            def answer() -> None:
                connection, _ = listener.accept()
                if says is not None:
                    connection.sendall(says)
                else:
                    looked.wait()
                connection.close()

            worker = threading.Thread(target=answer)
            worker.start()
            assert look(url, ADMIN_KEY).of("perennial_worker_up") == 0
            looked.set()
            worker.join()


class TestPorts:
    """Ports of metrics alone: the API's, and that of a worker on its own."""

    @pytest.fixture(autouse=True)
    def _default_ports(self, monkeypatch):
        """Ports that no service beside this test uses."""
        self.port, self.other = free_port(), free_port()
        monkeypatch.setattr(server, "API_METRICS_PORT", self.port)
        monkeypatch.setattr(metrics, "WORKER_METRICS_PORT", self.port)

    @staticmethod
    def settings(**more: object) -> Settings:
        return Settings(_env_file=None, port=0, **more)

    @pytest.mark.parametrize("wanted", [None, 0, "other"])
    def test_the_api_opens_the_default_port_or_the_one_that_is_set_or_none(self, wanted):
        port = self.other if wanted == "other" else wanted
        sockets = server.listen(self.settings(metrics_port=port, host="127.0.0.2"))
        addresses = [each.getsockname() for each in sockets[1:]]
        for each in sockets:
            each.close()
        assert addresses == {None: [("127.0.0.1", self.port)], 0: [], "other": [("127.0.0.1", self.other)]}[wanted]

    def test_the_default_port_is_given_up_if_another_process_has_it_and_the_log_says_so(self):
        with socket.create_server(("127.0.0.1", self.port)), structlog.testing.capture_logs() as lines:
            (api,) = server.listen(self.settings())
            api.close()
            with metrics.worker_serving(self.settings()):
                pass
        assert [(line["event"], line["log_level"]) for line in lines] == [("metrics_port_in_use", "warning")] * 2

    def test_a_port_that_was_set_is_not_given_up(self):
        with socket.create_server(("127.0.0.1", self.port)):
            refused = pytest.raises(metrics.CannotListen, match=f"127.0.0.1:{self.port}.*PERENNIAL_METRICS_PORT")
            with refused:
                server.listen(self.settings(metrics_port=self.port))
            with refused, metrics.worker_serving(self.settings(metrics_port=self.port)):
                pass

    @pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
    def test_an_address_that_is_not_ours_is_refused_on_any_port(self, host):
        with pytest.raises(metrics.CannotListen, match="no such address, so choose another PERENNIAL_METRICS_HOST"):
            server.listen(self.settings(metrics_host=host))
        with pytest.raises(metrics.CannotListen), metrics.worker_serving(self.settings(metrics_host=host)):
            pass

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
    def test_clients_and_prometheus_never_share_a_port_not_even_on_two_addresses(self, host):
        with structlog.testing.capture_logs() as lines:
            (api,) = server.listen(self.settings().model_copy(update={"host": host, "port": self.port}))
            api.close()
        assert [line["event"] for line in lines] == ["metrics_port_in_use"]
        both = {"host": host, "port": self.port, "metrics_port": self.port}
        with pytest.raises(metrics.CannotListen):
            server.listen(self.settings().model_copy(update=both))

    def test_a_worker_alone_tells_its_own_over_http(self):
        with metrics.worker_serving(self.settings()):
            samples = look(f"http://127.0.0.1:{self.port}")
        assert samples.of("process_start_time_seconds") > 0
        assert "perennial_fit_duration_seconds" in {family.name for family in samples.families}
        with pytest.raises(httpx.ConnectError):
            look(f"http://127.0.0.1:{self.port}")

    def test_nor_does_its_processor_time_tell_how_long_a_fit_took(self):
        with metrics.worker_serving(self.settings()):
            names = {family.name for family in look(f"http://127.0.0.1:{self.port}").families}
        assert not [name for name in names if "cpu" in name or "_gc_" in name]

    @pytest.mark.parametrize("port", [None, "other"])
    def test_a_worker_beside_an_api_opens_no_port(self, tmp_path, port):
        wanted = self.other if port else None
        with metrics.worker_serving(self.settings(worker_metrics=tmp_path / "worker.sock", metrics_port=wanted)):
            for each in (self.port, self.other):
                with pytest.raises(httpx.ConnectError):
                    look(f"http://127.0.0.1:{each}")

    def test_the_port_answers_without_a_key_and_has_nothing_else(self, world: World):
        running = serving(world.settings)
        with running as url, httpx.Client(headers={"Authorization": f"Bearer {ADMIN_KEY}"}) as client:
            assert look(running.metrics_url).of("perennial_database_up") == 1
            for method, path in (("GET", "/livez"), ("GET", "/v1/keys"), ("POST", "/metrics"), ("GET", "/metrics/")):
                answer = client.request(method, f"{running.metrics_url}{path}")
                assert (answer.status_code, answer.json()["type"]) == (404, "urn:perennial:problem:not-found")
            assert client.head(f"{running.metrics_url}/metrics").status_code == 200
            assert httpx.get(f"{url}/metrics").status_code == 401
            spoofed = {"Host": running.metrics_url.removeprefix("http://")}
            assert httpx.get(f"{url}/metrics", headers=spoofed).status_code == 401
            ok(client.get(f"{url}/livez"))
