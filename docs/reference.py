"""Writes what follows from the code: api.md, settings.md, metrics.md, the index, a table of choosing.md.

Run as `python -m docs.reference` (or `make docs`); a test fails if a page is stale.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from prometheus_client.metrics import MetricWrapperBase

from docs.http_reference import api
from service import metrics
from service.learning.registry import LEARNERS
from service.ledger.overview import Overview
from service.log import LogState
from service.mechanisms.measured import LINES
from service.mechanisms.registry import MECHANISMS
from service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client.core import Metric

    from service.inputs.registry import Registry

HERE = Path(__file__).resolve().parent

# What a key needs for a call; `admin` may do everything. Checked against a running service by the tests.
SCOPES = {
    "GET /metrics": "metrics",
    "POST /v1/keys": "admin",
    "GET /v1/keys": "admin",
    "DELETE /v1/keys/{key}": "admin",
    "POST /v1/streams": "admin",
    "GET /v1/streams": "read",
    "GET /v1/streams/{stream}": "read",
    "GET /v1/streams/{stream}/schema": "ingest",
    "POST /v1/streams/{stream}/resume": "admin",
    "GET /v1/streams/{stream}/dead-letters": "admin",
    "DELETE /v1/streams/{stream}/dead-letters/{entry}": "admin",
    "GET /v1/streams/{stream}/units/{unit}": "admin",
    "DELETE /v1/streams/{stream}/units/{unit}": "admin",
    "GET /v1/streams/{stream}/ledger": "read",
    "GET /v1/streams/{stream}/ledger/charges": "read",
    "POST /v1/streams/{stream}/records": "ingest",
    "GET /v1/explorer/datasets": "read",
    "POST /v1/explorer/datasets": "read",
    "DELETE /v1/explorer/datasets/{dataset}": "read",
    "POST /v1/explorer/explorations": "read",
    "GET /v1/explorer/explorations": "read",
    "GET /v1/explorer/explorations/{exploration}": "read",
    "GET /v1/explorer/explorations/{exploration}/table": "read",
    "DELETE /v1/explorer/explorations/{exploration}": "read",
    "DELETE /v1/streams/{stream}/records": "admin",
    "GET /v1/streams/{stream}/entries/{entry}": "ingest",
    "POST /v1/plan": "read",
    "POST /v1/publications": "admin",
    "GET /v1/publications": "read",
    "GET /v1/publications/{publication}": "read",
    "DELETE /v1/publications/{publication}": "admin",
    "GET /v1/publications/{publication}/card": "read",
    "GET /v1/publications/{publication}/releases": "read",
    "GET /v1/publications/{publication}/releases/outline": "read",
    "GET /v1/publications/{publication}/releases/latest": "read",
    "GET /v1/publications/{publication}/releases/{version}": "read",
    "GET /v1/publications/{publication}/events": "read",
    "POST /v1/publications/{publication}/predict": "read",
    "POST /v1/publications/{publication}/queries": "read",
    "GET /v1/publications/{publication}/label-requests": "label",
    "POST /v1/publications/{publication}/labels": "label",
    "POST /v1/session": "read",
    "GET /v1/session": "read",
    "DELETE /v1/session": "read",
}
_SETTINGS = """# Settings

Written by `make docs` from `service/settings.py`: environment variables, or lines of a `.env` file in the working
directory. Nothing else of the service reads the environment, but `PGPASSWORD`, which may hold PostgreSQL's password,
and what an object store's own client reads. Other variables of PostgreSQL's clients (`PGSSLMODE`, `PGSERVICE` …) are
ignored, and the log says so: write options behind the `?` of the URL. An empty value is as good as none. The log warns
of misspelt ones.
"""

_METRICS = """# Metrics

Written by `make docs` from `service/metrics.py`, beside the client library's own `python_*` and `process_*`: counts,
sizes, times, sums of charges, and figures of released evaluations. Counts are exact, so metrics are inside the trust
boundary ([privacy.md](privacy.md)):

- `PERENNIAL_METRICS_PORT` serves them without a key, on 127.0.0.1 unless `PERENNIAL_METRICS_HOST` says otherwise
  ([settings.md](settings.md)). Let nobody but Prometheus reach that port. If another process has the default port, the
  service runs without it and logs `metrics_port_in_use`.
- The API's own port serves them to a key with the scope `metrics` (or `admin`) that is not limited to streams.

How long a fit takes depends on its records, so times to fit and to publish are rounded up to 1, 10, 60, 600 or 3600
seconds, and no metric counts label requests or labels. A stream has 15 series; a running publication 6, and 15 of the
worker that fits it. One that has ended keeps `perennial_publication_running` and `perennial_publication_halted`.
"""


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    return {
        "api.md": api(SCOPES),
        "settings.md": _settings(),
        "metrics.md": _metrics(),
        "README.md": _index(),
        "choosing.md": _choosing(),
    }


def main() -> None:
    """Writes them."""
    for name, text in pages().items():
        (HERE / name).write_text(text)


def _index() -> str:
    """Return the index with a table under each heading that names a registry."""
    text = (HERE / "README.md").read_text()
    tables: dict[str, tuple[Registry[Any], str]] = {
        "Mechanisms": (MECHANISMS, "a release stands for"),
        "Learners": (LEARNERS, "noise"),
    }
    for heading, (registry, summary) in tables.items():
        folder, what = heading.lower(), heading.lower().removesuffix("s")
        rows = ((f"[{each.kind}]({folder}/{each.kind}.md)", each.source, each.summary) for each in registry)
        before, _, after = text.partition(f"## {heading}\n")
        _, _, rest = after.partition("\n## ")
        text = f"{before}## {heading}\n\n{_table((what, 'from', summary), rows)}\n## {rest}"
    return text


def _choosing() -> str:
    """Return the page on choosing with the lines of `measured.toml` below the head of its table."""
    before, heading, after = (HERE / "choosing.md").read_text().partition("## Drift, measured\n")
    head, rule, below = after.partition("|---|---|---|---|\n")
    rest = below.partition("\n\n")[2]
    cells = ([line.title, *(f"{figure:.3f}"[1:] for figure in line.accuracies)] for line in LINES)
    rows = "".join(f"| {' | '.join(row)} |\n" for row in cells)
    return f"{before}{heading}{head}{rule}{rows}\n{rest}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    cells = ([cell.replace("|", r"\|").replace("\n", " ") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _code(text: object) -> str:
    return f"`{text}`"


def _settings() -> str:
    rows = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else _code(field.default)
        rows.append((_code(f"PERENNIAL_{name.upper()}"), default, field.description or ""))
    choices = ", ".join(map(_code, get_args(Settings.model_fields["log_level"].annotation)))
    levels = f"`PERENNIAL_LOG_LEVEL` is one of {choices}."
    return f"{_SETTINGS}\n{_table(('variable', 'default', 'meaning'), rows)}\n{levels}\n"


def _metrics() -> str:
    counted = [each for each in vars(metrics).values() if isinstance(each, MetricWrapperBase)]
    read = metrics.ServiceState(Overview(streams=[], publications=[]), LogState(), worker=True, database=True).collect()
    parts = (
        ("Counted by the API", [(each, *each.describe()) for each in counted if each in _of(metrics.API)]),
        ("Timed by a worker", [(each, *each.describe()) for each in counted if each in _of(metrics.WORKER)]),
        ("Read from PostgreSQL and the log when asked", [(each, each) for each in read]),
    )
    return _METRICS + "".join(f"\n## {title}\n{_by_labels(rows)}" for title, rows in parts)


def _by_labels(rows: Iterable[tuple[Any, ...]]) -> str:
    """Return a table for each set of labels, in the order in which they first come."""
    by_labels: dict[tuple[str, ...], list[Metric]] = {}
    for holder, family in rows:
        # A family without samples tells its labels nowhere else.
        by_labels.setdefault(tuple(holder._labelnames), []).append(family)  # noqa: SLF001
    return "".join(
        f"\n{_labelled(labels)}\n\n{_table(('metric', 'type', 'meaning'), map(_metric, families))}"
        for labels, families in by_labels.items()
    )


def _labelled(labels: Sequence[str]) -> str:
    return f"Labels: {', '.join(map(_code, labels))}." if labels else "No labels."


def _of(registry: Any) -> set[Any]:
    return set(registry._collector_to_names)  # noqa: SLF001 - there is no other way to ask a registry what it holds


def _metric(family: Metric) -> tuple[str, str, str]:
    name = family.name + ("_total" if family.type == "counter" else "")
    return _code(name), family.type, family.documentation


if __name__ == "__main__":
    main()
