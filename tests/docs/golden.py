"""Golden files: what stored settings mean, and the constants of proofs. A person can read their difference.

`python -m tests.docs.golden` writes them anew: run it after you changed one knowingly.
"""

import ast
import importlib
import json
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from service.mechanisms.configuration import AskedPublication, PublicationConfiguration, StreamBudget
from service.streams.schema import NewStreamSchema, StreamSchema
from tests.docs.pages import ROOT

SETTINGS, CONSTANTS = (Path(__file__).with_name(name) for name in ("settings.txt", "constants.json"))
MODELS = (NewStreamSchema, StreamSchema, StreamBudget, AskedPublication, PublicationConfiguration)
PROSE = {"description", "title", "examples", "discriminator"}
ROOMS_OF_PROOFS = ("privacy", "learning", "schedules")
NUMBERS = (int, float, Decimal, Fraction)


def settings() -> str:
    """Return each field of requests and of stored settings in a line, with its bounds and its default.

    A new default changes what older requests and running publications mean; a narrower bound refuses some of them.
    """
    shapes = models_json_schema([(model, "validation") for model in MODELS])[1]["$defs"]
    lines = [
        f"{shape}.{field}: {json.dumps(_without_prose(schema))}"
        for shape, text in sorted(shapes.items())
        for field, schema in text.get("properties", {}).items()
    ]
    return "\n".join(lines).replace("#/$defs/", "") + "\n"


def constants() -> str:
    """Return the numbers at the top of the modules that proofs are about, by module."""
    paths = (path for room in ROOMS_OF_PROOFS for path in sorted((ROOT / "service" / room).rglob("*.py")))
    by_module = {str(path.relative_to(ROOT)): dict(_numbers(path)) for path in paths}
    return json.dumps({path: numbers for path, numbers in by_module.items() if numbers}, indent=1) + "\n"


def _without_prose(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _without_prose(value) for name, value in schema.items() if name not in PROSE}
    return [_without_prose(part) for part in schema] if isinstance(schema, list) else schema


def _numbers(path: Path) -> Iterator[tuple[str, str]]:
    names = path.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(names).removesuffix(".__init__"))
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for name in (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)):
                value = getattr(module, name)
                if isinstance(value, NUMBERS) or (isinstance(value, tuple) and isinstance(value[0], NUMBERS)):
                    yield name, str(value)


if __name__ == "__main__":
    SETTINGS.write_text(settings())
    CONSTANTS.write_text(constants())
