"""Structured logs on standard error: names, numbers, times and states; never a record, a key or a query's parameters."""

import logging
import sys

import structlog


def configure(level: str) -> None:
    """One JSON object per line."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries say little and only what matters; uvicorn's tracebacks carry no local variables.
    logging.basicConfig(
        level=max(threshold, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s %(message)s"
    )
