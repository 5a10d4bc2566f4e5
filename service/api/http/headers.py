"""Headers that every answer has."""

from __future__ import annotations

import itertools
import time
from email.utils import formatdate
from functools import lru_cache
from secrets import token_hex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    Header = tuple[bytes, bytes]

_ALWAYS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_BY_DEFAULT = (
    (b"cache-control", b"private, no-cache"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
_PROCESS = token_hex(4)
_numbers = itertools.count(1)


def next_request() -> str:
    """Return the id of one more request."""
    return f"{_PROCESS}-{next(_numbers)}"


def completed(headers: Iterable[Header]) -> list[Header]:
    """Return the headers of an answer with those that all answers have, but for those of `of_one_answer`.

    Answers are data for programs: nothing may run them, frame them, or store them where others look; the dashboard's
    pages say themselves what they may do.
    """
    own = [*headers]
    names = {name for name, _ in own}
    return [*own, *(header for header in _BY_DEFAULT if header[0] not in names), *_ALWAYS]


def of_one_answer(request: str) -> tuple[Header, Header]:
    """Return the headers of one answer, which begins now: the time, and the id of its request."""
    return (b"date", _date(int(time.time()))), (b"x-request-id", request.encode())


def as_lines(headers: Iterable[Header]) -> bytes:
    """Return headers as they are sent."""
    return b"".join([name + b": " + value + b"\r\n" for name, value in headers])


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
