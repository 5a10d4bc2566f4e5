"""Read the JSON of a configuration exactly as it was written, or refuse it.

JSON readers differ where an object has a name twice, and most round a number that has more digits than a double keeps.
A budget must not depend on either.
"""

import json
import re
from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import Any

REPEATED_NAME = "this name comes twice in its object; write it once"
UNFIT_NUMBER = (
    "this number can't be kept exactly as it is written; round it to at most 15 significant digits, and keep its "
    "magnitude within 1e-300 and 1e300"
)

KEPT_DIGITS = 15  # significant ones, by every double that is far from the least and the largest
_SHORT_NUMBER = re.compile(rf"-?[0-9.]{{1,{KEPT_DIGITS}}}[eE][-+]?[0-9]{{1,2}}")


def not_json(text: str, position: int) -> str:
    """Return why a text is no JSON, in words.

    position: of the first character that no JSON has there, as `json.JSONDecodeError.pos` tells it.
    """
    if position >= len(text.rstrip()):
        return "the JSON ends too early: close each quote, bracket and brace"
    error = json.JSONDecodeError("", text, position)
    return (
        f"this is not JSON from character {position + 1} on (line {error.lineno}, column {error.colno}): look there "
        "and just before it for a comma, a quote or a bracket that is missing or too many"
    )


class Misread(ValueError):
    """Raised for JSON that another reader may understand differently, such as an object with one name twice.

    `place` leads from the document to what is wrong in it, by names and list indexes.
    """

    def __init__(self, place: list[str | int], reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


class _Fault:
    """Takes the place of what can't be read as it is written; `place` is relative to it."""

    def __init__(self, place: list[str | int], reason: str) -> None:
        self.place = place
        self.reason = reason


def read(text: str | bytes) -> Any:
    """Return the document.

    Raises:
        Misread: an object has a name twice, or a double can't hold a number.
        ValueError, RecursionError: the text is not JSON.
    """
    faults: list[_Fault] = []

    def number(digits: str) -> float | _Fault:
        if (len(digits) <= KEPT_DIGITS and "e" not in digits and "E" not in digits) or faults:
            return float(digits)  # most numbers are short; only the first fault is reported
        value = float(digits)
        if _SHORT_NUMBER.fullmatch(digits) or _is_exact(digits, value):
            return value
        faults.append(_Fault([], UNFIT_NUMBER))
        return faults[-1]

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Fault:
        by_name = dict(pairs)
        if len(by_name) == len(pairs):
            return by_name
        repeated = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        faults.append(_Fault([repeated], REPEATED_NAME))
        return faults[-1]

    document = json.loads(text, object_pairs_hook=members, parse_float=number)
    if faults:
        raise _misread(document, []) or Misread([], faults[0].reason)
    return document


def _is_exact(digits: str, value: float) -> bool:
    try:
        return Decimal(digits) == Decimal(repr(value))
    except InvalidOperation:  # the exponent is beyond those of Decimal
        return False


def _misread(value: Any, place: list[str | int]) -> Misread | None:
    """Return the first fault below `place`, which is left as it was."""
    if isinstance(value, _Fault):
        return Misread([*place, *value.place], value.reason)
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        place.append(name)
        if (misread := _misread(member, place)) is not None:
            return misread
        place.pop()
    return None
