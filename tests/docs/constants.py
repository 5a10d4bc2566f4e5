"""Numbers, words and bounds of fields at the top of the modules that compute: proofs and stored settings rest on them.

`python -m tests.docs.constants` writes constants.jsonl anew: run it after you changed one knowingly.
"""

import ast
import dataclasses
import importlib
import json
from collections.abc import Iterator, Mapping, Set
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import numpy as np
from pydantic.fields import FieldInfo

from tests.docs.pages import ROOT

WRITTEN = Path(__file__).with_name("constants.jsonl")
ROOMS = ("privacy", "inputs", "streams", "learning", "schedules", "learners", "mechanisms")
AS_IN_JSON = (bool, int, float, str, type(None))
AS_TEXT = (bytes, Decimal, Fraction, np.dtype)
LEFT_OUT = object()  # what is neither a number, nor words, nor made of these


def lines() -> list[str]:
    """Return the constants of each module that has some, as a line of JSON."""
    by_module = {path: dict(_constants(path)) for path in _paths()}
    return [json.dumps({path: constants}) for path, constants in by_module.items() if constants]


def _paths() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / "service" / room).rglob("*.py"))


def _constants(path: str) -> Iterator[tuple[str, Any]]:
    module = importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    for statement in ast.parse((ROOT / path).read_text()).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        for name in (node.id for each in targets if each for node in ast.walk(each) if isinstance(node, ast.Name)):
            value = _as_json(getattr(module, name))
            if value is not LEFT_OUT:
                yield name, value


def _as_json(value: Any) -> Any:
    if isinstance(value, AS_IN_JSON):
        return value
    if isinstance(value, AS_TEXT):
        return repr(value)
    if get_origin(value) is Annotated:
        fields = [each for each in get_args(value) if isinstance(each, FieldInfo)]
        return [repr(bound) for each in fields for bound in each.metadata] or LEFT_OUT
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        members = {str(name): _as_json(each) for name, each in value.items()}
        return {name: each for name, each in members.items() if each is not LEFT_OUT} or LEFT_OUT
    if isinstance(value, Set):
        return sorted(json.dumps(each) for each in map(_as_json, value) if each is not LEFT_OUT) or LEFT_OUT
    if isinstance(value, tuple | list):
        return [each for each in map(_as_json, value) if each is not LEFT_OUT] or LEFT_OUT
    return LEFT_OUT


if __name__ == "__main__":
    WRITTEN.write_text("\n".join([*lines(), ""]))
