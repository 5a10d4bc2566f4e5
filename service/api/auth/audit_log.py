"""One line of the log for each thing that an administrator does or tries: who, what, to what, and how it ended.

It names keys by their ids and things by their names, and nothing else that a request says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import structlog

from service.api.schemas import is_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope

_log = structlog.get_logger(__name__)


def log(scope: Scope, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Log a request that needed an administrator's key and had a known one.

    Args:
        scope: the request's, after it was routed; `perennial.audit` is the id of its key.
        status: of the answer.
        headers: the answer's; where something was made, `Location` says what.
    """
    route = scope["route"]
    made = next((value.decode() for name, value in headers if name == b"location"), None)
    target = {name: _safe(value) for name, value in scope["path_params"].items() if name != "unit"}
    if "perennial.unit" in scope:  # a pseudonym: the id of a person is nobody's to log
        target["unit"] = scope["perennial.unit"]
    known = {parameter.alias for parameter in route.dependant.query_params}
    query = {
        name: value if value.isdecimal() and len(value) < 20 else "…"
        for name, value in parse_qsl(scope["query_string"].decode("ascii", "replace"))
        if name in known
    }
    _log.info(
        "admin_action",
        key=scope["perennial.audit"],
        action=f"{scope['method']} {route.path_format}",
        status=status,
        **({"target": target} if target else {}),
        **({"asked": query} if query else {}),
        **({"made": made} if made else {}),
    )


def _safe(value: object) -> str:
    """A name or a number. Whatever else somebody wrote in its place is not repeated."""
    text = str(value)
    return text if len(text) <= 63 and (is_name(text) or text.isdecimal()) else "…"
