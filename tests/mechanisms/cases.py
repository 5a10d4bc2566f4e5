"""Cases of each mechanism for the tests of all: a family's folder of tests may state them, in `cases.py`."""

from importlib import import_module
from pathlib import Path
from typing import Any

from service.mechanisms.registry import MECHANISMS

HERE = Path(__file__).parent


def of_families(name: str) -> dict[Any, Any]:
    """Return what the folders of all families say under that name."""
    saying = [kind for kind in MECHANISMS.kinds() if (HERE / kind / "cases.py").exists()]
    modules = [import_module(f"tests.mechanisms.{kind}.cases") for kind in saying]
    return {key: case for module in modules for key, case in getattr(module, name, {}).items()}
