"""Arrow IPC streams: `x` a list of d numbers (of fixed size or not), `y` a number, `unit` a text or a whole number; any
number of record batches.

They are read here, not by a library, for two reasons. Record batches become views of the body that copy nothing. And
every length and position in them comes from a stranger: here each is checked before it is used, where some damaged
schemas make nanoarrow 0.9 end the process. Data that would expand, or reserve more than came (compressed buffers, long
columns of nothing), is refused.

The format: https://arrow.apache.org/docs/format/Columnar.html, with `Message.fbs` and `Schema.fbs` there, whose members
are counted from 0; FlatBuffers: https://flatbuffers.dev/internals/.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from service.streams.batches.checks import (
    EMPTY,
    MAX_REASONS,
    Flaws,
    InvalidRecords,
    Mask,
    from_numbers,
    listed,
)
from service.streams.codec import Columns
from service.streams.layout import RecordLayout

_SCHEMA, _RECORD_BATCH = 1, 3  # kinds of messages
_INT, _FLOAT, _LIST, _FIXED_SIZE_LIST, _LARGE_LIST = 2, 3, 12, 16, 21  # kinds of types
_TEXT, _LARGE_TEXT = 5, 20
_KINDS = (
    *("none", "null", "int", "float", "binary", "utf8", "bool", "decimal", "date", "time", "timestamp", "interval"),
    *("list", "struct", "union", "fixed_size_binary", "fixed_size_list", "map", "duration", "large_binary"),
    *("large_utf8", "large_list", "run_end_encoded", "binary_view", "utf8_view", "list_view", "large_list_view"),
)
_DICTIONARY = 4  # the member of a column that only points into one
_BYTE, _FLOATS = np.dtype("u1"), [np.dtype(f"<f{size}") for size in (2, 4, 8)]
_OFFSETS: dict[int, np.dtype[Any]] = {_LIST: np.dtype("<i4"), _LARGE_LIST: np.dtype("<i8")}
_TEXT_OFFSETS: dict[int, np.dtype[Any]] = {_TEXT: np.dtype("<i4"), _LARGE_TEXT: np.dtype("<i8")}

LONGEST_KEPT = 2**12  # bytes: parsed metadata of at most this length is cached

_NOT_ARROW = "the body is not an Arrow IPC stream"


@dataclass(frozen=True)
class _Column:
    """The encoding of one column in record batches: the type of its numbers, and its offsets or width."""

    name: str
    numbers: np.dtype[Any]
    offsets: np.dtype[Any] | None = None  # the type of offsets, for texts and for lists of varying length
    width: int | None = None  # the length of each list, for lists of fixed length
    texts: bool = False

    @property
    def arrays(self) -> int:
        """Return the number of its arrays: itself, and the numbers in its lists."""
        return 1 if self.texts or (self.offsets is None and self.width is None) else 2

    @property
    def buffers(self) -> int:
        return 2 * self.arrays - (self.width is not None) + self.texts


class _Layout(NamedTuple):
    """A schema's columns in their order, and the number of arrays and buffers in each record batch."""

    columns: tuple[_Column, ...]
    arrays: int
    buffers: int


class _Message(NamedTuple):
    """The metadata of a message; for a record batch, also the positions of its arrays and buffers."""

    kind: int
    size: int  # in bytes, of its buffers
    length: int = 0
    arrays: tuple[tuple[int, int], ...] = ()  # length, nulls
    buffers: tuple[tuple[int, int], ...] = ()  # offset, size


class _Part(NamedTuple):
    """A decoded column, with masks of the rows that are missing or of the wrong length (None: no row)."""

    numbers: NDArray[Any]  # records, or records × features
    wrong: Mask | None  # rows of another length
    nulls: Mask | None  # in the shape of `numbers`


def read_arrow(body: bytes, layout: RecordLayout) -> Columns:
    """Return the records of a batch. Raises InvalidRecords."""
    names = layout.column_names
    if layout.reads_text:
        raise InvalidRecords((None, "texts are read from JSON and NDJSON only"))
    try:
        batches = list(_record_batches(body, tuple(names), layout.features))
    except (struct.error, ValueError):
        raise InvalidRecords((None, _NOT_ARROW)) from None
    if not any(len(part.numbers) for batch in batches for part in batch.values()):
        raise InvalidRecords((None, EMPTY))
    columns = {name: _joined([batch[name] for batch in batches]) for name in names}
    units = _ids(columns.pop("unit")) if layout.units else None
    flaws = {name: column.nulls for name, column in columns.items()}
    if "x" in columns:
        flaws["rows"] = columns["x"].wrong
    return from_numbers({name: column.numbers for name, column in columns.items()}, layout, Flaws(**flaws), units)


def _ids(units: _Part) -> list[Any]:
    """Return the ids of units, None where they are null."""
    ids: list[Any] = units.numbers.tolist()
    if units.nulls is not None:
        for row in np.flatnonzero(units.nulls):
            ids[row] = None
    return ids


def _joined(parts: Sequence[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    return _Part(
        np.concatenate([part.numbers for part in parts]),
        _together([(len(part.numbers), part.wrong) for part in parts]),
        _together([(part.numbers.shape, part.nulls) for part in parts]),
    )


def _together(masks: Sequence[tuple[Any, Mask | None]]) -> Mask | None:
    """Return the masks of all parts, each with its shape, as one; None if no part has a mask."""
    if all(mask is None for _, mask in masks):
        return None
    return np.concatenate([np.zeros(shape, np.bool_) if mask is None else mask for shape, mask in masks])


def _record_batches(body: bytes, names: tuple[str, ...], features: int) -> Iterator[dict[str, _Part]]:
    """Yield each record batch as columns by name. The stream has one schema, first, and ends with the body."""
    layout: _Layout | None = None
    position = 0
    while position < len(body):
        marker, length = struct.unpack_from("<Ii", body, position)
        if marker != 0xFFFFFFFF or length < 0:
            raise ValueError("not a message")
        if length == 0 and layout:  # the end of the stream
            if position + 8 < len(body):  # their sender would otherwise believe that they are stored
                raise InvalidRecords((None, "bytes follow the end of the Arrow stream: send each stream by itself"))
            return
        start = position + 8 + length  # the position of the message's buffers
        metadata = body[position + 8 : start]
        is_cached = length <= LONGEST_KEPT
        message = (_message if is_cached else _message.__wrapped__)(metadata)
        position = start + message.size
        if position > len(body) or message.kind != (_RECORD_BATCH if layout else _SCHEMA):
            raise ValueError("an unexpected or incomplete message")
        if layout:
            batch = _RecordBatch(message, memoryview(body)[start:position], layout)
            yield {column.name: batch.next(column, features) for column in layout.columns}
        else:
            layout = (_layout if is_cached else _layout.__wrapped__)(metadata, names)
    if not layout:
        raise ValueError("no schema came")


@lru_cache(maxsize=256)  # equal batches have equal messages, and a client sends many
def _message(metadata: bytes) -> _Message:
    """Return the metadata of a message. For a schema it is only the kind: the columns depend on the reader."""
    message = _root(metadata)
    kind, size = message.number(1, "B"), message.number(3, "Q")
    if kind != _RECORD_BATCH:
        return _Message(kind, size)
    table = message.table(2)
    if table.has(3):
        raise InvalidRecords((None, "send the Arrow stream with uncompressed buffers; use Content-Encoding instead"))
    return _Message(kind, size, table.number(0, "q"), table.pairs(1), table.pairs(2))


@lru_cache(maxsize=256)  # a client always sends the same one
def _layout(metadata: bytes, names: tuple[str, ...]) -> _Layout:
    """Return the columns that a schema's message says there are, in their order."""
    schema = _root(metadata).table(2)
    columns = {field.text(0): field for field in schema.tables(1, len(names))}
    if sorted(columns) != list(names):
        raise InvalidRecords((None, f"the columns must be {listed(names)} and nothing else"))
    if schema.number(0, "h"):
        raise InvalidRecords((None, "send the Arrow stream in little-endian byte order"))
    read = {"x": _rows_of_numbers, "y": _number, "unit": _unit}
    layout = tuple(read[name](field) for name, field in columns.items())
    return _Layout(layout, sum(column.arrays for column in layout), sum(column.buffers for column in layout))


def _rows_of_numbers(field: "_Table") -> _Column:
    kind, items = field.number(2, "B"), field.tables(5, 1)
    lists = kind in {*_OFFSETS, _FIXED_SIZE_LIST} and not field.has(_DICTIONARY)
    numbers = _type(items[0]) if items and lists else None
    width = field.table(3).number(0, "i") if kind == _FIXED_SIZE_LIST else None
    if numbers is None or (width is not None and width <= 0):
        raise _wrong_type(field, "lists (list, large_list or fixed_size_list) of integers or floats")
    return _Column("x", numbers, _OFFSETS.get(kind), width)


def _number(field: "_Table") -> _Column:
    numbers = _type(field)
    if numbers is None:
        raise _wrong_type(field, "integers or floats")
    return _Column("y", numbers)


def _unit(field: "_Table") -> _Column:
    kind = field.number(2, "B")
    if kind in _TEXT_OFFSETS and not field.has(_DICTIONARY):
        return _Column("unit", _BYTE, _TEXT_OFFSETS[kind], texts=True)
    numbers = _type(field)
    if numbers is None or numbers.kind == "f":
        raise _wrong_type(field, "texts (utf8 or large_utf8) or integers")
    return _Column("unit", numbers)


def _wrong_type(field: "_Table", wanted: str) -> InvalidRecords:
    """Return the refusal of a column that is not of the types that are wanted."""
    return InvalidRecords((None, f'"{field.text(0)}" must be a column of {wanted}, but is of type {_described(field)}'))


def _described(field: "_Table") -> str:
    lists = field.number(2, "B") in {*_OFFSETS, _FIXED_SIZE_LIST}
    name = _kind_name(field)
    if field.has(_DICTIONARY):
        return f"dictionary of {name}"
    items = field.tables(5, 1) if lists else []
    return f"{name} of {_kind_name(items[0])}" if items else name


def _kind_name(field: "_Table") -> str:
    kind = field.number(2, "B")
    return _KINDS[kind] if kind < len(_KINDS) else "unknown"


def _type(field: "_Table") -> np.dtype[Any] | None:
    """Return the type of its numbers, if it has any and has them in place."""
    kind = field.number(2, "B")
    if kind not in {_INT, _FLOAT} or field.has(_DICTIONARY):
        return None
    parameter = field.table(3).number(0, "i" if kind == _INT else "h")
    if kind == _FLOAT:
        return _FLOATS[parameter] if 0 <= parameter < len(_FLOATS) else None
    sign = "i" if field.table(3).number(1, "B") else "u"
    return np.dtype(f"<{sign}{parameter // 8}") if parameter in {8, 16, 32, 64} else None


class _RecordBatch:
    """A reader of one record batch, whose columns are taken in order."""

    def __init__(self, message: _Message, body: memoryview, layout: _Layout) -> None:
        if (len(message.arrays), len(message.buffers)) != (layout.arrays, layout.buffers):
            raise ValueError("a record batch of another schema")
        self._body, self._length = body, message.length
        self._arrays, self._buffers = iter(message.arrays), iter(message.buffers)

    def next(self, column: _Column, features: int) -> _Part:
        """Return the next column, with `features` numbers a row if it has lists."""
        length, missing = self._next_nulls()
        if length != self._length:
            raise ValueError("a column is not as long as the record batch")
        if column.texts:
            return _Part(self._next_texts(column, length), None, missing)
        if column.offsets is None and column.width is None:
            return _Part(self._next_buffer(column.numbers, length), None, missing)
        ends = self._next_buffer(column.offsets, length + 1 if length else 0) if column.offsets else None
        within, nulls = self._next_nulls()
        numbers = self._next_buffer(column.numbers, within)
        if ends is not None and length:
            if ends[0] < 0 or ends[-1] > within or (ends[1:] < ends[:-1]).any():
                raise ValueError("lists are not within the numbers")
            starts, right = ends[:-1], np.diff(ends) == features
        else:
            width = column.width or 0
            if length * width > within:
                raise ValueError("lists are not within the numbers")
            if width == features and missing is None:  # the common case
                return _whole_rows(numbers, nulls, 0, length, features)
            starts, right = np.arange(length) * width, np.full(length, width == features)
        return _rows(numbers, nulls, starts, right if missing is None else right & ~missing, features)

    def _next_texts(self, column: _Column, length: int) -> NDArray[Any]:
        """Return an array of texts; None where the bytes are not UTF-8."""
        ends = self._next_buffer(cast("np.dtype[Any]", column.offsets), length + 1 if length else 0)
        where = next(self._buffers)
        joined = self._view(where, _BYTE, where[1]).tobytes()
        if length and (ends[0] < 0 or ends[-1] > len(joined) or (ends[1:] < ends[:-1]).any()):
            raise ValueError("texts are not within the bytes")
        return np.array([_text(joined[low:high]) for low, high in pairwise(ends.tolist())], dtype=np.object_)

    def _next_nulls(self) -> tuple[int, Mask | None]:
        """Return the length of the next array, and the mask of its nulls."""
        length, _ = next(self._arrays)
        if length < 0:
            raise ValueError("an array cannot be shorter than empty")
        where = next(self._buffers)
        if not where[1]:  # Arrow may omit the bitmap if no value is null
            return length, None
        bits = self._view(where, _BYTE, (length + 7) // 8)
        return length, ~np.unpackbits(bits, count=length, bitorder="little").view(np.bool_)

    def _next_buffer(self, kind: np.dtype[Any], count: int) -> NDArray[Any]:
        return self._view(next(self._buffers), kind, count)

    def _view(self, where: tuple[int, int], kind: np.dtype[Any], count: int) -> NDArray[Any]:
        """Return a view of a buffer's first numbers."""
        offset, size = where
        if not 0 <= offset <= offset + size <= len(self._body) or not 0 <= count * kind.itemsize <= size:
            raise ValueError("a buffer is too short, or not within the body")
        return np.frombuffer(self._body, kind, count, offset)


def _text(encoded: bytes) -> str | None:
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return None


def _rows(numbers: NDArray[Any], nulls: Mask | None, starts: NDArray[Any], right: Mask, features: int) -> _Part:
    """Return rows of that many numbers; zeros where the length is not right."""
    if right.all():
        return _whole_rows(numbers, nulls, starts[0] if len(starts) else 0, len(right), features)
    wrong = np.flatnonzero(~right)
    if len(wrong) > MAX_REASONS:  # errors name no more rows; empty rows must not take the memory of whole ones
        starts, right = starts[: wrong[MAX_REASONS]], right[: wrong[MAX_REASONS]]
    picked = starts[right, np.newaxis] + np.arange(features)
    x = np.zeros((len(right), features), numbers.dtype)
    x[right] = numbers[picked]
    if nulls is not None:
        among, nulls = nulls, np.zeros(x.shape, np.bool_)
        nulls[right] = among[picked]
    return _Part(x, ~right, nulls)


def _whole_rows(numbers: NDArray[Any], nulls: Mask | None, first: int, count: int, features: int) -> _Part:
    """Return rows that follow each other, copying none."""
    inside, shape = slice(first, first + count * features), (count, features)
    return _Part(numbers[inside].reshape(shape), None, None if nulls is None else nulls[inside].reshape(shape))


class _Table:
    """A table of FlatBuffers, whose members are found by number. An offset out of the data raises struct.error."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position
        self._members = position - _read("i", data, position)
        self._size = _read("H", data, self._members)

    def has(self, member: int) -> bool:
        return self._where(member) is not None

    def number(self, member: int, kind: str) -> int:
        """Return a number of a kind that `struct` knows; absent ones are 0."""
        where = self._where(member)
        return 0 if where is None else _read(kind, self._data, where)

    def table(self, member: int) -> "_Table":
        return _Table(self._data, self._target(member))

    def tables(self, member: int, count: int) -> list["_Table"]:
        """Return a vector of tables; () if their number is another."""
        if not self.has(member):
            return []
        vector = self._target(member)
        if _read("I", self._data, vector) != count:
            return []
        offsets = struct.unpack_from(f"<{count}I", self._data, vector + 4)
        return [_Table(self._data, vector + 4 * index + offset) for index, offset in enumerate(offsets, start=1)]

    def pairs(self, member: int) -> tuple[tuple[int, int], ...]:
        """Return a vector of structs of two 64-bit numbers."""
        vector = self._target(member)
        start = vector + 4
        end = start + 16 * _read("I", self._data, vector)
        if end > len(self._data):
            raise ValueError("a vector points out of the data")
        return tuple(struct.iter_unpack("<2q", self._data[start:end]))

    def text(self, member: int) -> str:
        where = self._target(member)
        return self._data[where + 4 : where + 4 + _read("I", self._data, where)].decode()

    def _where(self, member: int) -> int | None:
        if 6 + 2 * member > self._size:
            return None
        offset = _read("H", self._data, self._members + 4 + 2 * member)
        return self._position + offset if offset else None

    def _target(self, member: int) -> int:
        where = self._where(member)
        if where is None:
            raise ValueError("something is missing")
        return where + _read("I", self._data, where)


def _root(data: bytes) -> _Table:
    return _Table(data, _read("I", data, 0))


def _read(kind: str, data: bytes, position: int) -> int:
    number: int = struct.unpack_from(f"<{kind}", data, position)[0]
    return number
