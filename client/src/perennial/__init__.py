"""A client of Perennial, the service that publishes differentially private models of streams.

`connect` gives a client, `connect_async` one for asyncio, and `local` one of a service that it starts on this machine.
"""

from perennial.appending import Appended
from perennial.async_client import AsyncClient, AsyncPublication, AsyncStream, connect_async
from perennial.client import Client, Publication, Stream, connect
from perennial.errors import (
    BudgetExceeded,
    Busy,
    Halted,
    InvalidArgument,
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
from perennial.local import LocalClient, local
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
    "InvalidArgument",
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
