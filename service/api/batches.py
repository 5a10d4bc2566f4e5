"""Reads a batch of records: checked against the stream's schema as a whole, taken whole or refused whole.

The usual batch is valid, so it is checked by a few vectorised passes. Only a batch that fails is read again slowly, to
say which rows are wrong and why. Reasons name rows and columns, never values.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import simdjson
from numpy.typing import NDArray

from service.store.segment_files import Columns

MOST_REASONS = 100


class InvalidRecords(Exception):
    """Why a batch was refused: (row or None, reason) pairs."""

    def __init__(self, reasons: Sequence[tuple[int | None, str]]) -> None:
        super().__init__("invalid records")
        self.reasons = list(reasons)


def read_json(body: bytes, schema: dict[str, Any]) -> Columns:
    """`{"x":[[…]…],"y":[…]}` as columns: x float32 (records × features), y int32 (labels, categories) or float32.

    Args:
        body: the request's.
        schema: the stream's, with `features` and `task`.

    Raises:
        InvalidRecords: with a reason for each bad row, up to a hundred.
    """
    try:
        columns = _read_fast(body, schema)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):  # what the parser raises on the unusual
        columns = None
    return _read_slowly(body, schema) if columns is None else columns


def read_features(body: bytes, features: int) -> NDArray[np.float32]:
    """`{"x":[[…]…]}` alone, as for a prediction."""
    return read_json(body, {"features": features, "task": {"kind": "unlabelled"}})["x"].astype(np.float32, copy=False)


def _columns_of(schema: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the records have x, and whether they have y."""
    kind = schema["task"]["kind"]
    return kind != "categorical", kind != "unlabelled"


def _read_fast(body: bytes, schema: dict[str, Any]) -> Columns | None:
    """The columns of a valid batch; None, or an error, when anything at all is unusual."""
    has_x, has_y = _columns_of(schema)
    document: Any = simdjson.Parser().parse(body)
    usual = set(document.keys()) == {name for name, has in (("x", has_x), ("y", has_y)) if has}
    columns: Columns = {}
    brackets = 0
    if usual and has_x:
        rows = document["x"]
        features = schema["features"]
        usual = all(len(row) == features for row in rows)
        x = np.frombuffer(rows.as_buffer(of_type="d"), dtype=np.float64)
        columns["x"] = _single(x).reshape(len(rows), features)
        brackets += 1 + len(rows)
    if usual and has_y:
        y: Any = np.frombuffer(document["y"].as_buffer(of_type="d"), dtype=np.float64)
        classes = _classes(schema)
        usual = classes is None or bool(((y == np.floor(y)) & (y >= 0) & (y < classes)).all())
        columns["y"] = _single(y) if classes is None else _whole(y)
        brackets += 1
    sizes = {len(column) for column in columns.values()}
    usual = (
        usual
        and len(sizes) == 1
        and sizes != {0}
        # The buffers are flat: an array nested where a number belongs would show only here.
        and body.count(b"[") == brackets
        and all(np.isfinite(column).all() for column in columns.values())
    )
    return columns if usual else None


def _read_slowly(body: bytes, schema: dict[str, Any]) -> Columns:
    has_x, has_y = _columns_of(schema)
    wanted = [name for name, has in (("x", has_x), ("y", has_y)) if has]
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidRecords([(None, "the body is not JSON")]) from None
    if reason := _wrong_document(document, wanted):
        raise InvalidRecords([(None, reason)])
    checks: dict[str, Callable[[Any], str | None]] = {
        "x": lambda row: _wrong_x(row, schema["features"]),
        "y": lambda y: _wrong_y(y, _classes(schema)),
    }
    reasons = [
        (row, f"{name}: {reason}")
        for row in range(len(document[wanted[0]]))
        for name in wanted
        if (reason := checks[name](document[name][row]))
    ]
    if reasons:
        raise InvalidRecords(reasons[:MOST_REASONS])
    # Valid after all, only not in the usual way (a number too long for 64 bits, say).
    columns: Columns = {name: np.array(document[name], dtype=np.float64) for name in wanted}
    for name, column in columns.items():
        columns[name] = column.astype(np.int32) if name == "y" and _classes(schema) is not None else _single(column)
    return columns


def _wrong_document(document: Any, wanted: list[str]) -> str | None:
    if not isinstance(document, dict):
        return f"the body must be an object with {_listed(wanted)}"
    for name in wanted:
        if not isinstance(document.get(name), list):
            return f'"{name}" must be an array with one item per record'
    if len(document) > len(wanted):
        return f"only {_listed(wanted)} belong to a record of this stream"
    sizes = {len(document[name]) for name in wanted}
    if len(sizes) > 1:
        return '"x" and "y" must have one item per record each; their lengths differ'
    return "a batch holds at least one record" if sizes == {0} else None


def _wrong_x(row: Any, features: int) -> str | None:
    if not isinstance(row, list) or len(row) != features:
        return f"must be an array of {features} numbers"
    for column, value in enumerate(row):
        if (reason := _wrong_number(value)) is not None:
            return f"column {column} {reason}"
    return None


def _wrong_y(value: Any, classes: int | None) -> str | None:
    if (reason := _wrong_number(value)) is not None:
        return reason
    if classes is not None and (value != int(value) or not 0 <= value < classes):
        return f"must be a whole number from 0 to {classes - 1}"
    return None


def _wrong_number(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "is not a number"
    try:
        finite = np.isfinite(_single(np.float64(value)))
    except OverflowError:
        finite = np.False_
    return None if finite else "is not finite as a 32-bit float"


def _classes(schema: dict[str, Any]) -> int | None:
    """How many values y can take; None where it is a real number or absent."""
    task = schema["task"]
    match task["kind"]:
        case "classification":
            return int(task["classes"])
        case "categorical":
            return int(task["cardinality"])
    return None


def _single(values: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def _whole(values: Any) -> Any:
    with np.errstate(invalid="ignore"):  # what does not fit is refused by its value
        return values.astype(np.int32)


def _listed(names: list[str]) -> str:
    return " and ".join(f'"{name}"' for name in names)
