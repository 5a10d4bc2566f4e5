"""`{"x":[…],"y":…}`, one record per line: NDJSON."""

import json
from typing import Any

import numpy as np
import simdjson
from numpy.typing import NDArray

from service.api.batches.checks import (
    EMPTY,
    MOST_REASONS,
    InvalidRecords,
    from_numbers,
    from_values,
    listed,
    of_texts,
    wanted,
)
from service.api.batches.columns import UNUSUAL
from service.store.segment_files import Columns


def read_rows(body: bytes, schema: dict[str, Any]) -> Columns:
    """The records of a batch, or InvalidRecords. A line break at the end is no record."""
    body = body.rstrip()
    try:
        numbers = None if of_texts(schema) else _usual(body, schema)
    except UNUSUAL:
        numbers = None
    return _slowly(body, schema) if numbers is None else from_numbers(numbers, schema)


def _usual(body: bytes, schema: dict[str, Any]) -> dict[str, NDArray[Any]] | None:
    """As one JSON array of the lines, provided that every line break is between two objects."""
    names = wanted(schema)
    breaks = body.count(b"\n")
    if body.count(b"}\n{") != breaks or ("x" in names and body.count(b"[") != breaks + 1):
        return None
    rows: Any = simdjson.Parser().parse(b"[" + body.replace(b"\n", b",") + b"]")
    x, y = [], []
    for row in rows:
        if len(row) != len(names):
            return None
        if "x" in names:
            x.append(row["x"].as_buffer(of_type="d"))
        if "y" in names:
            y.append(row["y"])
    if not all(type(value) in (int, float) for value in y):
        return None
    numbers: dict[str, NDArray[Any]] = {}
    if "x" in names:
        if not all(len(memoryview(each)) == 8 * schema["features"] for each in x):
            return None
        numbers["x"] = np.frombuffer(b"".join(x), dtype=np.float64).reshape(len(x), -1)
    if "y" in names:
        numbers["y"] = np.array(y, dtype=np.float64)
    return numbers


def _slowly(body: bytes, schema: dict[str, Any]) -> Columns:
    names = wanted(schema)
    document: dict[str, list[Any]] = {name: [] for name in names}
    reasons: list[tuple[int | None, str]] = []
    for row, line in enumerate(body.split(b"\n") if body else ()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            reasons.append((row, "is not JSON; send one object per line"))
            continue
        if not isinstance(record, dict) or record.keys() != set(names):
            reasons.append((row, f"must be an object with {listed(names)} and nothing else"))
            continue
        for name in names:
            document[name].append(record[name])
        if len(reasons) >= MOST_REASONS:
            break
    if reasons:
        raise InvalidRecords(*reasons)
    if not body:
        raise InvalidRecords((None, EMPTY))
    return from_values(document, schema)
