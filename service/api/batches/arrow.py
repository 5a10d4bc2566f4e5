"""Arrow IPC streams: `x` a list of d numbers (of fixed size or not), `y` a number; any number of record batches.

What nanoarrow would expand or reserve beyond the body (compressed buffers, messages longer than what came) is refused
before it sees it. Its views of children do not keep the memory they show: the arrays are held here until every number
is copied.
"""

import struct
from collections.abc import Sequence
from typing import Any

import nanoarrow
import numpy as np
from nanoarrow.c_schema import c_schema_view
from nanoarrow.ipc import InputStream
from numpy.typing import NDArray

from service.api.batches.checks import EMPTY, Flaws, InvalidRecords, Mask, from_numbers, listed, of_texts, wanted
from service.store.segment_files import Columns

_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
_NUMBERS = _INTEGERS | {"half_float", "float", "double"}
_LISTS = {"fixed_size_list", "list", "large_list"}
_SCHEMA, _RECORD_BATCH = 1, 3  # kinds of messages

_NOT_ARROW = "the body is not an Arrow IPC stream"


def read_arrow(body: bytes, schema: dict[str, Any]) -> Columns:
    """The records of a batch, or InvalidRecords."""
    names = wanted(schema)
    if of_texts(schema):
        raise InvalidRecords((None, "texts are read from JSON and NDJSON only"))
    try:
        _check_messages(body)
        with InputStream.from_readable(body) as source, nanoarrow.c_array_stream(source) as stream:
            types = stream.get_schema()
            order = _order(types, names)
            arrays = list(stream)
        views = [array.view() for array in arrays]
        if not any(view.length for view in views):
            raise InvalidRecords((None, EMPTY))
        numbers: dict[str, NDArray[Any]] = {}
        flaws: dict[str, Mask | None] = {}
        if "x" in names:
            kind = types.child(order["x"])
            parts = [_rows(view.child(order["x"]), kind, schema["features"]) for view in views]
            numbers["x"] = np.concatenate([x for x, _, _ in parts])
            flaws["rows"] = _together([(len(x), rows) for x, rows, _ in parts])
            flaws["x"] = _together([(x.shape, nulls) for x, _, nulls in parts])
        if "y" in names:
            columns = [view.child(order["y"]) for view in views]
            numbers["y"] = np.concatenate([_values(column) for column in columns])
            flaws["y"] = _together([(column.length, _nulls(column)) for column in columns])
        del views, arrays
    except (RuntimeError, struct.error, ValueError, IndexError, OverflowError):
        raise InvalidRecords((None, _NOT_ARROW)) from None
    return from_numbers(numbers, schema, Flaws(**flaws))


def _order(schema: Any, names: list[str]) -> dict[str, int]:
    """Where each column stands."""
    children = [schema.child(index) for index in range(schema.n_children)]
    if sorted(child.name for child in children) != names:
        raise InvalidRecords((None, f"the columns must be {listed(names)} and nothing else"))
    for child in children:
        view = c_schema_view(child)
        if child.name == "x" and (
            view.storage_type not in _LISTS or c_schema_view(child.child(0)).storage_type not in _NUMBERS
        ):
            raise InvalidRecords((None, '"x" must be a column of type fixed_size_list or list of numbers'))
        if child.name == "y" and (view.storage_type not in _NUMBERS or child.dictionary is not None):
            raise InvalidRecords((None, '"y" must be a column of integers or floats'))
    return {child.name: index for index, child in enumerate(children)}


def _rows(view: Any, kind: Any, features: int) -> tuple[NDArray[Any], Mask | None, Mask | None]:
    """A column of lists as (numbers, which rows have not the right length, which numbers are null); None: no mask."""
    values, missing, nulls = _values(view.child(0)), _nulls(view), _nulls(view.child(0))
    if view.storage_type == "fixed_size_list":
        fixed = c_schema_view(kind).fixed_size
        good = np.full(view.length, fixed == features) if missing is None else ~missing & (fixed == features)
        starts = np.arange(view.length) * fixed
    else:
        offsets = np.asarray(view.buffer(1))[: view.length + 1]
        good = np.diff(offsets) == features if missing is None else ~missing & (np.diff(offsets) == features)
        starts = offsets[:-1]
    if good.all():
        first = starts[0] if len(starts) else 0
        inside = slice(first, first + view.length * features)
        shape = (len(good), features)
        return values[inside].reshape(shape), None, None if nulls is None else nulls[inside].reshape(shape)
    picked = starts[good, np.newaxis] + np.arange(features)
    x = np.zeros((len(good), features), values.dtype)
    x[good] = values[picked]
    if nulls is not None:
        among, nulls = nulls, np.zeros(x.shape, np.bool_)
        nulls[good] = among[picked]
    return x, ~good, nulls


def _together(masks: Sequence[tuple[Any, Mask | None]]) -> Mask | None:
    """Those of all parts, each with its shape; None as long as no part has one."""
    if all(mask is None for _, mask in masks):
        return None
    return np.concatenate([np.zeros(shape, np.bool_) if mask is None else mask for shape, mask in masks])


def _values(view: Any) -> NDArray[Any]:
    values: NDArray[Any] = np.asarray(view.buffer(1))[: view.length]
    if len(values) != view.length:
        raise ValueError("the buffer is too short")
    return values


def _nulls(view: Any) -> Mask | None:
    bits = np.asarray(view.buffer(0))
    if not len(bits):
        return None
    return ~np.unpackbits(bits.view(np.uint8), count=view.length, bitorder="little").view(np.bool_)


def _check_messages(body: bytes) -> None:
    """One schema, then record batches; each within the body, none with compressed buffers."""
    position, expected = 0, _SCHEMA
    while position < len(body):
        marker, length = struct.unpack_from("<Ii", body, position)
        if marker != 0xFFFFFFFF or length < 0:
            raise ValueError("not a message")
        position += 8
        if length == 0:  # the end of the stream
            return
        metadata = body[position : position + length]
        message = _i32(metadata, 0)
        kind, body_length = _member(metadata, message, 1), _member(metadata, message, 3)
        header = _member(metadata, message, 2)
        if kind is None or header is None or metadata[kind] != expected:
            raise ValueError("not the message that is due")
        expected = _RECORD_BATCH
        if metadata[kind] == _RECORD_BATCH and _member(metadata, header + _i32(metadata, header), 3) is not None:
            raise InvalidRecords(
                (None, "send the Arrow stream with uncompressed buffers; use Content-Encoding instead")
            )
        position += length + (0 if body_length is None else struct.unpack_from("<Q", metadata, body_length)[0])
        if position > len(body):
            raise ValueError("the message is longer than what came")


def _member(data: bytes, table: int, number: int) -> int | None:
    """Where a table of FlatBuffers has its member of that number, if it has it."""
    members = table - _i32(data, table)
    if 6 + 2 * number > struct.unpack_from("<H", data, members)[0]:
        return None
    offset = struct.unpack_from("<H", data, members + 4 + 2 * number)[0]
    return table + offset if offset else None


def _i32(data: bytes, position: int) -> int:
    return int(struct.unpack_from("<i", data, position)[0])
