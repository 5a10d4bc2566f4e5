"""The image and the compose file: read as what they are, and held to what they promise."""

import contextlib
import json
import re
import shlex
import subprocess
from fnmatch import fnmatch
from importlib import resources
from importlib.metadata import requires
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement
from redis import Redis
from redis.exceptions import RedisError
from typer.testing import CliRunner

from service.cli import app
from service.embedded import valkey
from service.log.connection import DURABILITY, require_durability
from service.settings import API_METRICS_PORT, WORKER_METRICS_PORT, Settings
from tests.conftest import wait_until
from tests.docs.pages import ROOT
from tests.ports import free_port

yaml = pytest.importorskip("yaml", reason="PyYAML reads the compose file")

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = sorted(COMPOSE["services"])


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_cannot_write_to_its_image_nor_gain_rights(name) -> None:
    service = COMPOSE["services"][name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_secrets_have_no_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()

    for secret in ("PERENNIAL_ADMIN_KEY", "POSTGRES_PASSWORD"):
        uses = re.findall(rf"\$\{{{secret}([^}}]*)}}", text)
        assert uses
        assert all(use.startswith(":?") for use in uses)


def test_only_the_api_and_the_graphs_are_reached_and_only_from_this_machine() -> None:
    published = {name: ports for name in SERVICES if (ports := COMPOSE["services"][name].get("ports"))}

    assert sorted(published) == ["api", "grafana"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_what_is_mounted_is_there() -> None:
    mounted = [
        mount.split(":")[0]
        for service in COMPOSE["services"].values()
        for mount in service.get("volumes", ())
        if mount.startswith("./")
    ]

    assert [path for path in mounted if not (ROOT / path).is_dir()] == []
    assert mounted


OF_THE_CONTAINERS = {"host", "port", "metrics_host", "metrics_port", "worker_metrics", "segment_copies", "database_url"}
"""Settings that hold for the inside of containers, and are the compose file's or the image's to choose."""
OF_ONE_PART = {"migration_url": "migrate", "admin_key": "api"}
"""Secrets that only one part reads."""


def test_a_setting_of_the_env_file_reaches_the_api_and_the_worker() -> None:
    for part in ("api", "worker"):
        environment = COMPOSE["services"][part]["environment"]
        for name in Settings.model_fields.keys() - OF_THE_CONTAINERS - OF_ONE_PART.keys():
            variable = f"PERENNIAL_{name.upper()}"
            value = environment.get(variable, "it is not passed on")
            assert value is None or value.startswith(f"${{{variable}:-"), variable


def test_a_secret_reaches_the_part_that_reads_it_alone() -> None:
    for name, part in OF_ONE_PART.items():
        reached = {each for each in SERVICES if f"PERENNIAL_{name.upper()}" in _environment(each)}
        assert reached == {part}


def test_every_variable_of_the_compose_file_is_a_setting() -> None:
    known = {f"PERENNIAL_{name.upper()}" for name in Settings.model_fields}
    passed = {variable for name in SERVICES for variable in _environment(name) if variable.startswith("PERENNIAL_")}
    assert passed <= known


def _environment(service: str) -> dict[str, str | None]:
    return COMPOSE["services"][service].get("environment", {})


PRIMARIES = [name for name in SERVICES if name.startswith("valkey")]


@pytest.mark.parametrize("name", [*PRIMARIES, "postgres", "objects", "prometheus", "grafana"])
def test_a_server_is_not_root_and_tells_its_health(name) -> None:
    service = COMPOSE["services"][name]

    assert service["user"].partition(":")[0] not in ("root", "0")
    assert service["healthcheck"]["test"]


SEVERAL = dict(re.findall(r"^# ((?:PERENNIAL|AWS)_\w+)=(.+)$", (ROOT / ".env.example").read_text(), flags=re.MULTILINE))
"""Settings of the profile `several`, and others that are the same without it."""


@pytest.mark.parametrize("clustered", [False, True])
def test_valkey_takes_its_options_and_keeps_what_it_answers(tmp_path, clustered) -> None:
    """As a node of a cluster it serves its own streams while others are away, and no replica takes its place."""
    options = re.sub(
        r"\$\{PERENNIAL_REDIS_URL:\+(.*?)}", r"\1" if clustered else "", COMPOSE["services"]["valkey"]["command"]
    )
    port, bus = free_port(), free_port()
    command = [*shlex.split(options)[1:], "--port", str(port), "--cluster-port", str(bus), "--dir", str(tmp_path)]
    with subprocess.Popen([valkey._executable(), *command, "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL) as server:
        try:
            with Redis(port=port, decode_responses=True) as redis:
                wait_until(lambda: answers(redis))
                require_durability(redis.config_get(*DURABILITY))
                assert redis.config_get("save", "hide-user-data-from-log") == {
                    "save": "",
                    "hide-user-data-from-log": "yes",
                }
                expected = {"cluster-require-full-coverage": "no", "cluster-replica-no-failover": "yes"}
                assert redis.info("cluster")["cluster_enabled"] == clustered
                assert (redis.config_get(*expected) == expected) is clustered
        finally:
            server.terminate()


def answers(redis: Redis) -> bool:
    with contextlib.suppress(RedisError):
        return redis.ping()
    return False


def test_the_profile_several_is_a_cluster_of_all_slots_and_an_object_store() -> None:
    services = {name for name, service in COMPOSE["services"].items() if service.get("profiles") == ["several"]}
    assert services == {*PRIMARIES, "cluster", "objects"} - {"valkey"}
    scheme, nodes = SEVERAL["PERENNIAL_REDIS_URL"].split("://")
    assert (scheme, nodes.split(",")) == ("redis+cluster", [f"{name}:6379" for name in PRIMARIES])
    assert len({tuple(COMPOSE["services"][name]["volumes"]) for name in PRIMARIES}) == len(PRIMARIES)
    ranges = re.findall(r"-h (\S+) cluster addslotsrange (\d+) (\d+)", COMPOSE["services"]["cluster"]["command"][-1])
    assert [name for name, _, _ in ranges] == PRIMARIES
    slots = [slot for _, first, last in ranges for slot in range(int(first), int(last) + 1)]
    assert slots == list(range(16384))
    assert urlsplit(SEVERAL["AWS_ENDPOINT"]).hostname == "objects"
    environment = COMPOSE["services"]["worker"]["environment"]
    for name in SEVERAL.keys() - {"PERENNIAL_PORT"}:
        assert environment[name] is None or environment[name].startswith(f"${{{name}:-")


def test_only_the_migration_connects_as_the_owner_of_the_tables() -> None:
    postgres = COMPOSE["services"]["postgres"]["environment"]
    for name in ("api", "worker", "migrate"):
        for variable in ("PERENNIAL_DATABASE_URL", "PERENNIAL_MIGRATION_URL"):
            if url := _environment(name).get(variable):
                address = urlsplit(url)
                assert (address.hostname, address.path) == ("postgres", f"/{postgres['POSTGRES_DB']}")
                assert (address.username == postgres["POSTGRES_USER"]) is (variable == "PERENNIAL_MIGRATION_URL")


def test_the_user_of_the_image_owns_every_folder_that_is_mounted_or_set() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    (user,) = re.findall(r"^USER (\S+)$", text, flags=re.MULTILINE)
    ((uid, gid, folders),) = re.findall(r"install -d -o (\d+) -g (\d+) -m 0700 (.*)$", text, flags=re.MULTILINE)
    ours = [service for service in COMPOSE["services"].values() if service["image"] == "perennial"]
    used = {mount.split(":")[1] for service in ours for mount in service.get("volumes", ())}
    used |= {service["environment"]["PERENNIAL_SEGMENT_COPIES"] for service in ours}
    assert (
        user
        == f"{uid}:{gid}"
        == "".join(re.findall(r"--uid (\d+)", text)) + ":" + "".join(re.findall(r"--gid (\d+) p", text))
    )
    assert used <= set(folders.split())


def test_the_builds_requirements_are_all_that_the_backend_needs(tmp_path) -> None:
    (line,) = re.findall(r"^RUN (awk .*) > backend.lock", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(re.findall(r"^([\w-]+)==", done.stdout, flags=re.MULTILINE)) == needed_by("hatchling")


def needed_by(name: str) -> set[str]:
    requirements = [Requirement(line) for line in requires(name) or ()]
    present = [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    return {name}.union(*(needed_by(each) for each in present))


@pytest.mark.parametrize("name", ["api", "worker"])
def test_nothing_starts_before_the_schema_is_there(name) -> None:
    assert COMPOSE["services"][name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


@pytest.mark.parametrize("name", ["api", "worker"])
def test_prometheus_asks_where_metrics_are_served(name) -> None:
    port = {"api": API_METRICS_PORT, "worker": WORKER_METRICS_PORT}[name]
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    (records,) = next(job["dns_sd_configs"] for job in scraped if job["job_name"] == f"perennial-{name}")
    assert (records["names"], records["port"]) == ([name], port)
    assert COMPOSE["services"][name]["environment"]["PERENNIAL_METRICS_HOST"] == "0.0.0.0"


def test_the_api_reads_the_segments_and_cannot_write_to_them() -> None:
    mounted, _copies = COMPOSE["services"]["api"]["volumes"]
    (folder,) = re.findall(r"PERENNIAL_SEGMENT_STORE=(\S+)", (ROOT / "Dockerfile").read_text())
    assert mounted == f"segments:{folder}:ro"


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        source
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    ]

    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert [source for source in copied if not any(fnmatch(source, each) for each in allowed)] == []


def test_every_command_of_the_image_is_one_of_ours() -> None:
    text = (ROOT / "Dockerfile").read_text()
    commands = [service["command"] for service in COMPOSE["services"].values() if service["image"] == "perennial"]
    commands += map(json.loads, re.findall(r"^CMD (.*)$", text, flags=re.MULTILINE))
    assert len(commands) > 3
    assert [each for each in commands if CliRunner().invoke(app, [*each, "--help"]).exit_code] == []
    assert re.findall(r"^ENTRYPOINT (.*)$", text, flags=re.MULTILINE) == ['["perennial"]']


def test_the_compose_file_is_of_composes_schema() -> None:
    jsonschema, schemas = map(pytest.importorskip, ("jsonschema", "check_jsonschema.builtin_schemas"))
    schema = json.loads((resources.files(schemas) / "vendor" / "compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)


def test_images_are_held_to_a_tag() -> None:
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    servers = [COMPOSE["services"][name]["image"] for name in SERVICES if "build" not in COMPOSE["services"][name]]

    assert [image for image in [*bases, *servers] if Path(image).name.partition(":")[2] in ("", "latest")] == []
