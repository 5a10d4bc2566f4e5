"""Explain pydantic's errors: which field of a configuration is wrong, what it must be, and a valid example.

Pydantic finds the mistakes. Its own texts are for programmers, and some repeat what was sent; these never do.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel

from service.inputs.registry import OneOf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydantic.fields import FieldInfo

    from service.inputs.registry import Registry

EXAMPLES = {
    "budget": '{"epsilon": 4, "delta": 1e-6}',
    "encoder": '{"kind": "dense", "records": 1000, "layers": [32]}',
    "feature_map": '{"kind": "normalize"}',
    "name": '"power-usage-2"',
    "privacy": '{"epsilon": 1, "delta": 1e-6}',
    "stream": '"power-usage-2"',
    "task": '{"kind": "classification", "classes": 2}',
}
"""Values that would do, by the name of their field. For settings of a registered family the registry has one."""

LONGEST_NAME = 40  # characters: no known name resembles a longer text

_TYPES = {
    "bool_type": "true or false",
    "decimal_number": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number, in digits alone",
    "int_parsing_size": "a whole number of fewer digits",
    "int_type": "a whole number",
}
_LISTS = ("list_type", "tuple_type")
_OBJECTS = ("dict_type", "model_attributes_type", "model_type")
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
_LENGTHS = {
    "string_too_long": "{max_length} characters or fewer",
    "string_too_short": "{min_length} or more characters",
    "too_long": "{max_length} items or fewer",
    "too_short": "{min_length} or more items",
}
_NAME_RULE = (
    "must be a name of at most 63 lower-case letters, digits and hyphens that begins with a letter or a digit, such as "
    "power-usage-2"
)


Place = tuple[str | int, ...]


def explained(errors: Iterable[Mapping[str, Any]], model: type[BaseModel]) -> list[tuple[Place, str]]:
    """Return the places and the reasons of pydantic's errors.

    Where a field may be several things, pydantic says of each why it is none; the one that was nearly right stays.

    Args:
        errors: with places in the document; tags of unions are left out of the places returned.
        model: what the document was read as.
    """
    reasons = [_explained(error, model) for error in errors]
    above = {place[:length] for place, _ in reasons for length in range(len(place))}
    return [(place, reason) for place, reason in reasons if not place or place not in above]


def _explained(error: Mapping[str, Any], model: type[BaseModel]) -> tuple[Place, str]:
    extra = error["type"] == "extra_forbidden"
    place, within, field = _walk(error["loc"][:-1] if extra else error["loc"], model)
    if extra:
        sent, known = error["loc"][-1], sorted({name for model in within for name in model.model_fields})
        return (*place, sent), _no_such_field(str(sent), known)
    name = next((name for name in reversed(place) if isinstance(name, str)), "")
    return place, _why(error, name, _example(name, field))


def _example(name: str, field: FieldInfo | None) -> str:
    """Return a valid example for a field, as the end of an error; "" where there is none."""
    registries = () if field is None else _registries(_annotated(field))
    example = next((registry.example for registry in registries), EXAMPLES.get(name))
    return "" if example is None else f", such as {example}"


def _walk(parts: Place, model: type[BaseModel]) -> tuple[Place, Sequence[type[BaseModel]], FieldInfo | None]:
    """Return the parts that are fields or indexes, the models that may stand at the end of them, and the last field."""
    place: list[str | int] = []
    last: FieldInfo | None = None
    within: Sequence[type[BaseModel]] = [model]
    for part in parts:
        if isinstance(part, int):
            place.append(part)
        elif tagged := [model for model in within if part in _tags(model)]:
            within = tagged
        elif fields := [model.model_fields[part] for model in within if part in model.model_fields]:
            place.append(part)
            last = fields[0]
            within = [model for field in fields for model in _models(_annotated(field))]
    return tuple(place), within, last


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    """Return by which names pydantic calls a model that is one of a union."""
    kind = model.model_fields.get("kind")
    return (model.__name__, *(get_args(kind.annotation) if kind else ()))


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    registered = [family.settings for registry in _registries(annotation) for family in registry]
    return registered or [model for part in get_args(annotation) for model in _models(part)]


def _registries(annotation: Any) -> Iterator[Registry[Any]]:
    """Yield the registries any of whose families may stand there."""
    for part in get_args(annotation):
        yield from (part.registry,) if isinstance(part, OneOf) else _registries(part)


def _annotated(field: FieldInfo) -> Any:
    """Return the annotation of a field as it was written."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _why(error: Mapping[str, Any], name: str, example: str) -> str:
    kind, context, sent = error["type"], error.get("ctx", {}), error.get("input")
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}{_unwanted(kind, sent)}"
    if kind in _OBJECTS:
        return f"must be an object{example or ': names in quotes and values, between { and }'}"
    if kind in _LISTS:
        return "must be a list: values between [ and ]"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return _usual(name, f"must be {words} {_number(context[bound])}")
    if kind in _LENGTHS:
        return f"must have {_LENGTHS[kind].format(**context)}"
    return {
        "missing": f"must be given{example}",
        "string_type": f"must be a text, in quotes{example}",
        "string_pattern_mismatch": _NAME_RULE,
        "string_unicode": "must be a text of whole characters, without lone surrogates",
        "literal_error": f"must be {context.get('expected')}{_meant(sent, _names(context.get('expected')))}",
        "union_tag_not_found": f'must be an object with a "kind"{example}',
        "union_tag_invalid": f"its 'kind' must be one of {context.get('expected_tags')}"
        f"{_meant(context.get('tag'), _names(context.get('expected_tags')))}",
    }.get(kind) or re.sub("^Input should", "must", error["msg"])


def _unwanted(kind: str, sent: object) -> str:
    """Return which part of a number or truth value, as written, is not allowed, to end the message with."""
    if isinstance(sent, str) and not kind.startswith("int_parsing"):  # values in an address are all texts
        return ", without quotes"
    return ", without a point or an exponent" if isinstance(sent, float) and sent.is_integer() else ""


def _no_such_field(sent: str, known: Sequence[str]) -> str:
    listed = ", ".join(known)
    return f"no such field{_meant(sent, known) or f' (the fields here are {listed})'}"


def _meant(sent: object, known: Iterable[str]) -> str:
    nearest = get_close_matches(sent, known, 1) if isinstance(sent, str) and len(sent) <= LONGEST_NAME else []
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def _names(quoted: object) -> list[str]:
    return re.findall("'([^']*)'", str(quoted))


def _usual(name: str, rule: str) -> str:
    if name.startswith("epsilon"):
        return f"{rule.replace('at least', 'above 0, at least')} (0.1 to 10 is usual)"
    if name == "delta":
        return f"{rule} (usual is 1e-6, or 0 for pure epsilon)"
    return rule


def _number(bound: Any) -> str:
    exact = re.sub(r"Decimal\('([^']*)'\)", r"\1", str(bound))  # bounds of exact numbers come as Python writes them
    return exact if exact.isdigit() else f"{float(exact):.15g}".replace("e-0", "e-")
