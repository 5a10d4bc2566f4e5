"""Writes docs/api.md from the OpenAPI document and the scopes of keys."""

from __future__ import annotations

import itertools
import json
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from service.api.app import create_app
from service.learning.registry import LEARNERS
from service.mechanisms.registry import MECHANISMS
from service.settings import Settings
from service.streams.feature_maps import FeatureMapShape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
_NAMED_IN_THE_HEAD = "The database is away; or: "
_FEWEST_SHARED_FIELDS = 3
_PAGING = ({"maximum": 1000, "minimum": 1, "default": 100}, "`id` or `version` of the last item of the page before")

_API = """# HTTP interface

Written by `make docs` from the OpenAPI document, which a running service shows at `/openapi.json`.

Every call but `GET /livez` and `GET /readyz` needs a key: `Authorization: Bearer KEY`, with the scope named below or
`admin`. A key that is limited to some streams gets 404 for all others. HEAD is answered wherever GET is. Every answer
has an `X-Request-ID`, which log lines about it name.

Errors are `application/problem+json`; [problems.md](problems.md) has every type. Not repeated below: 401 and 403 (the
key), 404 (there is no such thing, or this key may not see it), 413 (too large), 415 (a format that is not read here),
422 (not valid), 429 (too often) and 503 (the database is away).

Lists are newest first, as {`items`: list}. `limit` is from 1 to 1000, by default 100. `before` asks for the next page:
the `id` or `version` of the last item of the page before.

Bodies are `application/json` unless a type is named. A field with `?` may be left out or null; `= …` is its default.
The OpenAPI document, and this page of the site that `make docs` builds, say more of each call, and have the fields of
each shape (`StreamInfo`, …).
"""


@cache
def openapi() -> dict[str, Any]:
    """Return the service's OpenAPI document, which takes a third of a second to make."""
    return create_app(Settings(_env_file=None)).openapi()


def api(scopes: dict[str, str]) -> str:
    """Return the page of docs/: each call with the first paragraph of its description.

    scopes: the scope that a key needs, by method and path.
    """
    return _API + _calls(scopes, lambda description: description.partition("\n\n")[0])


def site_page(scopes: dict[str, str]) -> str:
    """Return the page of the site: whole descriptions, every shape, and each name of a shape as a link to it."""
    schemas = openapi()["components"]["schemas"]
    names = [name for name in sorted(schemas) if not _is_elsewhere(name)]
    page = f"{_API}{_calls(scopes, str)}\n## Shapes\n" + "".join(_shape(name, schemas) for name in names)
    return re.sub(rf"`({'|'.join(names)})`", lambda name: f"[{name[1]}](#{name[1].lower()})", page)


def _calls(scopes: dict[str, str], shown: Callable[[str], str]) -> str:
    """Return a section for each part of the interface. shown: what to show of a description."""
    parts: dict[str, str] = dict.fromkeys(_PARTS, "")
    for path, operations in openapi()["paths"].items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path}"
            described = operation | {"description": shown(operation["description"])}
            parts[operation["tags"][0]] += _operation(name, described, scopes.get(name))
    return "".join(f"\n## {part.capitalize()}\n{calls}" for part, calls in parts.items())


@cache
def _elsewhere() -> dict[str, str]:
    """Return the page, with its anchor, that describes a shape, by the shape's name."""
    pages = {"StreamRequest": "streams.md#settings", "PublicationRequest": "publications.md#settings"}
    pages |= dict.fromkeys(("DenseEncoder", "ConvolutionalEncoder"), "mechanisms/lifelong.md#an-encoder")
    for folder, registry in (("mechanisms", MECHANISMS), ("learners", LEARNERS)):
        pages |= {each.settings.__name__: f"{folder}/{each.kind}.md#settings" for each in registry}
    return pages | {shape.__name__: "feature-maps.md" for shape in get_args(get_args(FeatureMapShape)[0])}


def _is_elsewhere(name: str) -> bool:
    return name.startswith("Items_") or name in _elsewhere()


def _operation(name: str, operation: dict[str, Any], scope: str | None) -> str:
    needs = f"Scope `{scope}`." if "security" in operation else "No key is needed."
    parameters = (each for each in operation.get("parameters", ()) if each["in"] != "path")
    lines = [line for line in map(_parameter, parameters) if line]
    calls = [f"takes {_content(operation['requestBody'])}"] if "requestBody" in operation else []
    answers = sorted(operation["responses"].items())
    for status, answer in answers:
        if "application/problem+json" not in answer.get("content", {}):
            meaning = "" if answer["description"] == "Successful Response" else f"({answer['description'].rstrip('.')})"
            calls.append(" ".join(filter(None, [status, meaning, _content(answer)])))
    calls += [
        f"{status} ({answer['description'].removeprefix(_NAMED_IN_THE_HEAD)})"
        for status, answer in answers
        if _is_problem(status, answer, operation)
    ]
    lines.append(f"- {'; '.join(calls)}.")
    return f"\n### {name}\n\n{operation['description']} {needs}\n\n" + "\n".join(lines) + "\n"


def _parameter(parameter: dict[str, Any]) -> str:
    limits, before = _PAGING
    if limits.items() <= parameter["schema"].items() or parameter.get("description") == before:
        return ""
    name = f"`{parameter['name']}`" + (" (header)" if parameter["in"] == "header" else "")
    return f"- {_field(name, parameter['schema'], parameter.get('description'), required=parameter['required'])}"


def _field(name: str, schema: dict[str, Any], meaning: str | None, *, required: bool) -> str:
    optional = not required and schema.get("default") is None
    default = "" if required or optional else f" = {_default(schema)}"
    kind = _type(_without_null(schema) if optional else schema)
    return f"{name}{'?' if optional else ''}: {kind}{default}." + (f" {meaning.rstrip('.')}." if meaning else "")


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    choices = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return {"anyOf": choices} if choices else schema


def _is_problem(status: str, answer: dict[str, Any], operation: dict[str, Any]) -> bool:
    """Return whether the answer is a problem that the head of the page does not already name."""
    for_any_call = status in _KNOWN or ("security" in operation and status in _EVERYWHERE)
    return "application/problem+json" in answer.get("content", {}) and (
        not for_any_call or "; or: " in answer["description"]
    )


def _content(holder: dict[str, Any]) -> str:
    """Return the formats of a body, each with its shape; nothing where there is no body."""
    kinds: dict[str, list[str]] = {}
    for media, content in holder.get("content", {}).items():
        schema = content.get("schema", {})
        kinds.setdefault(_type(schema) if schema else "", []).append(media)
    return "; ".join(filter(None, itertools.starmap(_body, kinds.items())))


def _body(kind: str, media: list[str]) -> str:
    named = "" if media == ["application/json"] else " or ".join(map(_code, media))
    return f"{named}: {kind}" if named and kind else named or kind


def _shape(name: str, schemas: dict[str, Any]) -> str:
    """Return the section of a shape: neighbouring fields without a description in one line."""
    schema = schemas[name]
    lines = [f"\n### {name}\n"]
    if "description" in schema:
        lines.append(f"{schema['description']}\n")
    fields, required = schema.get("properties", {}), schema.get("required", ())
    if base := _included(name, schemas):
        fields = {field: each for field, each in fields.items() if field not in schemas[base]["properties"]}
        lines.append(f"All of {_code(base)}{', and' if fields else ''}:\n")
    described = itertools.groupby(fields.items(), key=lambda item: "description" in item[1])
    for meaning, group in described:
        texts = [_field(_code(f), each, each.get("description"), required=f in required) for f, each in group]
        lines += [f"- {text}" for text in texts] if meaning else [f"- {'; '.join(each[:-1] for each in texts)}."]
    return "\n".join(lines).rstrip("\n") + "\n"


def _included(name: str, schemas: dict[str, Any]) -> str | None:
    """Return the shape with the most fields that are all, the same, among this one's; none if it has few."""
    fields = schemas[name].get("properties", {})
    others = (other for other in sorted(schemas) if other != name and not _is_elsewhere(other))
    parts = [other for other in others if schemas[other].get("properties", {}).items() < fields.items()]
    best = max(parts, key=lambda other: len(schemas[other]["properties"]), default=None)
    return best if best and len(schemas[best]["properties"]) >= _FEWEST_SHARED_FIELDS else None


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
        return " or ".join(dict.fromkeys(map(_type, choices)))
    if "$ref" in schema:
        return _reference(schema["$ref"].rpartition("/")[2])
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return " or ".join(_code(json.dumps(each)) for each in values) if values else _plain(schema)


def _reference(name: str) -> str:
    """Return a link to a shape; mechanisms, learners and feature maps have pages of their own."""
    if match := re.fullmatch("Items_(.*)_", name):
        return f"{{`items`: list of {_reference(match[1])}}}"
    page = _elsewhere().get(name, "")
    for folder in ("mechanisms", "learners"):
        if page.startswith(f"{folder}/"):
            return f"[{folder.removesuffix('s')}](README.md#{folder})"
    return f"[feature map]({page})" if page == "feature-maps.md" else f"[{name}]({page})" if page else _code(name)


def _plain(schema: dict[str, Any]) -> str:
    kind = schema.get("type", "anything")
    words: str = {"string": "text"}.get(kind, kind)
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
            yield f"{sign}{_number(schema[name])}"
    for noun, least, most in (("characters", "minLength", "maxLength"), ("items", "minItems", "maxItems")):
        if least in schema or most in schema:
            yield f"{schema.get(least, 0)}–{schema.get(most, '')} {noun}"
    if "pattern" in schema:
        yield _code(schema["pattern"])


def _number(value: float) -> str:
    if value == int(value):
        exponent = math.log2(abs(value)) if value else 0.0
        return f"2^{int(exponent)}" if exponent == int(exponent) and exponent > 16 else str(int(value))
    return str(value)
