"""The container files: read as what they are, and held to what they promise."""

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from service.settings import API_METRICS_PORT, WORKER_METRICS_PORT
from tests.docs.pages import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML reads the compose file and the manifests")

MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = sorted(COMPOSE["services"])


def resources(kind: str | None = None) -> list[dict[str, Any]]:
    documents = [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]
    return [each for each in documents if kind is None or each["kind"] == kind]


def pods() -> list[Any]:
    workloads = [each for each in resources() if each["kind"] in ("Deployment", "Job")]
    return [pytest.param(each["spec"]["template"]["spec"], id=each["metadata"]["name"]) for each in workloads]


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


@pytest.mark.parametrize("name", ["valkey", "postgres", "prometheus", "grafana"])
def test_a_server_is_not_root_and_tells_its_health(name) -> None:
    service = COMPOSE["services"][name]

    assert service["user"].partition(":")[0] not in ("root", "0")
    assert service["healthcheck"]["test"]


def test_the_log_keeps_what_it_answers() -> None:
    command = COMPOSE["services"]["valkey"]["command"]
    settings = dict(zip(command[1::2], command[2::2], strict=True))

    assert (settings["--appendonly"], settings["--appendfsync"]) == ("yes", "always")
    assert settings["--maxmemory-policy"] == "noeviction"


@pytest.mark.parametrize("name", ["api", "worker"])
def test_nothing_starts_before_the_schema_is_there(name) -> None:
    assert COMPOSE["services"][name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}


@pytest.mark.parametrize("pod", pods())
def test_a_pod_is_not_root_and_cannot_write_to_its_image(pod) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("pod", pods())
def test_a_pod_is_spared_the_variables_that_kubernetes_makes_of_services(pod) -> None:
    # A service named perennial would become PERENNIAL_PORT=tcp://…, which is no port.
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize("pod", pods())
def test_a_pod_gets_secrets_by_reference(pod) -> None:
    by_value = {each["name"] for container in pod["containers"] for each in container["env"] if "value" in each}

    assert by_value <= {"PERENNIAL_SEGMENT_STORE", "PERENNIAL_METRICS_HOST"}


@pytest.mark.parametrize("name", ["api", "worker"])
def test_prometheus_asks_where_metrics_are_served(name) -> None:
    port = {"api": API_METRICS_PORT, "worker": WORKER_METRICS_PORT}[name]
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    (records,) = next(job["dns_sd_configs"] for job in scraped if job["job_name"] == f"perennial-{name}")
    assert (records["names"], records["port"]) == ([name], port)
    assert COMPOSE["services"][name]["environment"]["PERENNIAL_METRICS_HOST"] == "0.0.0.0"
    (pod,) = (each["spec"]["template"]["spec"] for each in resources("Deployment") if name in each["metadata"]["name"])
    (container,) = pod["containers"]
    assert {"name": "metrics", "containerPort": port} in container["ports"]
    assert {"name": "PERENNIAL_METRICS_HOST", "value": "0.0.0.0"} in container["env"]
    served = [each["targetPort"] for service in resources("Service") for each in service["spec"]["ports"]]
    assert served == ["http"], "no service shows metrics"


def test_the_api_reads_the_segments_and_cannot_write_to_them() -> None:
    (pod,) = (each["spec"]["template"]["spec"] for each in resources("Deployment") if "api" in each["metadata"]["name"])
    (container,) = pod["containers"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "segments")
    assert mount["readOnly"] is True
    assert {"name": "PERENNIAL_SEGMENT_STORE", "value": mount["mountPath"]} in container["env"]
    (mounted,) = COMPOSE["services"]["api"]["volumes"]
    assert mounted == f"segments:{mount['mountPath']}:ro"


def test_the_manifests_listed_are_the_manifests() -> None:
    (kustomization,) = resources("Kustomization")

    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS if path.name != "kustomization.yaml"]


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


def test_the_image_runs_as_the_user_that_the_manifests_name() -> None:
    (user,) = re.findall(r"^USER (\d+):\d+$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    named = {pod.values[0]["securityContext"]["runAsUser"] for pod in pods()}

    assert named == {int(user)}


def test_images_are_held_to_a_tag() -> None:
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    servers = [COMPOSE["services"][name]["image"] for name in SERVICES if "build" not in COMPOSE["services"][name]]

    assert [image for image in [*bases, *servers] if Path(image).name.partition(":")[2] in ("", "latest")] == []
