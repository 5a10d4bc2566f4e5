"""Records as people have them (frames, arrays, Arrow tables, rows, iterators of those) as blocks of numpy arrays.

No error repeats a value: it names the column, and the row by its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial.arrow_tables import SAME_NAME, columns_of
from perennial.errors import InvalidData, InvalidRow
from perennial.names import UNNAMED, Names
from perennial.units import ids_of

Array: TypeAlias = NDArray[Any]
ROWS_GATHERED = 10_000
_NUMBERS = "biuf"  # numpy's kinds
_NO_COLUMNS = "An array has no columns: give labels and units as arrays, and only the features wanted."
_OTHERS_HAVE_NONE = "Some records have features, a label or a unit, and others have none."


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """Which columns are read: `label` of labels, `unit` of units, `features` of features; None: none, all others.

    And the stream's names.
    """

    label: str | None = None
    unit: str | None = None
    features: list[str] | None = None
    names: Names = UNNAMED

    def chosen(self, columns: Iterable[Any]) -> list[Any]:
        """Return the columns of features in their order."""
        others = (
            [name for name in columns if name not in (self.label, self.unit)]
            if self.features is None
            else self.features
        )
        return self.names.ordered(others)


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """Some records.

    x: (m, d), numbers or str objects; None on categorical streams. y: (m,), or None without labels. unit: (m,), texts
    and whole numbers, or None without units.
    """

    x: Array | None
    y: Array | None
    unit: Array | None = None

    def __post_init__(self) -> None:
        if self.x is None and self.y is None:
            raise InvalidData("There is neither a feature nor a label: name the label's column, or give labels.")
        if self.x is not None and self.y is not None and len(self.x) != len(self.y):
            raise InvalidData(f"There are {len(self.x)} rows of features and {len(self.y)} labels.")
        if self.unit is not None and len(self.unit) != len(self):
            raise InvalidData(f"There are {len(self)} records and {len(self.unit)} ids of units.")

    def __len__(self) -> int:
        return len(self.y if self.x is None else self.x)  # type: ignore[arg-type] # one of them is an array

    def __getitem__(self, rows: slice) -> Block:
        x, y, unit = (None if column is None else column[rows] for column in (self.x, self.y, self.unit))
        return Block(x=x, y=y, unit=unit)

    @property
    def has_texts(self) -> bool:
        """Whether x holds texts."""
        return self.x is not None and self.x.dtype.kind == "O"


def joined(first: Block, second: Block) -> Block:
    """Return the records of both. Raises InvalidData where they are not alike."""
    if first.has_texts != second.has_texts:
        raise InvalidData("Some records hold texts and others numbers: a stream takes one or the other.")
    return Block(
        x=_one_after_the_other(first.x, second.x),
        y=_one_after_the_other(first.y, second.y),
        unit=_one_after_the_other(first.unit, second.unit),
    )


def _one_after_the_other(first: Array | None, second: Array | None) -> Array | None:
    if first is None and second is None:
        return None
    if first is None or second is None:
        raise InvalidData(_OTHERS_HAVE_NONE)
    if first.shape[1:] != second.shape[1:]:
        raise InvalidData("Some records have more features than others.")
    return np.concatenate((first, second))


def blocks(
    data: Any, label: Any = None, features: Iterable[str] | None = None, names: Names = UNNAMED, unit: Any = None
) -> Iterator[Block]:
    """Yield the records of `data`, in order.

    Args:
        data: a data frame, an Arrow table, a mapping of columns, an array of shape (m, d), a pair (x, y) of arrays, or
            an iterable of those, or of rows: mappings, pairs (row, label), or plain rows. None: there are only labels.
        label: the name of the column of labels; or the labels, an array of shape (m,). None: there are none, or they
            are in the pairs.
        features: the names of the columns of features, in their order; default all but the label's and the unit's.
        names: the stream's, which put columns in order by their names, and make numbers of labels that are texts.
        unit: the name of the column of units; or their ids, an array of shape (m,), for which all of `data` is read
            first. None: there are none.
    """
    choice = _Choice(
        label=label if isinstance(label, str) else None,
        unit=unit if isinstance(unit, str) else None,
        features=None if features is None else list(features),
        names=names,
    )
    made = _blocks(data, None if isinstance(label, str) else label, choice)
    if unit is None or isinstance(unit, str):
        yield from made
    else:
        ids, pieces = ids_of(unit), list(made)
        if len(ids) and not pieces:
            raise InvalidData(f"There are no records, but {len(ids)} ids of units.")
        if pieces:
            yield replace(reduce(joined, pieces), unit=ids)


def _blocks(data: Any, labels: Any, choice: _Choice) -> Iterator[Block]:
    if labels is None and data is None:
        raise InvalidData("There are no records: give data, or labels.")
    whole = None if data is None else _whole(data, choice)
    if labels is not None:
        if data is not None and whole is None:
            if choice.unit is not None:
                raise InvalidData(_NO_COLUMNS)
            whole = Block(x=_features(data), y=None)
        x, ids = (None, None) if whole is None else (whole.x, whole.unit)
        yield Block(x=x, y=_labels(labels, choice.names), unit=ids)
    elif whole is not None:
        yield whole
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        yield from _of_items(data, choice)
    else:
        raise InvalidData("Give a data frame, a table, arrays, or an iterable of those or of rows.")


def features_of(data: Any, width: int | None = None, names: Names = UNNAMED) -> Array:
    """Return (m, d) numbers or str objects from a data frame, a table, an array or a list of rows."""
    block = _whole(data, _Choice(names=names))
    x = _features(data) if block is None or block.x is None else block.x
    if width is not None and x.shape[1] != width:
        raise InvalidData(f"The model takes {width} features, but there are {x.shape[1]}.")
    return x


def _whole(data: Any, choice: _Choice) -> Block | None:
    """Return all records of data that is one piece; None if it is none."""
    columns = _columns(data)
    if columns is not None:
        return _from_columns(columns, choice)
    pair = isinstance(data, tuple) and len(data) == 2 and _depth(data[0]) == 2
    if not pair and not isinstance(data, np.ndarray):
        return None
    if any(each is not None for each in (choice.label, choice.unit, choice.features)):
        raise InvalidData(_NO_COLUMNS)
    return Block(x=_features(data[0]), y=_labels(data[1], choice.names)) if pair else Block(x=_features(data), y=None)


def _depth(value: Any) -> int:
    """Return how many dimensions a value has; of rows of different lengths, 2."""
    try:
        return np.ndim(value)
    except ValueError:
        return 2


def _columns(data: Any) -> dict[str, Any] | None:
    """Return the columns of a frame, a table or a mapping by name; None of anything else."""
    if isinstance(data, Mapping):
        return dict(data) if data and all(_depth(each) for each in data.values()) else None
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        names = list(data.columns)
        if len(set(names)) < len(names):
            raise InvalidData(SAME_NAME)
        return {name: data[name].to_numpy() for name in names}
    if hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__next__"):
        return columns_of(data)
    return None


def _from_columns(columns: dict[str, Any], choice: _Choice) -> Block:
    names, label, unit = choice.chosen(columns), choice.label, choice.unit
    for name in (*names, *(each for each in (label, unit) if each is not None)):
        if name not in columns:
            raise InvalidData(f"There is no column {name!r}.")
    y = None if label is None else _labels(columns[label], choice.names, f"Column {label!r}")
    ids = None if unit is None else ids_of(columns[unit], f"Column {unit!r}")
    if not names:
        return Block(x=None, y=y, unit=ids)
    values = [_column(columns[name], f"Column {name!r}") for name in names]
    if len({each.dtype.kind == "O" for each in values}) > 1:
        raise InvalidData("Some columns hold texts and others numbers: a stream takes one or the other.")
    x = values[0] if len(values) == 1 and values[0].ndim == 2 else _beside(values, names)
    return Block(x=x, y=y, unit=ids)


def _beside(values: list[Array], names: list[str]) -> Array:
    for name, each in zip(names, values, strict=True):
        if each.ndim != 1:
            raise InvalidData(f"Column {name!r} holds lists; only a single column of features may.")
    return np.column_stack(values)


def _column(values: Any, place: str) -> Array:
    """Return (m,), or (m, d) of a column of lists: numbers, or str objects."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise _ragged(place) from None
    if array.dtype.kind == "O" and len(array) and isinstance(array[0], list | tuple | np.ndarray):
        array = _stacked(array, place)
    return _checked(array, place)


def _features(data: Any) -> Array:
    """Return (m, d) of an array or a list of rows; a plain list of m values is one column."""
    x = _checked(_stacked(data, "The features"), "The features")
    if x.ndim == 1:
        x = x[:, None]
    if x.ndim != 2:
        raise InvalidData("The features must be an array of shape (records, features).")
    return x


def _labels(values: Any, names: Names, place: str = "The labels") -> Array:
    y = _checked(np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values), place)
    if y.ndim == 1 and y.dtype.kind == "O" and names.classes:
        return names.numbers(y, place)
    if y.dtype.kind != "O":
        names.check_numbers(place)
    if y.ndim == 0 or y.dtype.kind == "O":
        raise InvalidData(
            f"{place}: give numbers, of classes 0, 1, … as the stream's task says; only a stream with class_names "
            "takes texts."
        )
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InvalidData(f"{place}: there must be one number for each record.")
    return y


def _stacked(rows: Any, place: str) -> Array:
    try:
        return np.stack(list(rows)) if isinstance(rows, np.ndarray) and rows.dtype.kind == "O" else np.asarray(rows)
    except ValueError:
        raise _ragged(place) from None


def _ragged(place: str) -> InvalidData:
    return InvalidData(f"{place}: rows have different lengths.")


def _checked(array: Array, place: str) -> Array:
    """Return the array as finite numbers or str objects."""
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind in "UT":
        return array.astype(object)
    if array.dtype.kind == "O":
        if array.size and all(isinstance(each, str) for each in array.flat):
            return array
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise InvalidData(f"{place}: some values are neither numbers nor texts, or missing.") from None
    if array.dtype.kind not in _NUMBERS:
        raise InvalidData(f"{place}: values of type {array.dtype} are neither numbers nor texts.")
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(array.astype(np.float32, copy=False))
    if not finite.all():
        raise InvalidRow(place, int(np.argwhere(~finite)[0][0]))
    return array


def _of_items(items: Iterable[Any], choice: _Choice) -> Iterator[Block]:
    """Yield blocks as they come, and rows gathered to blocks."""
    before = 0
    made = _blocks_or_rows(items, choice)
    while True:
        try:
            block = next(made, None)
        except InvalidRow as wrong:
            raise InvalidRow(wrong.place, before + wrong.row, wrong.reason) from None
        if block is None:
            return
        before += len(block)
        yield block


def _blocks_or_rows(items: Iterable[Any], choice: _Choice) -> Iterator[Block]:
    rows: list[tuple[Any, Any, Any]] = []
    for item in items:
        whole = _whole(item, choice) if not _is_row(item) else None
        if whole is None:
            rows.append(_row(item, choice))
        if rows and (whole is not None or len(rows) >= ROWS_GATHERED):
            yield _gathered(rows, choice.names)
            rows = []
        if whole is not None:
            yield whole
    if rows:
        yield _gathered(rows, choice.names)


def _is_row(item: Any) -> bool:
    if isinstance(item, Mapping):
        return _is_record(item) or all(_depth(value) == 0 for value in item.values())
    return isinstance(item, np.ndarray) and item.ndim < 2


def _is_record(item: Mapping[str, Any]) -> bool:
    """Whether it is a record as the service's NDJSON has it."""
    by_name = isinstance(item.get("x"), Mapping)
    return (
        "x" in item
        and (by_name or _depth(item["x"]) == 1)
        and set(item) <= {"x", "y", "unit"}
        and _depth(item.get("y", 0)) == 0
        and _depth(item.get("unit", 0)) == 0
    )


def _row(item: Any, choice: _Choice) -> tuple[Any, Any, Any]:
    """Return a row's features, its label and its unit; None for what it has not."""
    if isinstance(item, Mapping):
        if _is_record(item):
            x = item["x"]
            x = [x[name] for name in choice.names.ordered(list(x))] if isinstance(x, Mapping) else x
            return x, item.get("y"), item.get("unit")
        wanted, others = choice.chosen(item), (choice.label, choice.unit)
        if any(name not in item for name in (*wanted, *others) if name is not None):
            raise InvalidData("A row lacks a column that the others have.")
        label, unit = (None if name is None else item[name] for name in others)
        return [item[name] for name in wanted] or None, label, unit
    if choice.unit is not None:
        raise InvalidData(_NO_COLUMNS)
    if isinstance(item, tuple) and len(item) == 2 and _depth(item[0]) == 1:
        return *item, None
    if _depth(item) == 1:
        return item, None, None
    raise InvalidData("A row must be a list of features, a pair of those and a label, or a mapping by column.")


def _gathered(rows: list[tuple[Any, Any, Any]], names: Names) -> Block:
    columns = [list(column) for column in zip(*rows, strict=True)]
    for column in columns:
        if 0 < sum(each is None for each in column) < len(column):
            raise InvalidData(_OTHERS_HAVE_NONE)
    x, y, unit = (None if column[0] is None else column for column in columns)
    return Block(
        x=None if x is None else _features(x),
        y=None if y is None else _labels(y, names),
        unit=None if unit is None else ids_of(_as_objects(unit)),
    )


def _as_objects(values: list[Any]) -> Array:
    """Return (m,): numpy would make texts of whole numbers that come with texts."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
