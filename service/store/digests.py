"""Digests of what is stored: each tells whether something is still what was written."""

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any

import rfc8785


def of(content: Any) -> str:
    """SHA-256, in hexadecimal, over the RFC 8785 JSON of something.

    This form has no whole numbers of 2^53 and more; they count as text, as in JSON that everybody can read.

    Raises:
        ValueError: it holds what no JSON has, like NaN.
    """
    return hashlib.sha256(_packed(content).encode()).hexdigest()


def timestamp(moment: datetime) -> str:
    """As it is served and hashed."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _packed(content: Any) -> str:
    """Return the RFC 8785 JSON. It takes a third of the time that `rfc8785` takes, which packs all but plain types."""
    pack = _PACK.get(type(content))
    return rfc8785.dumps(content).decode() if pack is None else pack(content)


def _object(content: dict[Any, Any]) -> str:
    if not all(type(name) is str for name in content):
        raise ValueError("the names of an object must be strings")
    names = sorted(content) if all(map(str.isascii, content)) else sorted(content, key=_utf16)
    return "{" + ",".join([f"{encode_basestring(name)}:{_packed(content[name])}" for name in names]) + "}"


def _utf16(name: str) -> bytes:
    return name.encode("utf-16be")


def _array(content: list[Any] | tuple[Any, ...]) -> str:
    return "[" + ",".join(map(_packed, content)) + "]"


def _whole(number: int) -> str:
    return str(number) if -(2**53) < number < 2**53 else f'"{number}"'


@lru_cache(maxsize=4096)
def _double(number: float) -> str:
    return rfc8785.dumps(number).decode()


_PACK: Mapping[type, Callable[[Any], str]] = {
    str: encode_basestring,
    dict: _object,
    list: _array,
    tuple: _array,
    bool: {True: "true", False: "false"}.__getitem__,
    int: _whole,
    float: _double,
    type(None): lambda _: "null",
}
