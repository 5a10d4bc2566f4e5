"""The Helm chart: rendered by Helm itself, and held to Kubernetes' schemas and to what the service promises."""

import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from service.cli import app
from service.settings import API_METRICS_PORT, WORKER_METRICS_PORT, Settings
from tests.docs.pages import ROOT

helm = pytest.importorskip("helm_python", reason="Helm comes as a wheel for Linux on x86-64 alone")
kubernetes = pytest.importorskip("kubernetes_validate")
pytestmark = pytest.mark.skipif(not find_spec("distributed"), reason="Dask is not installed")

CHART = ROOT / "deploy" / "helm" / "perennial"
STORE = {"store": "s3://bucket/prefix", "secret": "object-store"}
VALUES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "object store": {"segments": STORE, "settings": {"lease_seconds": "10"}},
    "scaled": {"segments": STORE, "worker": {"autoscaling": {"enabled": True}}},
    "dask": {"segments": STORE, "dask": {"enabled": True, "worker": {"autoscaling": {"enabled": True}}}},
    "dask by hand": {"dask": {"enabled": True, "scheduler": {"nodeSelector": {"disk": "ssd"}}}},
    "shared volume": {"segments": {"volume": {"accessMode": "ReadWriteMany", "storageClassName": "nfs"}}},
    "by hand": {
        "api": {"autoscaling": {"enabled": False}, "nodeSelector": {"disk": "ssd"}},
        "worker": {"tolerations": [{"operator": "Exists"}]},
        "segments": {"volume": {"existingClaim": "mine"}},
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccount": {"annotations": {"of": "a cloud"}},
    },
}
every = pytest.mark.parametrize("values", VALUES)
POD_OWNERS = ("Deployment", "Job")


@cache
def rendered(values: str) -> list[dict[str, Any]]:
    return rendered_with(VALUES[values])


def rendered_with(values: dict[str, Any]) -> list[dict[str, Any]]:
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="perennial", namespace="models")
    return [document for text in files.values() for document in yaml.safe_load_all(text) if document]


def of_kind(values: str, *kinds: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in rendered(values) if each["kind"] in kinds}


def pods(values: str) -> dict[str, dict[str, Any]]:
    return {name: each["spec"]["template"]["spec"] for name, each in of_kind(values, *POD_OWNERS).items()}


def containers(values: str) -> list[dict[str, Any]]:
    return [container for pod in pods(values).values() for container in pod["containers"]]


def test_helm_has_nothing_to_complain_of():
    findings = helm.lint(str(CHART))
    assert findings["errors"] == []
    assert {each["error"] for each in findings["messages"]} <= {"icon is recommended"}


@pytest.mark.more
@every
def test_kubernetes_takes_every_resource(values):
    for resource in rendered(values):
        if resource["kind"] != "ScaledObject":  # KEDA's
            kubernetes.validate(resource, kubernetes.latest_version(), strict=True)


@every
def test_a_pod_is_not_root_and_cannot_write_to_its_image(values):
    (user,) = re.findall(r"^USER (\d+):\d+$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    for pod in pods(values).values():
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, int(user))
        assert pod["automountServiceAccountToken"] is False
    for container in containers(values):
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"].keys() == {"requests", "limits"}


@every
def test_a_pod_is_spared_the_variables_that_kubernetes_makes_of_services(values):
    # A service named perennial would become PERENNIAL_PORT=tcp://…, which is no port.
    assert {pod["enableServiceLinks"] for pod in pods(values).values()} == {False}


@every
def test_secrets_come_by_reference_and_settings_exist(values):
    known = {f"PERENNIAL_{name.upper()}" for name in Settings.model_fields}
    for container in containers(values):
        assert {variable["name"] for variable in container.get("env", ())} <= known
        by_value = {variable["name"] for variable in container.get("env", ()) if "value" in variable}
        assert not by_value & {f"PERENNIAL_{name}" for name in ("REDIS_URL", "DATABASE_URL", "ADMIN_KEY")}


@cache
def run_by_hand(command: tuple[str, ...]) -> int:
    """Return the status of a command of Dask that reads its arguments, and then only says what there are."""
    return subprocess.run([sys.executable, "-m", *command, "--help"], capture_output=True, check=False).returncode


@pytest.mark.more
@every
def test_every_command_is_one_of_ours(values):
    for container in containers(values):
        if container["name"].startswith("dask"):
            assert run_by_hand(tuple(container["command"])) == 0
        else:
            assert CliRunner().invoke(app, [*container["args"], "--help"]).exit_code == 0


@every
def test_whatever_selects_pods_selects_some(values):
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in of_kind(values, "Deployment").values()]
    selectors = [each["spec"]["selector"] for each in of_kind(values, "Service").values()]
    of_others = of_kind(values, "Deployment", "PodDisruptionBudget").values()
    selectors += [each["spec"]["selector"]["matchLabels"] for each in of_others]
    for selector in selectors:
        assert sum(selector.items() <= each.items() for each in labels) == 1
    targets = of_kind(values, "HorizontalPodAutoscaler", "ScaledObject").values()
    assert {each["spec"]["scaleTargetRef"]["name"] for each in targets} <= of_kind(values, "Deployment").keys()


@every
def test_nobody_says_how_many_there_are_where_something_else_does(values):
    scaled = {
        each["spec"]["scaleTargetRef"]["name"]
        for each in of_kind(values, "HorizontalPodAutoscaler", "ScaledObject").values()
    }
    assert {name for name, each in of_kind(values, "Deployment").items() if "replicas" not in each["spec"]} == scaled


@every
@pytest.mark.parametrize("part", ["api", "worker"])
def test_prometheus_asks_where_metrics_are_served(values, part):
    port = {"api": API_METRICS_PORT, "worker": WORKER_METRICS_PORT}[part]
    (container,) = (each for each in containers(values) if each["name"] == part)
    assert {"name": "metrics", "containerPort": port} in container["ports"]
    assert {"name": "PERENNIAL_METRICS_HOST", "value": "0.0.0.0"} in container["env"]
    services = of_kind(values, "Service").values()
    served = {each["targetPort"] for service in services for each in service["spec"]["ports"]}
    assert served <= {"http", "dask"}, "no service shows metrics"


def test_the_migration_comes_before_everything_else():
    (job,) = of_kind("as it is", "Job").values()
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"


@pytest.mark.parametrize("values", ["object store", "scaled", "dask"])
def test_with_an_object_store_no_volume_is_shared(values):
    assert of_kind(values, "PersistentVolumeClaim") == {}
    for pod in pods(values).values():
        assert not [each for each in pod["volumes"] if "persistentVolumeClaim" in each]
    for container in (each for each in containers(values) if each["name"] not in ("migrate", "dask-scheduler")):
        if container["name"] != "dask-worker":  # that one is told by the worker
            assert {"name": "PERENNIAL_SEGMENT_STORE", "value": STORE["store"]} in container["env"]
        assert container["envFrom"] == [{"secretRef": {"name": STORE["secret"]}}]


def limits_of_copies(values: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the size of each disk for copies, with the setting of the container that has it."""
    limits = set()
    for each in rendered_with(values):
        pod = each.get("spec", {}).get("template", {}).get("spec", {})
        sizes = [volume["emptyDir"]["sizeLimit"] for volume in pod.get("volumes", ()) if volume["name"] == "copies"]
        for container in pod.get("containers", ()):
            settings = {variable["name"]: variable.get("value") for variable in container.get("env", ())}
            assert len(settings) == len(container.get("env", ())), "a variable is there twice"
            limits |= {(str(size), settings["PERENNIAL_MAX_COPY_BYTES"]) for size in sizes}
    return limits


@pytest.mark.parametrize(
    ("copies", "most"),
    [("10Gi", 9663676416), ("2Gi", 1932735283), ("1.5Gi", 1449551462), ("900M", 810_000_000), ("4000000000", 3.6e9)],
)
def test_copies_leave_room_on_their_disk(copies, most):
    assert limits_of_copies({"segments": STORE | {"copies": copies}}) == {(copies, str(int(most)))}


def test_as_it_is_the_disk_for_copies_has_room_too():
    ((size, most),) = limits_of_copies({"segments": STORE})
    assert (size, int(most)) == ("10Gi", 9663676416)


@pytest.mark.parametrize("most", ["33554432", 33554432])
def test_a_setting_says_how_much_of_the_disk_copies_take(most):
    """Also as a number, which a template would write as 3.3554432e+07."""
    values = {"segments": STORE | {"copies": "2Gi"}, "settings": {"max_copy_bytes": most}}
    assert limits_of_copies(values) == {("2Gi", "33554432")}


@pytest.mark.parametrize("copies", ["lots", "10GiB", "-1Gi", ""])
def test_a_size_that_is_none_is_refused(copies):
    with pytest.raises(Exception, match=r"segments\.copies must be a size such as 10Gi"):
        rendered_with({"segments": STORE | {"copies": copies}})


@pytest.mark.parametrize("values", ["as it is", "by hand"])
def test_with_a_volume_of_one_node_all_go_to_that_node(values):
    claims = of_kind(values, "PersistentVolumeClaim").values()
    assert all(claim["spec"]["accessModes"] == ["ReadWriteOnce"] for claim in claims)
    for deployment in of_kind(values, "Deployment").values():
        template = deployment["spec"]["template"]
        (term,) = template["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_the_api_reads_the_segments_and_cannot_write_to_them():
    for container in (each for each in containers("shared volume") if each["name"] != "migrate"):
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "segments")
        assert mount.get("readOnly", False) is (container["name"] == "api")
        assert {"name": "PERENNIAL_SEGMENT_STORE", "value": mount["mountPath"]} in container["env"]


def test_workers_are_scaled_by_a_rule_that_prometheus_has():
    (trigger,) = next(iter(of_kind("scaled", "ScaledObject").values()))["spec"]["triggers"]
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "scaling.yaml").read_text())["groups"][0]["rules"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"]["query"] in {rule["record"] for rule in rules}
    assert trigger["metadata"]["threshold"] == str(Settings.model_fields["publishers"].default)


@pytest.mark.parametrize("values", ["dask", "dask by hand"])
def test_only_workers_reach_the_ports_of_dask(values):
    (policy,) = of_kind(values, "NetworkPolicy").values()
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"] for name, each in of_kind(values, "Deployment").items()
    }
    (guarded,) = policy["spec"]["podSelector"]["matchExpressions"]
    assert {each["app.kubernetes.io/component"] for each in labels.values()} >= set(guarded["values"])
    (admitted,) = policy["spec"]["ingress"][0]["from"]
    who = {name for name, each in labels.items() if admitted["podSelector"]["matchLabels"].items() <= each.items()}
    assert who == {"perennial-worker", "perennial-dask-scheduler", "perennial-dask-worker"}


@pytest.mark.parametrize("values", ["dask", "dask by hand"])
def test_workers_of_dask_see_what_the_worker_sees_at_the_same_path(values):
    (worker,) = (each for each in containers(values) if each["name"] == "worker")
    (of_dask,) = (each for each in containers(values) if each["name"] == "dask-worker")
    paths = [{mount["mountPath"] for mount in each["volumeMounts"]} for each in (worker, of_dask)]
    assert paths[0] == paths[1]
    assert worker.get("envFrom") == of_dask.get("envFrom")
    (address,) = (each["value"] for each in worker["env"] if each["name"] == "PERENNIAL_DASK_SCHEDULER")
    assert address in of_dask["command"]
    (service,) = (
        name for name, each in of_kind(values, "Service").items() if each["spec"]["ports"][0]["name"] == "dask"
    )
    assert address == f"tcp://{service}:8786"


def test_workers_of_dask_are_scaled_by_a_rule_that_prometheus_has():
    (trigger,) = of_kind("dask", "ScaledObject")["perennial-dask-worker"]["spec"]["triggers"]
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "scaling.yaml").read_text())["groups"][0]["rules"]
    workers, rule = trigger["metadata"]["query"].split(" * ")
    assert rule in {each["record"] for each in rules}
    assert int(workers) > 0
