"""`{"x":[[…]…],"y":[…]}`: one JSON document of columns.

The usual batch is valid, so it is read by a few vectorised passes. Only a batch that fails is read again slowly, to say
which rows are wrong and why.
"""

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import simdjson
from numpy.typing import NDArray

from service.inputs.strict_json import not_json
from service.streams.batches.checks import EMPTY, InvalidRecords, from_numbers, from_values, listed
from service.streams.batches.named import read_fast
from service.streams.codec import Columns
from service.streams.layout import RecordLayout

MAX_KEPT_BYTES = 2**20  # bytes: a larger body gets its own parser, whose memory is freed afterwards
SHORT_BYTES = 2**11  # bytes: in shorter bodies, such as a single record, a search of bytes beats numpy
_parsers = threading.local()

Read = tuple[dict[str, NDArray[Any]] | None, list[Any] | None]
FastReader = Callable[[bytes, RecordLayout], Read | None]
UNUSUAL = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)  # raised for unusual documents


def read_json(body: bytes, layout: RecordLayout) -> Columns:
    """Return the records of a batch. Raises InvalidRecords."""
    numbers, units = (None, None) if layout.reads_text else first_read((_usual, _named), body, layout)
    return _slowly(body, layout) if numbers is None else from_numbers(numbers, layout, units=units)


def first_read(readers: Sequence[FastReader], body: bytes, layout: RecordLayout) -> Read:
    """Return the numbers and units that the first reader makes of a body; None if it is unusual for all of them."""
    for reader in readers:
        try:
            if (read := reader(body, layout)) is not None:
                return read
        except UNUSUAL:
            continue
    return None, None


def _usual(body: bytes, layout: RecordLayout) -> Read | None:
    """Return the numbers and units of a well-formed batch; None, or one of `UNUSUAL`, for any other body."""
    names = layout.column_names
    document = parsed(body)
    usual = sorted(document.keys()) == names
    numbers: dict[str, NDArray[Any]] = {}
    units: list[Any] | None = None
    brackets = 0
    if usual and "x" in names:
        rows, features = document["x"], layout.features
        usual = set(map(len, rows)) <= {features}
        numbers["x"] = _doubles(rows).reshape(len(rows), features)
        brackets += 1 + len(rows)
    if usual and "y" in names:
        numbers["y"] = _doubles(document["y"])
        brackets += 1
    if usual and "unit" in names:
        units = document["unit"].as_list()
        brackets += 1
    # The buffers are flat: an array nested where a number belongs would show only in the number of brackets.
    lengths = {len(column) for column in numbers.values()} | ({len(units)} if units is not None else set())
    usual = usual and len(lengths) == 1 and count(body, "[") == brackets
    return (numbers, units) if usual else None


def _named(body: bytes, layout: RecordLayout) -> Read | None:
    """Return the numbers and units of a well-formed batch by name; None, or one of `UNUSUAL`, for any other body."""
    document = parsed(body) if layout.names else None
    if document is None or sorted(document.keys()) != layout.column_names:
        return None
    units = document["unit"].as_list() if layout.units else None
    numbers = {name: read_fast(name, document[name], layout) for name in layout.column_names if name != "unit"}
    lengths = {len(column) for column in numbers.values()} | ({len(units)} if units is not None else set())
    return (numbers, units) if len(lengths) == 1 else None


def count(body: bytes, character: str) -> int:
    """Return how often an ASCII character comes: many times as fast as `bytes.count` where it comes often."""
    if len(body) <= SHORT_BYTES:
        return body.count(character.encode())
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord(character)))


def parsed(body: bytes | memoryview) -> Any:
    """Yield views of the parsed document, which must be dropped before this thread parses the next one.

    The parser is kept for that: it works in ten times the memory of the body, which is dear to ask for every time.
    """
    if len(body) > MAX_KEPT_BYTES:
        return simdjson.Parser().parse(body)
    if not hasattr(_parsers, "parser"):
        _parsers.parser = simdjson.Parser()
    return _parsers.parser.parse(body)


def _doubles(array: Any) -> NDArray[np.float64]:
    return np.frombuffer(array.as_buffer(of_type="d"), dtype=np.float64)


def _slowly(body: bytes, layout: RecordLayout) -> Columns:
    names = layout.column_names
    try:
        document = whole(body)
    except (ValueError, RecursionError) as error:
        where = f": {not_json(error.doc, error.pos)}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidRecords((None, f"the body {unreadable(error)}{where}")) from None
    if reason := _wrong_document(document, names):
        raise InvalidRecords((None, reason))
    return from_values({name: document[name] for name in names}, layout)


def whole(text: bytes) -> Any:
    """Return the parsed JSON document. ValueError if it is no JSON, or if a name occurs twice in one object."""
    return json.loads(text.decode("utf-8-sig"), object_pairs_hook=_once)


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    members_by_name = dict(members)
    if len(members_by_name) < len(members):
        raise _RepeatedName
    return members_by_name


class _RepeatedName(ValueError):
    pass


def unreadable(error: ValueError | RecursionError) -> str:
    """Return why `whole` could not read a text, to go on after the text's name."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | _RepeatedName):
        return "is not JSON, in UTF-8 and with each name once"
    return "has a number of too many digits"


def _wrong_document(document: Any, names: list[str]) -> str | None:
    if not isinstance(document, dict):
        return f"the body must be an object with {listed(names)}"
    for name in names:
        if not isinstance(document.get(name), list):
            return f'"{name}" must be an array with one item per record'
        if name == "x" and document[name] and not any(isinstance(row, list | dict) for row in document[name]):
            return '"x" must be a list of records, which are lists themselves: send one record as "x": [[…]]'
    if len(document) > len(names):
        return f"a record of this stream has only {listed(names)}"
    sizes = {len(document[name]) for name in names}
    if len(sizes) > 1:
        return f"{listed(names)} must have one item per record each; their lengths differ"
    return EMPTY if sizes == {0} else None
