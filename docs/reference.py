"""Writes what follows from the code: api.md, settings.md, metrics.md, the index. A test fails if it is stale.

Run as `python -m docs.reference` (or `make docs`).
"""

from __future__ import annotations

import json
import math
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from prometheus_client.metrics import MetricWrapperBase

from service import metrics
from service.api.app import create_app
from service.learners.registry import LEARNERS
from service.ledger.overview import Overview
from service.mechanisms.registry import MECHANISMS
from service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
    "POST /v1/streams/{stream}/resume": "admin",
    "GET /v1/streams/{stream}/dead-letters": "admin",
    "DELETE /v1/streams/{stream}/dead-letters/{entry}": "admin",
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
_PARTS = (
    "keys",
    "streams",
    "records",
    "publications",
    "releases",
    "queries",
    "labels",
    "explorer",
    "session",
    "health",
)
_EVERYWHERE = {"401", "403", "429", "503"}

_API = """# HTTP interface

Written by `make docs` from the OpenAPI document, which a running service shows at `/openapi.json`.

Every call but `GET /livez` and `GET /readyz` needs a key: `Authorization: Bearer KEY`, with the scope named below or
`admin`. A key that is limited to some streams gets 404 for all others. Errors are `application/problem+json`;
[problems.md](problems.md) has every type. Besides those listed, a call that needs a key may answer 401, 403, 429 (too
often) and 503. HEAD is answered wherever GET is. Every answer has an `X-Request-ID`, which log lines about it name.
Lists are newest first; ask for the next page with `before`.
"""

_SETTINGS = """# Settings

Written by `make docs` from `service/settings.py`: environment variables, or lines of a `.env` file in the working
directory. Nothing else of the service reads the environment. An empty value is as good as none.
"""

_METRICS = """# Metrics

Written by `make docs` from `service/metrics.py`: what `GET /metrics` tells Prometheus, beside the client library's own
`python_*` and `process_*`. Counts, sizes, times and sums of charges; nothing is computed from a record's content.
Counts are exact, and nothing hides when they change, so metrics are inside the trust boundary
([privacy.md](privacy.md)):

- `PERENNIAL_METRICS_PORT` serves them without a key, on 127.0.0.1 unless `PERENNIAL_METRICS_HOST` says otherwise
  ([settings.md](settings.md)). Let nobody but Prometheus reach that port. If another process has the default port, the
  service runs without it and logs `metrics_port_in_use`; if the setting names the port, the service does not start.
- The API's own port serves them to a key with the scope `metrics` (or `admin`) that is not limited to streams. A
  worker has no such port.

How long a fit takes depends on its records. So times to fit and to publish are rounded up to 1, 10, 60, 600 or 3600
seconds, a worker does not tell its processor time, and no metric counts label requests or labels, nor calls that
concern them. A counter ends in `_total`; a histogram has `_bucket`, `_sum` and `_count`.

A stream has 15 series. A running publication has 6, and 15 of the worker that fits it. One that has ended keeps
`perennial_publication_running` and `perennial_publication_halted`; a worker drops its own within minutes.
"""


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    return {"api.md": _api(), "settings.md": _settings(), "metrics.md": _metrics(), "README.md": _index()}


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
        rows.append((_code(f"PERENNIAL_{name.upper()}"), default, field.description or "", _python(field.annotation)))
    return f"{_SETTINGS}\n{_table(('variable', 'default', 'meaning', 'value'), rows)}"


def _python(annotation: Any) -> str:
    """What may be written, in words."""
    words = {"int": "whole number", "float": "number", "Path": "path", "str": "text", "SecretStr": "text"}
    arguments = [each for each in get_args(annotation) if each is not type(None)]
    if not arguments:
        return words[annotation.__name__]
    return " or ".join(_code(each) if isinstance(each, str) else _python(each) for each in arguments)


def _metrics() -> str:
    counted = [each for each in vars(metrics).values() if isinstance(each, MetricWrapperBase)]
    read = metrics.State(Overview(streams=[], publications=[]), {}, worker=True).collect()
    parts = (
        ("Counted by the API", [(each, *each.describe()) for each in counted if each in _of(metrics.API)]),
        ("Timed by a worker", [(each, *each.describe()) for each in counted if each in _of(metrics.WORKER)]),
        ("Read from PostgreSQL and the log when asked", [(each, each) for each in read]),
    )
    return _METRICS + "".join(
        f"\n## {title}\n\n{_table(('metric', 'type', 'labels', 'meaning'), starmap(_metric, found))}"
        for title, found in parts
    )


def _of(registry: Any) -> set[Any]:
    return set(registry._collector_to_names)  # noqa: SLF001 - there is no other way to ask a registry what it holds


def _metric(holder: Any, family: Metric) -> tuple[str, ...]:
    labels = ", ".join(map(_code, holder._labelnames))  # noqa: SLF001 - a family without samples tells them nowhere else
    name = family.name + ("_total" if family.type == "counter" else "")
    return _code(name), family.type, labels, family.documentation


@cache
def openapi() -> dict[str, Any]:
    """Return the service's OpenAPI document, which takes a third of a second to make."""
    return create_app(Settings(_env_file=None)).openapi()


def _api() -> str:
    document = openapi()
    text = _API
    parts: dict[str, str] = dict.fromkeys(_PARTS, "")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts[operation["tags"][0]] += _operation(f"{method.upper()} {path}", operation)
    for part, told in parts.items():
        text += f"\n## {part.capitalize()}\n{told}"
    text += "\n## Shapes\n\nA field without a default must be there.\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        text += _shape(name, schema)
    return text


def _operation(name: str, operation: dict[str, Any]) -> str:
    secured = "security" in operation
    needs = f"Scope `{SCOPES[name]}`." if secured else "No key is needed."
    text = f"\n### {name}\n\n{operation['description']} {needs}\n"
    parameters = [
        (
            _code(each["name"]),
            each["in"],
            _type(each["schema"]),
            _default(each["schema"], required=each["required"]),
            each.get("description", ""),
        )
        for each in operation.get("parameters", ())
        if each["in"] != "path"
    ]
    if parameters:
        text += f"\n{_table(('parameter', 'in', 'type', 'default', 'meaning'), parameters)}"
    body = operation.get("requestBody")
    lines = (
        [f"- Body, {_content(body)}." + (f" {body['description']}" if "description" in body else "")] if body else []
    )
    for status, answer in sorted(operation["responses"].items()):
        if "application/problem+json" in answer.get("content", {}):
            continue
        what = "" if answer["description"] == "Successful Response" else f": {answer['description']}"
        lines.append(f"- {status}{what}" + (f", {_content(answer)}" if answer.get("content") else "") + ".")
    lines += [
        f"- {status}: {answer['description']}."
        for status, answer in sorted(operation["responses"].items())
        if "application/problem+json" in answer.get("content", {})
        and not (secured and status in _EVERYWHERE and "; or: " not in answer["description"])
    ]
    return text + "\n" + "\n".join(lines) + "\n"


def _content(holder: dict[str, Any]) -> str:
    kinds: dict[str, list[str]] = {}
    for media, content in holder["content"].items():
        schema = content.get("schema", {})
        kinds.setdefault(_type(schema) if schema else "", []).append(_code(media))
    return "; ".join(f"{' or '.join(media)}{': ' if kind else ''}{kind}" for kind, media in kinds.items())


def _shape(name: str, schema: dict[str, Any]) -> str:
    described = f"\n{schema['description']}\n" if "description" in schema else ""
    fields = [
        (
            _code(field),
            _type(each),
            _default(each, required=field in schema.get("required", ())),
            each.get("description", ""),
        )
        for field, each in schema.get("properties", {}).items()
    ]
    table = f"\n{_table(('field', 'type', 'default', 'meaning'), fields)}" if fields else ""
    return f"\n### {name}\n{described}{table}"


def _default(schema: dict[str, Any], *, required: bool) -> str:
    return "" if required else _code(json.dumps(schema.get("default")))


def _type(schema: dict[str, Any]) -> str:
    """A JSON schema in words."""
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices is None and isinstance(schema.get("type"), list):
        choices = [{"type": each} for each in schema["type"]]
    if choices is not None:
        return " or ".join(map(_type, choices))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return " or ".join(_code(json.dumps(each)) for each in values) if values else _plain(schema)


def _plain(schema: dict[str, Any]) -> str:
    kind = schema.get("type", "anything")
    words: str = {"integer": "whole number", "string": "text"}.get(kind, kind)
    if schema.get("format") == "binary":
        words = "bytes"
    elif kind == "array":
        item = _type(schema.get("items") or next(iter(schema.get("prefixItems", ())), {}))
        words = f"list of ({item})" if " or " in item else f"list of {item}"
    elif "properties" in schema:
        words = "{" + ", ".join(f"{_code(name)}: {_type(each)}" for name, each in schema["properties"].items()) + "}"
    limits = list(_limits(schema))
    return words + (f" ({', '.join(limits)})" if limits else "")


def _limits(schema: dict[str, Any]) -> Iterator[str]:
    """What a number, a text or a list may be."""
    for name, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<")):
        if name in schema:
            yield f"{sign} {_number(schema[name])}"
    for name, what in (("minLength", "≥"), ("maxLength", "≤")):
        if name in schema:
            yield f"length {what} {schema[name]}"
    for name, what in (("minItems", "at least"), ("maxItems", "at most")):
        if name in schema:
            yield f"{what} {schema[name]}"
    if "pattern" in schema:
        yield _code(schema["pattern"])


def _number(value: float) -> str:
    if value == int(value):
        exponent = math.log2(abs(value)) if value else 0.0
        return f"2^{int(exponent)}" if exponent == int(exponent) and exponent > 16 else str(int(value))
    return str(value)


if __name__ == "__main__":
    main()
