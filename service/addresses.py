"""Where servers and files are, as settings name them: what can't be one is refused, and no part of it is repeated.

A password stands in most of these. Libraries that read them are loaded only where one is given.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, StringConstraints
from pydantic_core import PydanticCustomError

_NEXT_URL = re.compile(r"\s*,\s*[a-z+]+://")  # a password may hold a comma
_STORE = r"^[a-z0-9]+://"
_MEANT_AS_STORE = re.compile(r"((?i:s3|gs|az):/|[A-Za-z][A-Za-z0-9+.-]*://)")
_NOWHERE = "/perennial-nowhere"  # no server has its socket there
_ENCODED = "write special characters of user and password percent-encoded (@ is %40, : is %3A, / is %2F, # is %23)"


def cannot_listen(host: str, port: int, error: OSError, setting_of_host: str, setting_of_port: str) -> str:
    """Return why nothing can listen there, and which setting to change."""
    unresolved = (error.errno or 0) < 0  # as getaddrinfo numbers its errors
    if unresolved or error.errno == errno.EADDRNOTAVAIL:
        return f"can't listen on {host}:{port}: this machine has no such address, so choose another {setting_of_host}"
    stop = "stop what uses it, or " if error.errno == errno.EADDRINUSE else ""
    return f"can't listen on {host}:{port} ({error.strerror}): {stop}choose another {setting_of_port}"


def _of_postgresql(url: str) -> str:
    if not re.match(r"postgres(ql(\+\w+)?)?://", url):
        raise PydanticCustomError("database_url", "a URL of PostgreSQL begins with postgresql://")
    from psycopg import ProgrammingError
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url).set(drivername="postgresql+psycopg")
        if "@" in (parts.host or "") or not (parts.port is None or 0 < parts.port < 2**16):
            raise ValueError  # noqa: TRY301 - as of a port that is no number
    except (ValueError, ArgumentError):
        raise PydanticCustomError(
            "database_url", f"must be like postgresql://USER:PASSWORD@HOST:5432/DATABASE: {_ENCODED}"
        ) from None
    try:
        _check_options(parts.get_dialect()().create_connect_args(parts)[1])
    except (ProgrammingError, ArgumentError, ValueError):
        raise PydanticCustomError(
            "database_url",
            "can't be used, since PostgreSQL does not know an option behind the ?, or not with this value: "
            "leave it out, or write it as postgresql.org/docs/current/libpq-connect.html does",
        ) from None
    return url


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise ProgrammingError or ValueError where libpq refuses options before it looks for a server.

    It checks values only as it begins to connect. So it connects to sockets that are nowhere, which asks no network,
    and names such a socket in its error only after it has taken all values.
    """
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import PGconn

    port = str(options.get("port", 5432))  # of several servers, several with commas between
    elsewhere = {"host": ",".join([_NOWHERE] * (1 + port.count(","))), "hostaddr": "", "port": port}
    values = {name: value for name, value in options.items() if name != "context"} | elsewhere
    attempt = PGconn.connect_start(make_conninfo(**values).encode())
    try:
        if _NOWHERE.encode() not in attempt.error_message:
            raise ValueError
    finally:
        attempt.finish()


def _of_the_log(url: str) -> str:
    from redis import ConnectionPool

    if _NEXT_URL.search(url):
        raise PydanticCustomError(
            "redis_url",
            "must name one server, or a cluster as redis+cluster://HOST:6379: if streams lie on other servers of a "
            "list than its first, move them to the first with `perennial move-stream` of 0.1.0, then name that one",
        )
    scheme, cluster, rest = url.strip().partition("+cluster://")
    user, at, nodes = rest.rpartition("@")
    try:
        for node in [f"{scheme}://{user}{at}{node}" for node in nodes.split(",")] if cluster else [url.strip()]:
            ConnectionPool.from_url(node).make_connection()  # which connects to nothing yet
    except (ValueError, TypeError):
        raise PydanticCustomError(
            "redis_url",
            f"must be like redis://USER:PASSWORD@HOST:6379, or redis+cluster://HOST:6379 for a cluster: {_ENCODED}",
        ) from None
    return url


def _of_segments(place: object) -> object:
    if isinstance(place, str) and _MEANT_AS_STORE.match(place) and not re.match(_STORE, place):
        raise PydanticCustomError(
            "segment_store",
            "an object store's address begins with s3://, gs:// or az:// in small letters; "
            "if this is a folder, write ./ before it",
        )
    return place


def segment_place(given: str) -> str | Path:
    """Return a folder, or the address of an object store as it is, as settings are read.

    Raises:
        ValueError: it is neither, in a sentence.
    """
    _of_segments(given)
    return given if re.match(_STORE, given) else Path(given)


PostgresUrl = Annotated[str, AfterValidator(_of_postgresql)]
RedisUrl = Annotated[str, AfterValidator(_of_the_log)]
ObjectStore = Annotated[str, StringConstraints(pattern=_STORE)]
SegmentPlace = Annotated[ObjectStore | Path, BeforeValidator(_of_segments)]
