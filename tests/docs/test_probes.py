"""Probes, grace periods and memory of containers, held to what an API and a worker need."""

import json
import re
import subprocess
import sys

import httpx
import pytest

from service.api.http.server import configuration
from service.settings import Settings
from service.worker.main import SECONDS_TO_FINISH
from tests.conftest import World, serving
from tests.docs.pages import ROOT
from tests.docs.test_chart import VALUES, containers, pods
from tests.docs.test_deployment import COMPOSE
from tests.ports import free_port

IMPORTED = (  # not getrusage: its maximum is inherited from the process that started this one
    "import re, service.api.app, service.worker.main; "
    "print(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read()).group(1))"
)


def healthy(port: int) -> bool:
    """Return what the image's own health check says of an API at this port."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    (command,) = re.findall(r"^HEALTHCHECK .*? CMD (.*)$", text, flags=re.MULTILINE)
    _python, *arguments = json.loads(command)
    environment = {"PERENNIAL_PORT": str(port)}
    return not subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, check=False
    ).returncode


def test_a_probe_tells_an_api_that_can_serve_from_one_whose_log_is_away_and_from_none(world: World):
    away = world.settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{free_port()}/0"})
    (api,) = (container for container in containers("as it is") if container["name"] == "api")
    ports = {port["name"]: port["containerPort"] for port in api["ports"]}
    assert ports["http"] == Settings.model_fields["port"].default
    with serving(world.settings) as able, serving(away) as unable:
        for probe, answers in (
            ("startupProbe", (200, 200)),
            ("livenessProbe", (200, 200)),
            ("readinessProbe", (200, 503)),
        ):
            address = api[probe]["httpGet"]
            assert address["port"] == "http"
            assert tuple(httpx.get(f"{url}{address['path']}").status_code for url in (able, unable)) == answers
        urls = (able, unable, f"http://127.0.0.1:{free_port()}")
        assert [healthy(httpx.URL(url).port or 0) for url in urls] == [True, False, False]


def test_a_part_has_the_time_that_it_takes_to_stop():
    seconds = {
        "api": configuration(None, Settings(_env_file=None)).timeout_graceful_shutdown,
        "worker": SECONDS_TO_FINISH,
    }
    for part, needed in seconds.items():
        assert pods("as it is")[f"perennial-{part}"]["terminationGracePeriodSeconds"] >= 2 * needed
        assert int(COMPOSE["services"][part]["stop_grace_period"].removesuffix("s")) >= 2 * needed


UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def size(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


@pytest.mark.parametrize("values", VALUES)
def test_a_container_may_take_the_memory_that_it_asks_for_and_an_api_that_of_all_bodies_too(values):
    for container in containers(values):
        request, limit = (size(container["resources"][name]["memory"]) for name in ("requests", "limits"))
        bodies = Settings.model_fields["max_body_bytes_in_all"].default if container["name"] == "api" else 0
        assert 64 * UNITS["Mi"] <= request <= limit - bodies


@pytest.mark.more
def test_the_memory_of_a_container_holds_its_program():
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    resources = {container["name"]: container["resources"] for container in containers("as it is")}
    for part, kind in (("api", "requests"), ("worker", "requests"), ("migrate", "limits")):
        assert int(done.stdout) * 1024 < size(resources[part][kind]["memory"])
