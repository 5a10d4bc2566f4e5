"""A client of Perennial, the service that publishes differentially private models of streams.

`connect` gives a client, `connect_async` one for asyncio, and `local` one of a service that it starts on this machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perennial.appending import Appended
    from perennial.async_client import AsyncClient, AsyncPublication, AsyncStream, connect_async
    from perennial.client import Client, Publication, Stream, connect
    from perennial.errors import (
        BudgetExceeded,
        Busy,
        Halted,
        InvalidData,
        InvalidRecords,
        InvalidRow,
        LocalServiceFailed,
        NotAllowed,
        NotFound,
        NotYet,
        PerennialError,
        Problem,
        Uncertain,
        UnknownServer,
        Unreachable,
        Unsupported,
    )
    from perennial.local_service import LocalClient, local
    from perennial.model import Model
    from perennial.operations import Ledger
    from perennial.settings import standardize
    from perennial.tables import Table

__all__ = [
    "Appended",
    "AsyncClient",
    "AsyncPublication",
    "AsyncStream",
    "BudgetExceeded",
    "Busy",
    "Client",
    "Halted",
    "InvalidData",
    "InvalidRecords",
    "InvalidRow",
    "Ledger",
    "LocalClient",
    "LocalServiceFailed",
    "Model",
    "NotAllowed",
    "NotFound",
    "NotYet",
    "PerennialError",
    "Problem",
    "Publication",
    "Stream",
    "Table",
    "Uncertain",
    "UnknownServer",
    "Unreachable",
    "Unsupported",
    "connect",
    "connect_async",
    "local",
    "standardize",
]

_MODULES = (
    "errors",
    "client",
    "appending",
    "settings",
    "tables",
    "operations",
    "model",
    "local_service",
    "async_client",
)


def __getattr__(name: str) -> Any:
    """Import what a name stands for when it is first used, so that `perennial load` starts with few of the modules."""
    if name in __all__:
        for module in map(import_module, (f"perennial.{each}" for each in _MODULES)):
            if name in vars(module):
                return globals().setdefault(name, vars(module)[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
