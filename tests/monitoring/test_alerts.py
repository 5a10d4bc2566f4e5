"""Each alert stays silent at the last good value, and fires at the first bad one after the time that it allows."""

import json
import re
from typing import Any, NamedTuple

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.monitoring.expositions import needs_prometheus, promtool

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
MINUTE, DAY = 60, 24 * 60 * 60
STREAM = {"stream": "s"}
PUBLICATION = STREAM | {"publication": "p"}
EVALUATION = PUBLICATION | {"evaluation": "e"}


class Alert(NamedTuple):
    """When an alert must fire. `good` and `bad` are samples of the metric; several are those of a counter, in order.

    after: the seconds that the bad value must last. until: the seconds after which the alert ends by itself.
    beside: the value of another metric. source: labels of the metric, where the alert has others.
    """

    name: str
    severity: str
    metric: str
    labels: dict[str, str]
    good: str
    bad: str
    after: int = 0
    until: int | None = None
    beside: dict[str, str] | None = None
    source: dict[str, str] | None = None


A, W = {"instance": "a"}, {"job": "perennial-worker", "instance": "w"}
EXPECTED = [
    Alert("TargetDown", "critical", "up", W, "1", "0", after=MINUTE),
    Alert("ApiMissing", "critical", "up", {"job": "perennial-api"}, "0", "stale", after=MINUTE),
    *(
        Alert("PartAway", "critical", metric, A | {"part": part}, "1", "0", after=MINUTE, source=A)
        for metric, part in (
            ("perennial_database_up", "PostgreSQL"),
            ("perennial_log_up", "the log"),
            ("perennial_worker_up", "the worker"),
        )
    ),
    Alert("StreamHalted", "critical", "perennial_stream_halted", STREAM, "0", "1"),
    Alert("DeadLetter", "warning", "perennial_dead_letters", STREAM, "0", "1"),
    Alert("PublicationHalted", "critical", "perennial_publication_halted", PUBLICATION, "0", "1", until=DAY),
    Alert("LedgerDistrusted", "critical", "perennial_ledger_distrusted", STREAM, "0", "1"),
    Alert("InvariantViolated", "critical", "perennial_invariant_violations", {"invariant": "over_cap"}, "0", "1"),
    Alert("Lag", "warning", "perennial_lag_seconds", STREAM, "30", "31", after=2 * MINUTE),
    Alert(
        *("LogMemory", "critical", "perennial_log_memory_bytes", {"primary": "1"}, "80", "81"),
        after=MINUTE,
        beside={"perennial_log_memory_limit_bytes": "100"},
    ),
    Alert("NoRelease", "warning", "perennial_fit_waiting_seconds", PUBLICATION, "600", "601", after=MINUTE),
    Alert("FitDies", "warning", "perennial_fit_deaths_total", PUBLICATION, "0", "1", until=30 * MINUTE),
    Alert("ClockWasAhead", "warning", "perennial_ticks_taken_anew_total", {}, "0", "1", until=60 * MINUTE, source=W),
    Alert("CommitsLost", "critical", "perennial_commits_lost", STREAM, "0", "1"),
    Alert("KeepsRestarting", "critical", "process_start_time_seconds", W, "1 2 3 4", "5", until=14 * MINUTE),
    Alert(
        *("PublishingFails", "warning", "perennial_publish_failures_total", PUBLICATION, "0", "1"),
        after=MINUTE,
        until=10 * MINUTE,
    ),
    Alert(
        *("NoBetterThanCommonest", "warning", "perennial_evaluation_low", EVALUATION, "0.61", "0.6"),
        beside={"perennial_evaluation_baseline": "0.6"},
    ),
    Alert("VersionWorse", "warning", "perennial_evaluation_worse", EVALUATION, "0", "1"),
    Alert("Drift", "warning", "perennial_evaluation_drift", EVALUATION, "0", "1"),
]


def series(metric: str, labels: dict[str, str]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{metric}{{{pairs}}}"


def scenario(alert: Alert, step: int, *, turns_bad: bool) -> dict[str, Any]:
    """Return a test for promtool with a sample each `step` seconds.

    Two APIs show the same of a stream. The first shows a value that rises too late.
    """
    good, last = alert.good.split(), alert.bad if turns_bad else alert.good.split()[-1]
    values = " ".join([*good, last if last == "stale" else f"{last}x200"])
    labels = alert.source or alert.labels
    copies = [labels] if labels.keys() & {"instance", "job"} else [labels | {"instance": name} for name in "ab"]
    samples = [(series(alert.metric, copy), values) for copy in copies]
    if len(copies) == 2 and alert.bad > good[-1]:
        samples[0] = samples[0][0], f"{good[-1]}x200"
    samples += [(series(name, copy), f"{value}x200") for name, value in (alert.beside or {}).items() for copy in copies]
    start, fires = len(good) * step, [{"exp_labels": {"severity": alert.severity} | alert.labels}]
    expected: dict[int, list[Any]] = {start + alert.after + step: []}
    if turns_bad:
        expected = {start - step: [], start + alert.after - step: [], start + alert.after: fires}
        if alert.until:
            expected |= {start + alert.until - 4 * step: fires, start + alert.until + 4 * step: []}
    return {
        "name": f"{alert.metric} {'turns bad' if turns_bad else 'is good'}",
        "interval": f"{step}s",
        "input_series": [{"series": name, "values": sent} for name, sent in samples],
        "alert_rule_test": [
            {"eval_time": f"{time}s", "alertname": f"Perennial{alert.name}", "exp_alerts": alerts}
            for time, alerts in expected.items()
        ],
    }


@needs_prometheus
@pytest.mark.parametrize(("step", "slow"), [(15, False), (600, True)])
def test_alert_fires_at_bad_values_after_its_time_and_not_at_good_ones(tmp_path, step, slow):
    chosen = [alert for alert in EXPECTED if (alert.until == DAY) is slow]
    rules = [{name: value for name, value in rule.items() if name != "annotations"} for rule in RULES]
    files = {
        "alerts.yaml": {"groups": [{"name": "perennial", "rules": rules}]},
        "test.yaml": {
            "rule_files": ["alerts.yaml"],
            "evaluation_interval": f"{step}s",
            "tests": [scenario(alert, step, turns_bad=bad) for alert in chosen for bad in (False, True)],
        },
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    promtool("test", "rules", "test.yaml", folder=tmp_path)


def test_every_alert_is_expected_above_and_names_only_labels_that_it_has():
    assert {f"Perennial{alert.name}" for alert in EXPECTED} == {rule["alert"] for rule in RULES}
    for alert in EXPECTED:
        (rule,) = (rule for rule in RULES if rule["alert"] == f"Perennial{alert.name}")
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= alert.labels.keys()
