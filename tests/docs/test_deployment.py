"""The image and the compose file: read as what they are, and held to what they promise."""

import json
import re
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from service.cli import app
from service.log import read_primaries
from service.settings import API_METRICS_PORT, WORKER_METRICS_PORT, Settings
from tests.docs.pages import ROOT

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


@pytest.mark.parametrize("name", PRIMARIES)
def test_the_log_keeps_what_it_answers(name) -> None:
    command = COMPOSE["services"][name]["command"]
    (volume,) = COMPOSE["services"][name]["volumes"]
    assert volume.split(":")[0] in COMPOSE["volumes"]
    settings = dict(zip(command[1::2], command[2::2], strict=True))

    assert (settings["--appendonly"], settings["--appendfsync"]) == ("yes", "always")
    assert settings["--maxmemory-policy"] == "noeviction"


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


def test_the_profile_with_several_primaries_is_what_its_lines_say() -> None:
    text = (ROOT / ".env.example").read_text()
    lines = dict(re.findall(r"^# ((?:PERENNIAL|AWS)_\w+)=(.+)$", text, flags=re.MULTILINE))
    services = {name: each for name, each in COMPOSE["services"].items() if each.get("profiles") == ["several"]}
    primaries = read_primaries(lines["PERENNIAL_REDIS_URL"]).every()
    assert [urlsplit(each.url).hostname for each in primaries] == PRIMARIES
    assert {*services, "valkey"} == {*PRIMARIES, "objects"}
    assert len({tuple(COMPOSE["services"][name]["volumes"]) for name in PRIMARIES}) == len(PRIMARIES)
    assert urlsplit(lines["AWS_ENDPOINT"]).hostname == "objects"
    environment = COMPOSE["services"]["worker"]["environment"]
    for name in lines.keys() - {"PERENNIAL_PORT"}:
        assert environment[name] is None or environment[name].startswith(f"${{{name}:-")


def test_images_are_held_to_a_tag() -> None:
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    servers = [COMPOSE["services"][name]["image"] for name in SERVICES if "build" not in COMPOSE["services"][name]]

    assert [image for image in [*bases, *servers] if Path(image).name.partition(":")[2] in ("", "latest")] == []
