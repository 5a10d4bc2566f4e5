"""Structured logs on standard error: names, numbers, times, states; never a record, a key or a query's parameters."""

import logging
import sys
import threading
from collections.abc import MutableMapping
from contextvars import ContextVar
from functools import cache
from typing import Any

import structlog

from service.settings import IGNORED_VARIABLES, SHORTEST_ADMIN_KEY, Settings, unknown_variables
from service.tracebacks import place_of

request: ContextVar[str | None] = ContextVar("request", default=None)
"""The id of the request that is being answered."""


def begin(settings: Settings) -> None:
    """Configure the log, and warn of doubtful settings."""
    configure(settings.log_level)
    key = settings.admin_key.get_secret_value() if settings.admin_key else None
    if key is not None and len(key) < SHORTEST_ADMIN_KEY:
        # A warning, since an error would stop a service that ran with such a key before an upgrade.
        advice = f"it has fewer than {SHORTEST_ADMIN_KEY} characters; set a random one: openssl rand -base64 33"
        _warn_once("admin_key_short", setting="PERENNIAL_ADMIN_KEY", advice=advice)
    for variable, nearest in unknown_variables().items():
        _warn_once("unknown_setting", variable=variable, nearest=nearest)
    if settings.database_url is not None:
        for variable in IGNORED_VARIABLES:
            _warn_once("variable_ignored", variable=variable, advice="write it behind the ? of PERENNIAL_DATABASE_URL")
    IGNORED_VARIABLES.clear()  # parts that `up` forks get the URL of a server of its own


@cache  # parts that `perennial up` forks go on from here, and repeat nothing
def _warn_once(event: str, **more: str | None) -> None:
    structlog.get_logger(__name__).warning(event, **more)


def configure(level: str) -> None:
    """Write every log line as one JSON object."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            _with_request,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        # One write per line, since other processes write to the same file.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # any client can cause this warning as often as it likes
    # Libraries speak only when something is wrong, and then only by message: a traceback can quote a statement.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine())
    logging.basicConfig(level=max(threshold, logging.WARNING), handlers=[handler])
    sys.excepthook = lambda _, error, __: _unexpected(error)
    sys.unraisablehook = lambda event: _unexpected(event.exc_value)
    threading.excepthook = lambda event: _unexpected(event.exc_value)


class Outage:
    """A log of one part's outages: a line for each new reason, and one when the part is back."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._reason: str | None = None

    def begin(self, reason: str) -> None:
        """Log the reason, unless it is the same as before."""
        if reason != self._reason:
            structlog.get_logger(__name__).warning("part_unavailable", part=self._part, reason=reason)
        self._reason = reason

    def end(self) -> None:
        """Log that the part is back, if an outage was logged."""
        if self._reason is not None:
            structlog.get_logger(__name__).info("part_available", part=self._part)
        self._reason = None


def _unexpected(error: BaseException | None) -> None:
    """Log every exception that no code caught, also one from a library, as a JSON line without its text."""
    if isinstance(error, Exception):
        structlog.get_logger(__name__).error("unexpected_error", error=type(error).__name__, at=place_of(error))


def _with_request(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if (known := request.get()) is not None:
        line["request"] = known
    return line


class _OneLine(logging.Formatter):
    """Formats an error as its place and kind, without its text, which may contain a user's data."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else None
        place = place_of(record.exc_info[1]) if record.exc_info and record.exc_info[1] else None
        message = "unexpected error" if error else record.getMessage()
        line: dict[str, Any] = {"event": message, "logger": record.name, "error": error, "at": place}
        line["level"] = record.levelname
        return str(structlog.processors.JSONRenderer()(None, "", _with_request(None, "", line)))
