"""What `/metrics` tells, against what the service knows otherwise."""

import socket
import threading
import time

import httpx
import pytest

from service import metrics
from service.api import metrics as route
from service.settings import Settings
from service.store import publications, streams
from service.store.database import Database
from tests.api.test_labels import give, next_request, post, publish, unlabelled
from tests.conftest import ADMIN_KEY, Service, World, ok, serving, unique, wait_until
from tests.monitoring.expositions import look

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
    wait_until(lambda: look(service.url).of("perennial_numbered_records_total", stream=stream) == 10)
    assert look(service.url).of("perennial_accepted_records_total", stream=stream) == 10
    assert look(service.url).of("perennial_backlog_batches", stream=stream) == 0


def test_budgets_are_those_of_the_ledger(service: Service):
    stream = service.stream(epsilon=3, delta=1e-6)
    name = service.publish(stream, ONE_BY_ONE, epsilon=1, delta=1e-7)
    service.post(stream, **FIVE)
    service.reaches(name, time=5)
    ledger, samples = ok(service.client().get(f"/v1/streams/{stream}/ledger")), look(service.url)
    for kind in ("budget", "reserved", "spent"):
        for part in ("epsilon", "delta"):
            assert samples.of(f"perennial_{kind}_{part}", stream=stream) == ledger[kind][part] > 0


def test_releases_have_a_version_and_an_age(service: Service):
    stream = service.stream()
    name = service.publish(stream, ONE_BY_ONE)
    labels = {"publication": name, "stream": stream}
    assert look(service.url).of("perennial_release_version", **labels) is None
    service.post(stream, **FIVE)
    service.reaches(name, time=5)
    samples = look(service.url)
    assert samples.of("perennial_release_version", **labels) == 1
    assert 0 < samples.of("perennial_release_age_seconds", **labels) < 10
    assert samples.of("perennial_publication_running", **labels) == 1
    assert samples.of("perennial_publication_overdue_records", **labels) == 0
    ok(service.client().delete(f"/v1/publications/{name}"))
    assert look(service.url).of("perennial_publication_running", **labels) == 0


def test_what_waits_and_what_halted_is_told(world: World):
    with serving(world.settings) as url:
        service = Service(url, ADMIN_KEY, world.settings)
        with service.client() as client:
            stream = service.stream()
            name = service.publish(stream, ONE_BY_ONE)
            assert look(url).of("perennial_lag_seconds", stream=stream) == 0
            for _ in range(2):
                ok(client.post(f"/v1/streams/{stream}/records", json=FIVE), 202)
            time.sleep(0.05)
            samples = look(url)
            assert samples.of("perennial_numbered_records_total", stream=stream) == 0
            assert samples.of("perennial_backlog_batches", stream=stream) == 2
            assert samples.of("perennial_backlog_bytes", stream=stream) > 2 * 5 * 2 * 4
            assert 0.05 < samples.of("perennial_lag_seconds", stream=stream) < 10
            assert samples.of("perennial_stream_halted", stream=stream) == 0
            assert samples.of("perennial_publication_halted", publication=name) == 0
            database = Database(str(world.settings.database_url))
            with database.transaction() as connection:
                streams.halt(connection, streams.find(connection, stream).id, "why")
                publications.end(connection, publications.find(connection, name).id, state="halted", reason="why")
            database.close()
            samples = look(url)
            assert samples.of("perennial_stream_halted", stream=stream) == 1
            assert samples.of("perennial_publication_halted", publication=name) == 1


def test_labels_are_counted_that_are_asked_for_and_that_are_given(service: Service):
    stream = unlabelled(service)
    name = publish(service, stream)
    labels = {"publication": name, "stream": stream}
    assert look(service.url).of("perennial_open_label_requests", **labels) == 0
    post(service, stream, [[1, 0]] * 4)
    request = next_request(service, name)
    assert look(service.url).of("perennial_open_label_requests", **labels) == request["waiting"]
    ok(give(service, name, request["record"], 1))
    ok(give(service, name, request["record"], 1), 409)
    samples = look(service.url)
    assert samples.of("perennial_open_label_requests", **labels) == request["waiting"] - 1
    assert samples.of("perennial_given_labels_total", publication=name) == 1
    quiet = service.publish(service.stream(), ONE_BY_ONE)
    assert look(service.url).of("perennial_open_label_requests", publication=quiet) is None


def test_fits_are_timed_by_the_worker(service: Service):
    stream = service.stream()
    name = service.publish(stream, ONE_BY_ONE)
    service.post(stream, **FIVE)
    service.reaches(name, time=5)
    told = metrics.exposition(metrics.WORKER).decode()
    for what in ("fit", "publish"):
        wait_until(
            lambda what=what: (
                f'perennial_{what}_duration_seconds_count{{publication="{name}"}} 1.0'
                in metrics.exposition(metrics.WORKER).decode()
            )
        )
    assert "python_info" not in told


def test_answers_are_timed_by_the_template_of_their_route(service: Service):
    hidden = unique("never-in-a-metric")
    name = "perennial_http_request_duration_seconds_count"
    asked = {"method": "GET", "route": "/v1/streams/{stream}", "status": "404"}
    before = look(service.url).of(name, **asked) or 0
    service.client().get(f"/v1/streams/{hidden}")
    service.client().get(f"/{hidden}")
    service.client().request("BREW", f"/v1/streams/{hidden}")
    service.client().post(f"/v1/streams/{hidden}/records", json={"x": [[1, 2]], "y": [0]})
    samples = look(service.url)
    assert samples.of(name, **asked) == before + 1
    assert samples.of(name, route="unknown", status="404") >= 1
    assert samples.of(name, method="POST", route="/v1/streams/{stream}/records", status="404") >= 1
    assert hidden not in samples.text
    assert "BREW" not in samples.text


def test_it_answers_when_everything_else_is_away(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    away = Settings(
        _env_file=None,
        redis_url=f"redis://127.0.0.1:{port}/0",
        database_url=f"postgresql://nobody@127.0.0.1:{port}/nothing",
        worker_metrics=tmp_path / "no socket",
    )
    with serving(away) as url:
        samples = look(url)
    assert [samples.of(f"perennial_{part}_up") for part in ("database", "log", "worker")] == [0, 0, 0]
    assert samples.of("process_start_time_seconds") > 0


def test_many_who_ask_cost_one_look(service: Service, monkeypatch):
    monkeypatch.setattr(route, "SECONDS_BETWEEN_LOOKS", 60.0)
    look(service.url)
    service.stream(name=(name := unique("unseen")))
    assert look(service.url).of("perennial_stream_halted", stream=name) is None
    monkeypatch.setattr(route, "SECONDS_BETWEEN_LOOKS", 0.0)
    assert look(service.url).of("perennial_stream_halted", stream=name) == 0


class TestWorkerBesideIt:
    @pytest.fixture
    def url(self, world: World, tmp_path):
        self.path = tmp_path / "worker.sock"
        with serving(world.settings.model_copy(update={"worker_metrics": self.path})) as url:
            yield url

    def test_its_metrics_are_told_too_as_long_as_it_lives(self, url):
        metrics.FAILURES.labels("a-publication").inc(0)
        for _ in range(2):  # it finds the socket of a killed predecessor
            assert look(url).of("perennial_worker_up") == 0
            with metrics.told(self.path, "127.0.0.1", None):
                samples = look(url)
                assert samples.of("perennial_worker_up") == 1
                assert samples.of("perennial_publish_failures_total", publication="a-publication") == 0
            assert self.path.exists()
        assert look(url).of("perennial_publish_failures_total", publication="a-publication") is None

    @pytest.mark.parametrize("says", [b"", b"# half a li", None])
    def test_one_that_hangs_or_dies_on_the_way_breaks_nothing(self, url, says):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen()

            def answer() -> None:
                connection, _ = listener.accept()
                if says is not None:
                    connection.sendall(says)
                    connection.close()
                else:
                    time.sleep(2)
                    connection.close()

            worker = threading.Thread(target=answer)
            worker.start()
            began = time.monotonic()
            assert look(url).of("perennial_worker_up") == 0
            assert time.monotonic() - began < 1.9
            worker.join()


def test_a_worker_alone_tells_its_own_over_http():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with metrics.told(None, "127.0.0.1", port):
        samples = look(f"http://127.0.0.1:{port}")
        assert samples.of("process_start_time_seconds") > 0
        assert "perennial_fit_duration_seconds" in {family.name for family in samples.families}
        with pytest.raises(metrics.CannotListen, match=str(port)), metrics.told(None, "127.0.0.1", port):
            pass
    with pytest.raises(httpx.ConnectError):
        look(f"http://127.0.0.1:{port}")
