"""Where servers and files are, as settings name them: what can't be one is refused, and no part of it is repeated.

A password stands in most of these. Libraries that read them are loaded only where one is given.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, StringConstraints
from pydantic_core import PydanticCustomError

_NEXT_URL = re.compile(r"\s*,\s*(?=[a-z+]+://)")  # a password may hold a comma
_MEANT_AS_STORE = re.compile(r"(?![a-z0-9]+://)[A-Za-z][A-Za-z0-9+.-]+:/")
_ENCODED = "write special characters of user and password percent-encoded (@ is %40, : is %3A, / is %2F, # is %23)"


def primaries_of(redis_url: str) -> list[str]:
    """Return the URLs of the primaries that a list names, or of the nodes that a cluster's URL names."""
    scheme, cluster, rest = redis_url.partition("+cluster://")
    if not cluster:
        return _NEXT_URL.split(redis_url.strip())
    user, at, nodes = rest.rpartition("@")
    return [f"{scheme}://{user}{at}{node}" for node in nodes.split(",")]


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
    from psycopg.conninfo import make_conninfo
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url).set(drivername="postgresql+psycopg")
        if "@" in (parts.host or ""):
            raise ValueError  # noqa: TRY301 - as of a port that is none
    except (ValueError, ArgumentError):
        raise PydanticCustomError(
            "database_url", f"must be like postgresql://USER:PASSWORD@HOST:5432/DATABASE: {_ENCODED}"
        ) from None
    try:
        options = parts.get_dialect()().create_connect_args(parts)[1]
        make_conninfo(**{name: value for name, value in options.items() if name != "context"})
    except (ProgrammingError, ArgumentError, ValueError):
        raise PydanticCustomError(
            "database_url",
            "has an option behind the ? that PostgreSQL does not know: "
            "leave it out, or write it as postgresql.org/docs/current/libpq-connect.html does",
        ) from None
    return url


def _of_the_log(url: str) -> str:
    from redis import ConnectionPool

    try:
        for each in primaries_of(url):
            ConnectionPool.from_url(each).make_connection()  # which connects to nothing yet
    except (ValueError, TypeError):
        raise PydanticCustomError(
            "redis_url",
            "must be like redis://USER:PASSWORD@HOST:6379, or several with commas between, or "
            f"redis+cluster://HOST:6379: {_ENCODED}",
        ) from None
    return url


def _of_segments(place: object) -> object:
    if isinstance(place, str) and _MEANT_AS_STORE.match(place):
        raise PydanticCustomError(
            "segment_store",
            "must be like s3://BUCKET/PREFIX, in small letters with two slashes; a folder with a colon begins with ./",
        )
    return place


PostgresUrl = Annotated[str, AfterValidator(_of_postgresql)]
RedisUrl = Annotated[str, AfterValidator(_of_the_log)]
ObjectStore = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+://")]
SegmentPlace = Annotated[ObjectStore | Path, BeforeValidator(_of_segments)]
