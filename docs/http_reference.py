"""Writes docs/api.md from the OpenAPI document and the scopes of keys."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from service.api.app import create_app
from service.learners.registry import LEARNERS
from service.mechanisms.registry import MECHANISMS
from service.settings import Settings
from service.streams.feature_maps import FeatureMapShape

if TYPE_CHECKING:
    from collections.abc import Iterator

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
_KNOWN = {"404", "413", "415", "422"}
_PAGING = ({"maximum": 1000, "minimum": 1, "default": 100}, "`id` or `version` of the last item of the page before")

_API = """# HTTP interface

Written by `make docs` from the OpenAPI document, which a running service shows at `/openapi.json`.

Every call but `GET /livez` and `GET /readyz` needs a key: `Authorization: Bearer KEY`, with the scope named below or
`admin`. A key that is limited to some streams gets 404 for all others. Errors are `application/problem+json`;
[problems.md](problems.md) has every type. Besides those listed, a call that needs a key may answer 401, 403, 429 (too
often) and 503. HEAD is answered wherever GET is. Every answer has an `X-Request-ID`, which log lines about it name.

Lists are newest first. `limit` (query) is a whole number from 1 to 1000, by default 100. `before` (query) asks for the
next page: the `id` or `version` of the last item of the page before.

404: there is no such thing, or this key may not see it. 413: the request is too large. 415: this format is not read
here. 422: the request is not valid.
"""


@cache
def openapi() -> dict[str, Any]:
    """Return the service's OpenAPI document, which takes a third of a second to make."""
    return create_app(Settings(_env_file=None)).openapi()


def api(scopes: dict[str, str]) -> str:
    """Return the page. scopes: what a key needs, by method and path."""
    document = openapi()
    parts: dict[str, str] = dict.fromkeys(_PARTS, "")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path}"
            parts[operation["tags"][0]] += _operation(name, operation, scopes.get(name))
    text = _API + "".join(f"\n## {part.capitalize()}\n{operations}" for part, operations in parts.items())
    text += "\n## Shapes\n\nA field without a default must be there.\n"
    described = _described()
    for name, schema in sorted(document["components"]["schemas"].items()):
        if not name.startswith("Items_"):
            text += f"\n### {name}\n\n{described[name]}\n" if name in described else _shape(name, schema)
    return text


def _described() -> dict[str, str]:
    """Return, by the name of a shape whose settings another page has, where they are."""
    pages = {"StreamRequest": "streams.md#settings", "PublicationRequest": "publications.md#settings"}
    for folder, registry in (("mechanisms", MECHANISMS), ("learners", LEARNERS)):
        pages |= {each.settings.__name__: f"{folder}/{each.kind}.md#settings" for each in registry}
    pages |= {shape.__name__: "feature-maps.md" for shape in get_args(get_args(FeatureMapShape)[0])}
    return {name: f"Its settings: [{page.partition('#')[0]}]({page})." for name, page in pages.items()}


def _operation(name: str, operation: dict[str, Any], scope: str | None) -> str:
    needs = f"Scope `{scope}`." if "security" in operation else "No key is needed."
    lines = [_parameter(each) for each in operation.get("parameters", ()) if each["in"] != "path"]
    if body := operation.get("requestBody"):
        lines.append(f"- Body, {_content(body)}." + (f" {body['description']}" if "description" in body else ""))
    answers = sorted(operation["responses"].items())
    for status, answer in answers:
        if "application/problem+json" not in answer.get("content", {}):
            what = "" if answer["description"] == "Successful Response" else f": {answer['description']}"
            lines.append(f"- {status}{what}" + (f", {_content(answer)}" if answer.get("content") else "") + ".")
    problems = [_problem(status, answer) for status, answer in answers if _is_problem(status, answer, operation)]
    if problems:
        lines.append(f"- Problems: {', '.join(problems)}.")
    return f"\n### {name}\n\n{operation['description']} {needs}\n\n" + "\n".join(lines) + "\n"


def _parameter(parameter: dict[str, Any]) -> str:
    limits, before = _PAGING
    if limits.items() <= parameter["schema"].items() or parameter.get("description") == before:
        return f"- `{parameter['name']}`: a page of the list, as above."
    where = "header" if parameter["in"] == "header" else "query"
    name = f"`{parameter['name']}` ({where})"
    return _field(name, parameter["schema"], parameter.get("description"), required=parameter["required"])


def _field(name: str, schema: dict[str, Any], meaning: str | None, *, required: bool) -> str:
    default = "" if required else f", default {_default(schema)}"
    return f"- {name}: {_type(schema)}{default}." + (f" {meaning.rstrip('.')}." if meaning else "")


def _is_problem(status: str, answer: dict[str, Any], operation: dict[str, Any]) -> bool:
    everywhere = "security" in operation and status in _EVERYWHERE and "; or: " not in answer["description"]
    return "application/problem+json" in answer.get("content", {}) and not everywhere


def _problem(status: str, answer: dict[str, Any]) -> str:
    """Return the status of a problem, with its title where the status alone does not say it."""
    return status if status in _KNOWN else f"{status} ({answer['description']})"


def _content(holder: dict[str, Any]) -> str:
    kinds: dict[str, list[str]] = {}
    for media, content in holder["content"].items():
        schema = content.get("schema", {})
        kinds.setdefault(_type(schema) if schema else "", []).append(_code(media))
    return "; ".join(f"{' or '.join(media)}{': ' if kind else ''}{kind}" for kind, media in kinds.items())


def _shape(name: str, schema: dict[str, Any]) -> str:
    described = f"\n{schema['description']}\n" if "description" in schema else ""
    required = schema.get("required", ())
    fields = [
        _field(_code(field), each, each.get("description"), required=field in required)
        for field, each in schema.get("properties", {}).items()
    ]
    return f"\n### {name}\n{described}" + ("\n" + "\n".join(fields) + "\n" if fields else "")


def _default(schema: dict[str, Any]) -> str:
    return _code(json.dumps(schema.get("default")))


def _code(text: object) -> str:
    return f"`{text}`"


def _type(schema: dict[str, Any]) -> str:
    """A JSON schema in words."""
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices is None and isinstance(schema.get("type"), list):
        choices = [{"type": each} for each in schema["type"]]
    if choices is not None:
        return " or ".join(map(_type, choices))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if match := re.fullmatch("Items_(.*)_", name):
            return f"{{`items`: list of [{match[1]}](#{match[1].lower()})}}"
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
    """Yield what a number, a text or a list may be."""
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
