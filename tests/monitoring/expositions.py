"""Reads what `/metrics` answers."""

import shutil
import subprocess

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

needs_prometheus = pytest.mark.skipif(
    not all(map(shutil.which, ("prometheus", "promtool"))),
    reason="prometheus and promtool are missing (Debian: apt install prometheus); nothing else checks these files",
)


class Samples:
    """The samples of one look at `/metrics`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        names = [family.name for family in self.families]
        assert len(names) == len(set(names)), "a family came twice"

    def of(self, name: str, **labels: str) -> float | None:
        """The value of one series; None: there is none."""
        values = [
            sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(values) <= 1, values
        return values[0] if values else None


def look(url: str, key: str | None = None) -> Samples:
    """Ask for the metrics: with this key at the API's port, without one at a port of their own."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = httpx.get(f"{url}/metrics", headers=headers, timeout=200)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return Samples(answer.text)


def promtool(*arguments: str, given: str | None = None, folder=None) -> str:
    """Return what it says; it must have nothing to complain of."""
    done = subprocess.run(
        ["promtool", *arguments], input=given, text=True, capture_output=True, check=False, timeout=200, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
