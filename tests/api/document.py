"""The OpenAPI document, which tests are made of: to make it takes a third of a second."""

from functools import cache
from typing import Any

from service.api.app import create_app
from service.settings import Settings


@cache
def document() -> dict[str, Any]:
    return create_app(Settings(_env_file=None)).openapi()
