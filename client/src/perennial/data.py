"""Records as people have them (frames, arrays, Arrow tables, rows, iterators of those) as blocks of numpy arrays.

No error repeats a value: it names the column, and the row by its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial.arrow_tables import NO_TABLE, SAME_NAME, as_numpy, columns_of
from perennial.errors import InvalidData, InvalidRow
from perennial.masks import is_missing, unmasked
from perennial.names import UNNAMED, Names, listed
from perennial.rows import NO_COLUMNS, Choice, Row, depth, has_names, is_row, named, read_row, texts_beside_numbers
from perennial.units import ids_of

Array: TypeAlias = NDArray[Any]
ROWS_GATHERED = 10_000
_LABELS = "The labels"
_NUMBERS = "biuf"  # kinds of numpy's dtypes
_MIXED = "some values are texts, and others numbers or missing: give one or the other."
_SEPARATORS = {";": "semicolons", "\t": "tabs"}
_OTHERS_HAVE_NONE = "Some records have features, a label or a unit, and others have none."


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """A block of records: features, labels and units as arrays.

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

    def copied(self) -> Block:
        """Return the block with copies of its arrays."""
        x, y, unit = (None if column is None else column.copy() for column in (self.x, self.y, self.unit))
        return Block(x=x, y=y, unit=unit)

    @property
    def has_texts(self) -> bool:
        """Return whether x holds texts."""
        return self.x is not None and self.x.dtype.kind == "O"


def joined(first: Block, second: Block) -> Block:
    """Return the records of both blocks as one. Raises InvalidData where their columns or types differ."""
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
        label: the column of labels, by its name, or its number in a frame whose columns have numbers; or the labels, an
            array of shape (m,). None: there are none, or they are in the pairs.
        features: the names of the columns of features, in their order; default all but the label's and the unit's.
        names: the stream's, which put columns in order by their names, and make numbers of labels that are texts.
        unit: the name of the column of units; or their ids, an array of shape (m,), for which all of `data` is read
            first. None: there are none.
    """
    choice = Choice(
        label=_name(label),
        unit=_name(unit),
        features=None if features is None else listed("features", features),
        names=names,
    )
    made = _blocks(data, label if choice.label is None else None, choice)
    made = (block for block in made if len(block))  # other dtypes do not tell whether they hold texts
    if unit is None or choice.unit is not None:
        yield from made
    else:
        ids, pieces = ids_of(unit), list(made)
        if len(ids) and not pieces:
            raise InvalidData(f"There are no records, but {len(ids)} ids of units.")
        if pieces:
            yield replace(reduce(joined, pieces), unit=ids)


def _name(column: Any) -> str | int | None:
    """Return the column's name, or its number in a frame with numbered columns; None if the values are given."""
    if isinstance(column, bool) or not isinstance(column, str | int | np.integer):
        return None
    return column if isinstance(column, str) else int(column)


def _blocks(data: Any, labels: Any, choice: Choice) -> Iterator[Block]:
    if labels is None and data is None:
        raise InvalidData("There are no records: give data, or labels.")
    whole = None if data is None else _whole(data, choice)
    if labels is not None:
        if data is not None and whole is None:
            whole = _of_rows(data, choice)
        x, ids = (None, None) if whole is None else (whole.x, whole.unit)
        yield Block(x=x, y=_labels(unmasked(labels, _LABELS), choice.names), unit=ids)
    elif whole is not None:
        yield whole
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        yield from _of_items(data, choice)
    else:
        raise InvalidData("Give a data frame, a table, arrays, or an iterable of those or of rows.")


def features_of(data: Any, width: int | None = None, names: Names = UNNAMED) -> Array:
    """Return (m, d) numbers or str objects from a data frame, a table, an array or a list of rows."""
    choice = Choice(names=names, advice="such as the label's")
    block = _whole(data, choice)
    block = _of_rows(data, choice) if block is None else block
    x = _features(data) if block.x is None else block.x
    if width is not None and x.shape[1] != width:
        more = ": leave out what is none, such as the label" if x.shape[1] > width else ""
        if x.shape == (width, 1):
            more = ": give a single record as a list of one row"
        raise InvalidData(f"The model takes {width} features, but there are {x.shape[1]}{more}.")
    return x


def _whole(data: Any, choice: Choice) -> Block | None:
    """Return all records of data that is one table or array; None for an iterable."""
    data = as_numpy(data, "The records") if hasattr(data, "nnz") else data  # `as_numpy` refuses sparse matrices
    columns = _columns(data)
    if columns is not None:
        _check_index(data, choice, columns)
        return _from_columns(columns, choice)
    pair = isinstance(data, tuple) and len(data) == 2 and depth(data[0]) == 2
    if not pair and not isinstance(data, np.ndarray):
        return None
    if not choice.is_of_all:
        raise InvalidData(NO_COLUMNS)
    if not pair:
        return Block(x=_features(data), y=None)
    columns = _columns(data[0])
    x = _features(data[0]) if columns is None else _from_columns(columns, choice).x
    return Block(x=x, y=_labels(unmasked(data[1], _LABELS), choice.names))


def _of_rows(rows: Any, choice: Choice) -> Block:
    """Return the features of a list of rows."""
    if isinstance(rows, Mapping):
        raise InvalidData("A single row is no table: give a list of rows, such as [row].")
    if isinstance(rows, list | tuple) and rows and has_names(named(rows[0])):
        return reduce(joined, _of_items(map(named, rows), choice))
    if not choice.is_of_all:
        raise InvalidData(NO_COLUMNS)
    return Block(x=_features(rows), y=None)


def _columns(data: Any) -> dict[str, Any] | None:
    """Return the columns of a frame, a table or a mapping by name; None of anything else."""
    if isinstance(data, Mapping):
        return dict(data) if data and all(depth(value) for value in data.values()) else None
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        names = list(data.columns)
        if len(set(names)) < len(names):
            raise InvalidData(SAME_NAME)
        return {name: as_numpy(data[name], f"Column {name!r}") for name in names}
    if hasattr(data, "__arrow_c_stream__") and hasattr(data, "to_numpy"):
        raise InvalidData(NO_TABLE)
    if hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__next__"):
        return columns_of(data)
    return None


def _from_columns(columns: dict[str, Any], choice: Choice) -> Block:
    label, unit = choice.label, choice.unit
    _check_there([name for name in (label, unit) if name is not None], columns)
    names = choice.chosen(columns)
    _check_there(names, columns)
    place = f"Column {label!r}"
    y = None if label is None else _labels(unmasked(columns[label], place), choice.names, place)
    ids = None if unit is None else ids_of(columns[unit], f"Column {unit!r}")
    if not names:
        return Block(x=None, y=y, unit=ids)
    values = [_column(columns[name], f"Column {name!r}") for name in names]
    by_kind = {column.dtype.kind == "O": (name, column) for name, column in zip(names, values, strict=True)}
    if len(by_kind) > 1:
        raise texts_beside_numbers(*by_kind[True], by_kind[False][0])
    x = values[0] if len(values) == 1 and values[0].ndim == 2 else _beside(values, names)
    return Block(x=x, y=y, unit=ids)


def _check_index(data: Any, choice: Choice, columns: dict[str, Any]) -> None:
    """Raise InvalidData where a frame has the label or the unit in its index, which pandas counts as no column."""
    index = [name for name in getattr(getattr(data, "index", None), "names", ()) if name is not None]
    for name in (choice.label, choice.unit):
        if name not in columns and name in index:
            raise InvalidData(f"{name!r} is the frame's index, and no column: give frame.reset_index().")


def _check_there(names: list[str], columns: dict[str, Any]) -> None:
    for name in names:
        if name not in columns:
            instead = ""
            for separator, called in _SEPARATORS.items():
                if len(columns) == 1 and separator in str(next(iter(columns))):
                    instead = f", but one with {called} in its name: put commas between values, or read the file with "
                    instead += f"sep={separator!r}"
            raise InvalidData(f"There is no column {name!r}{instead}.")


def _beside(values: list[Array], names: list[str]) -> Array:
    for name, column in zip(names, values, strict=True):
        if column.ndim != 1:
            raise InvalidData(f"Column {name!r} holds lists; only a single column of features may.")
        if len(column) != len(values[0]):
            raise InvalidData(f"Column {names[0]!r} has {len(values[0])} rows, and column {name!r} has {len(column)}.")
    return np.column_stack(values)


def _column(values: Any, place: str) -> Array:
    """Return (m,), or (m, d) of a column of lists: numbers, or str objects."""
    array = _as_array(values, place)
    if array.dtype.kind == "O" and len(array) and isinstance(array[0], list | tuple | np.ndarray):
        array = _as_array(list(array), place)
    return _checked(array, place)


def _features(data: Any) -> Array:
    """Return (m, d) of an array or a list of rows; a plain list of m values is one column."""
    rows = list(data) if isinstance(data, np.ndarray) and data.dtype.kind == "O" else data
    x = _checked(_as_array(rows, "The features"), "The features")
    if x.ndim == 1:
        x = x[:, None]
    if x.ndim != 2:
        raise InvalidData("The features must be an array of shape (records, features).")
    return x


def _labels(values: Any, names: Names, place: str = "The labels") -> Array:
    y = _checked(np.asarray(as_numpy(values, place)), place)
    if y.ndim == 1 and y.dtype.kind == "O" and names.classes:
        return names.numbers(y, place)
    if y.dtype.kind != "O" and y.size:
        names.check_numbers(place)
    if y.ndim == 0 or y.dtype.kind == "O":
        raise InvalidData(
            f"{place}: give numbers, of classes 0, 1, …, or of a regression its values; only a stream with class_names "
            "takes texts."
        )
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InvalidData(f"{place}: there must be one number for each record.")
    return y


def _as_array(values: Any, place: str) -> Array:
    """Return an array; of texts, str objects. Raises InvalidData where numpy would make texts of a list's numbers."""
    plain = as_numpy(unmasked(values, place), place)
    try:
        array = np.asarray(plain)
        if array.dtype.kind != "U" or isinstance(plain, np.ndarray):
            return array
        array = np.asarray(plain, dtype=object)
    except ValueError:
        raise InvalidData(f"{place}: rows have different lengths.") from None
    if not all(isinstance(value, str) for value in array.flat):
        raise InvalidData(f"{place}: {_MIXED}")
    return array


def _checked(array: Array, place: str) -> Array:
    """Return the array as finite numbers or str objects."""
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind in "UT":
        return array.astype(object)
    if array.dtype.kind == "O":
        if array.size and all(isinstance(value, str) for value in array.flat):
            return array
        try:
            array = array.astype(np.float64)
        except (OverflowError, TypeError, ValueError):
            raise _unfit(np.atleast_1d(array), place) from None
    if array.dtype.kind not in _NUMBERS:
        raise InvalidData(f"{place}: values of type {array.dtype} are neither numbers nor texts.")
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(array.astype(np.float32, copy=False))
    if not finite.all():
        raise InvalidRow(place, int(np.argwhere(~np.atleast_1d(finite))[0][0]))
    return array


def _unfit(values: Array, place: str) -> InvalidData:
    """Return what is wrong with values that are neither numbers nor texts."""
    for row, cell in enumerate(values):
        if any(is_missing(value) or _overflows(value) for value in (cell.flat if values.ndim > 1 else (cell,))):
            return InvalidRow(place, row)
    if any(isinstance(value, str) for value in values.flat):
        return InvalidData(f"{place}: {_MIXED}")
    kind = next((type(value).__name__ for value in values.flat if not isinstance(value, Real)), "unknown")
    return InvalidData(f"{place}: values of type {kind} are neither numbers nor texts.")


def _overflows(value: Any) -> bool:
    try:
        float(value)
    except OverflowError:
        return True
    except (TypeError, ValueError):
        pass
    return False


def _of_items(items: Iterable[Any], choice: Choice) -> Iterator[Block]:
    """Yield the blocks of an iterable's items; single rows are gathered into blocks."""
    before = 0
    made = _blocks_or_rows(items, choice)
    while True:
        try:
            block = next(made, None)
        except InvalidRow as wrong:
            raise wrong.after(before) from None
        if block is None:
            return
        before += len(block)
        yield block


def _blocks_or_rows(items: Iterable[Any], choice: Choice) -> Iterator[Block]:
    """Yield blocks, and rows gathered to blocks.

    Rows, arrays and frames are copied, since an iterable may fill one again and again. Arrow's tables never change, and
    are not copied.
    """
    rows: list[Row] = []
    for item in items:
        try:
            whole = None if is_row(item) else _whole(item, choice)
            row = read_row(item, choice) if whole is None else None
        except InvalidRow as wrong:
            raise wrong.after(len(rows)) from None
        if row is not None:
            x, y, unit = row
            rows.append((_own(x), copy(y), unit))
        if rows and (whole is not None or len(rows) >= ROWS_GATHERED):
            yield _gathered(rows, choice.names)
            rows = []
        if whole is not None:
            is_frame = hasattr(item, "to_numpy")
            yield whole if hasattr(item, "__arrow_c_stream__") and not is_frame else whole.copied()
    if rows:
        yield _gathered(rows, choice.names)


def _own(x: Any) -> Any:
    """Return a copy of a row's features: an array with its mask, any other row as a list."""
    if x is None or isinstance(x, np.ndarray):
        return copy(x)
    return np.array(x) if hasattr(x, "__array__") else list(x)


def _gathered(rows: list[Row], names: Names) -> Block:
    columns = [list(column) for column in zip(*rows, strict=True)]
    for column in columns:
        if 0 < sum(value is None for value in column) < len(column):
            raise InvalidData(_OTHERS_HAVE_NONE)
    x, y, unit = (None if column[0] is None else column for column in columns)
    return Block(
        x=None if x is None else _features(x),
        y=None if y is None else _labels(y, names),
        unit=None if unit is None else ids_of(_as_objects(unit)),
    )


def _as_objects(values: list[Any]) -> Array:
    """Return an object array (m,), since numpy would turn whole numbers beside texts into texts."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
