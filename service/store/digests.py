"""Digests of what is stored: each tells whether something is still what was written."""

import hashlib
from datetime import UTC, datetime
from typing import Any

import rfc8785


def of(content: Any) -> str:
    """SHA-256, in hexadecimal, over the RFC 8785 JSON of something.

    This form has no whole numbers of 2^53 and more; they count as text, as in JSON that everybody can read.

    Raises:
        ValueError: it holds what no JSON has, like NaN.
    """
    try:
        packed = rfc8785.dumps(content)
    except rfc8785.IntegerDomainError:
        packed = rfc8785.dumps(_readable(content))
    return hashlib.sha256(packed).hexdigest()


def timestamp(moment: datetime) -> str:
    """As it is served and hashed."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _readable(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _readable(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_readable(value) for value in content]
    return str(content) if type(content) is int and abs(content) >= 2**53 else content
