"""The files for Prometheus and Grafana: by Prometheus' own tools, and against a service that runs."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.conftest import ok, publication, wait_until
from tests.docs.pages import ROOT
from tests.faults.up import Up
from tests.monitoring.expositions import look, needs_prometheus, promtool
from tests.monitoring.test_alerts import RULES
from tests.monitoring.test_up import publish
from tests.ports import free_port

FILES = ROOT / "deploy" / "prometheus"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "perennial.json").read_text())
GRAPHS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
FIRST_GRAPHS = {panel["title"]: panel["targets"][0]["expr"] for panel in DASHBOARD["panels"]}


@needs_prometheus
def test_promtool_has_nothing_to_complain_of():
    promtool("check", "rules", "--lint-fatal", "alerts.yaml", "scaling.yaml", folder=FILES)
    promtool("check", "config", "--lint-fatal", "prometheus.yaml", folder=FILES)


@needs_prometheus
def test_the_work_by_which_workers_are_scaled_is_counted_once():
    promtool("test", "rules", "scaling.test.yaml", folder=FILES)


def test_every_panel_has_its_place_and_the_provisioned_source():
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    taken = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(taken) == len(set(taken))
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["datasources"][0]["uid"]}


TROUBLE = {
    "Targets down": ({'up{job="perennial-api"}': 1, 'up{job="perennial-worker"}': 0, 'up{job="another"}': 0}, "{}", 1),
    "Halted": (
        {
            'perennial_stream_halted{stream="s", instance="a"}': 1,
            'perennial_stream_halted{stream="s", instance="b"}': 1,
            'perennial_publication_halted{publication="p", stream="s", instance="a"}': 1,
            'perennial_publication_halted{publication="p", stream="s", instance="b"}': 1,
            'perennial_publication_halted{publication="q", stream="s", instance="a"}': 0,
        },
        *("{}", 2),
    ),
    "Lag": (
        {'perennial_lag_seconds{stream="s", instance="a"}': 3, 'perennial_lag_seconds{stream="s", instance="b"}': 5},
        *('{stream="s"}', 5),
    ),
}
"""By titles of graphs: series with their values, and the labels and the value that the graph must then show."""


@needs_prometheus
def test_graphs_show_what_is_down_halted_or_late_once_however_many_apis_there_are(tmp_path):
    tests = [
        {
            "name": title,
            "interval": "15s",
            "input_series": [{"series": name, "values": str(sample)} for name, sample in series.items()],
            "promql_expr_test": [
                {"expr": FIRST_GRAPHS[title], "eval_time": "0s", "exp_samples": [{"labels": labels, "value": value}]}
            ],
        }
        for title, (series, labels, value) in TROUBLE.items()
    ]
    (tmp_path / "test.yaml").write_text(json.dumps({"tests": tests}))
    promtool("test", "rules", "test.yaml", folder=tmp_path)


class Prometheus:
    """Debian's, scraping one service as the file for docker compose says, by two names as if there were two APIs."""

    def __init__(self, folder: Path, port: str) -> None:
        configuration = yaml.safe_load((FILES / "prometheus.yaml").read_text())
        configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        configuration["rule_files"] = [str(FILES / name) for name in configuration["rule_files"]]
        for job in configuration["scrape_configs"]:
            del job["dns_sd_configs"]
            addresses = [f"{host}:{port}" for host in ("127.0.0.1", "localhost")]
            job["static_configs"] = [{"targets": addresses if job["job_name"] == "perennial-api" else []}]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        address = f"127.0.0.1:{free_port()}"
        self.client = httpx.Client(base_url=f"http://{address}", trust_env=False)
        self.log = (folder / "prometheus.log").open("w")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address={address}",
            ],
            stdout=self.log,
            stderr=self.log,
        )

    def values(self, expression: str) -> dict[str | None, float]:
        """Return a value for each publication or stream, or for all together."""
        answer = self.client.get(
            "/api/v1/query", params={"query": expression.replace("$__rate_interval", "10s")}
        ).json()
        assert answer["status"] == "success", (expression, answer)
        return {
            series["metric"].get("publication", series["metric"].get("stream")): float(series["value"][1])
            for series in answer["data"]["result"]
        }

    def ask(self, expression: str) -> list[float]:
        return [*self.values(expression).values()]

    def ready(self) -> bool:
        try:
            return self.client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(200)
        self.log.close()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, Prometheus]]:
    """Nothing is published on it before the ordinary day, and an alert fires at the end of the test after that."""
    folder = tmp_path_factory.mktemp("watched")
    up = Up(folder / "data")
    port = str(free_port())
    up.start(metrics_port=port)
    prometheus = Prometheus(folder, port)
    try:
        wait_until(prometheus.ready)
        wait_until(lambda: prometheus.ask('sum(up{job="perennial-api"})') == [2])
        yield up, prometheus
    finally:
        prometheus.stop()
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(200) == 0


def evaluate(up: Up) -> None:
    mechanism = {"kind": "evaluation", "of": ["p"], "block": 5}
    publication = {"name": "e", "stream": "s", "mechanism": mechanism, "publish_delay": 0}
    with up.client() as client:
        ok(client.post("/v1/publications", json=publication | {"privacy": {"epsilon": 1, "delta": 0}}), 201)
        ok(client.post("/v1/streams/s/records", json={"x": [[1, 0]] * 10, "y": [0, 1] * 5}), 202)


def filled(prometheus: Prometheus, expressions: list[str]) -> None:
    for expression in expressions:
        wait_until(lambda expression=expression: prometheus.ask(expression))


DAY = [{"kind": "sliding_window", "block": 5, "blocks": 1 + number % 3} for number in range(10)]
# Pending where the machine is busy, or at the start: a part that does not answer within a second is away.
WAITING = "PerennialLag|PerennialNoRelease|PerennialApiMissing|PerennialTargetDown|PerennialPartAway"


def shown_values(client: httpx.Client, names: list[str]) -> dict[str, dict[str | None, float]]:
    """Return what graphs must show, by their titles: what the API says, and that everything goes well."""
    ledgers = {name: ok(client.get(f"/v1/streams/{name}/ledger")) for name in ("day", "full")}
    spent, reserved, budget = (
        {name: ledger[amount]["epsilon"] for name, ledger in ledgers.items()}
        for amount in ("spent", "reserved", "budget")
    )
    publications = {name: ok(client.get(f"/v1/publications/{name}")) for name in names}
    return {
        "Targets down": {None: 0},
        "Halted": {None: 0},
        "Records numbered": {None: 45},
        "Publications running": {None: sum(of["state"] == "running" for of in publications.values())},
        "Lag": {"day": 0, "full": 0},
        "Budget spent": {name: spent[name] / budget[name] for name in ledgers},
        "Budget reserved": {name: reserved[name] / budget[name] for name in ledgers},
        "ε spent over time": spent,
    }


@needs_prometheus
@pytest.mark.slow
def test_an_ordinary_day_fires_no_alert_and_no_alert_waits_to_fire(watched):
    """Ten publications started, some stopped, some refused, one stream full: `for` is not what keeps alerts silent."""
    up, prometheus = watched
    task, batch = {"kind": "classification", "classes": 2}, {"x": [[1, 0]] * 15, "y": [0, 1, 1] * 5}
    with up.client() as client:
        for name, epsilon in (("day", 10), ("full", 1)):
            budget = {"epsilon": epsilon, "delta": 0}
            ok(client.post("/v1/streams", json={"name": name, "features": 2, "task": task, "budget": budget}), 201)
        names = [ok(client.post("/v1/publications", json=publication("day", each)), 201)["name"] for each in DAY]
        names.append(ok(client.post("/v1/publications", json=publication("full", DAY[0])), 201)["name"])
        ok(client.post("/v1/publications", json=publication("full", DAY[0])), 409)
        ok(client.post("/v1/publications", json=publication("day", {"kind": "sliding_window", "block": -1})), 422)
        ok(client.post("/v1/streams/day/records", json={"x": [["none"]], "y": [0]}), 422)
        for stream in ("day", "full"):
            ok(client.post(f"/v1/streams/{stream}/records", json=batch), 202)
        for name in names:
            url = f"/v1/publications/{name}/releases/latest"
            wait_until(lambda of=url: client.get(of).status_code == 200)
        for name in names[:5]:
            ok(client.delete(f"/v1/publications/{name}"))
        ok(client.post("/v1/streams/day/records", json=batch), 202)
        for title in shown_values(client, names):
            wait_until(
                lambda of=title: (
                    prometheus.values(FIRST_GRAPHS[of]) == pytest.approx(shown_values(client, names)[of], abs=1e-12)
                )
            )
    before = prometheus.ask("count_over_time(up[1h])")[0]
    wait_until(lambda: prometheus.ask("count_over_time(up[1h])")[0] >= before + 5)
    assert prometheus.ask('count_over_time(ALERTS{alertstate="firing"}[1h])') == []
    assert prometheus.ask(f'count_over_time(ALERTS{{alertname!~"{WAITING}"}}[1h])') == []


@pytest.mark.more
@needs_prometheus
@pytest.mark.slow
def test_a_running_service_fills_every_graph_and_fires_no_alert(watched):
    up, prometheus = watched
    publish(up)
    wait_until(lambda: prometheus.ask('perennial_release_version{publication="p"}') == [1])
    of_evaluations = [each for each in GRAPHS if "perennial_evaluation" in each]
    filled(prometheus, [each for each in GRAPHS if each not in of_evaluations])
    time.sleep(1)
    assert prometheus.ask('ALERTS{alertstate="firing"}') == []
    evaluate(up)  # ten records show of no model that it is good, which is an alert
    filled(prometheus, of_evaluations)
    metadata = prometheus.client.get("/api/v1/metadata").json()["data"]
    samples = wait_until(lambda: (seen := look(up.url, up.key())).of("perennial_worker_up") and seen)
    served = {family.name for family in samples.families}
    assert {name.removesuffix("_total") for name in metadata if name.startswith("perennial_")} <= served
    used = set(re.findall(r"perennial_[a-z_]+", " ".join([*GRAPHS, *(rule["expr"] for rule in RULES)])))
    assert {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in used} <= served
