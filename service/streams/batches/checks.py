"""Checks of records in every format: vectorised for numbers, one by one where a value may not be a number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.streams.batches.named import in_order, wrong_class, wrong_columns
from service.streams.codec import Columns
from service.streams.feature_maps import MAX_CHARACTERS
from service.streams.layout import RecordLayout
from service.streams.names import Names
from service.streams.units import InvalidUnit, canonical

MAX_REASONS = 100
EMPTY = "a batch holds at least one record"

_MISSING = "is missing (null or NaN): fill it in with a public constant, or leave the whole record out"
_NOT_A_NUMBER = "is not a number"
_QUOTED = "is a text, not a number: write numbers without quotes"
_NOT_FINITE = "is not finite as a 32-bit float"
_PAST_FLOAT32 = 2.0**128 - 2.0**103  # doubles from this value on round to infinity as float32

_SQUARE_WITHIN_FLOAT32 = 2.0**254  # the square of 2^127
MAX_SQUARED = 2**13  # numbers: libraries sum the squares of more numbers in several threads
FEW_LABELS = 128  # a Python loop is faster for at most this many labels

Mask = NDArray[np.bool_]


class InvalidRecords(Exception):
    """Why a batch was refused: (row or None, reason) pairs."""

    def __init__(self, *reasons: tuple[int | None, str]) -> None:
        super().__init__("invalid records")
        self.reasons = reasons[:MAX_REASONS]


@dataclass(frozen=True, kw_only=True)
class Flaws:
    """The records with missing values or a wrong number of features, in a format that allows both."""

    rows: Mask | None = None  # x is no array of the right length
    x: Mask | None = None  # null, by row and column
    y: Mask | None = None


_NONE = Flaws()


def listed(names: Sequence[str]) -> str:
    *others, last = (f'"{name}"' for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def from_numbers(
    numbers: dict[str, NDArray[Any]], layout: RecordLayout, flaws: Flaws = _NONE, units: list[Any] | None = None
) -> Columns:
    """Return x as float32 (records × features), y as int32 (labels, categories) or float32, and unit as it is.

    Args:
        numbers: x and y, as the stream has them, of one length.
        layout: the stream's.
        flaws: where there is no number at all; what `numbers` holds there does not matter.
        units: the ids of the records' units, of a stream that has units.

    Raises:
        InvalidRecords: with a reason for each bad row, up to a hundred.
    """
    columns: Columns = {}
    reasons: list[tuple[int | None, str]] = [] if units is None else _wrong_units(units)
    if "x" in numbers:
        x = numbers["x"]
        if flaws.x is None and flaws.rows is None and _surely_finite(x):
            columns["x"] = x.astype(np.float32, copy=False)
        else:
            columns["x"] = x = _single(x)
            reasons += _wrong_rows(x, layout, flaws)
    if "y" in numbers:
        y, most = numbers["y"], layout.classes
        if (labels := None if flaws.y is not None else _labels(y, most)) is not None:
            columns["y"] = labels  # the common case
        else:
            single = _single(y)
            reasons += _wrong_labels(y, single, most, flaws)
            columns["y"] = single if most is None or reasons else y.astype(np.int32)
    if reasons:
        raise InvalidRecords(*sorted(reasons, key=lambda reason: reason[0] or 0))
    if not len(next(iter(columns.values()))):
        raise InvalidRecords((None, EMPTY))
    if units is not None:
        columns["unit"] = np.array(units, dtype=np.object_)
    return columns


def from_values(document: dict[str, list[Any]], layout: RecordLayout) -> Columns:
    """Return what `from_numbers` returns, from lists of JSON values: for texts and for batches with errors; slow.

    Texts stay texts: x is then an array of str objects (records × features).
    """
    texts, names = layout.reads_text, layout.names
    checks: dict[str, Callable[[Any], str | None]] = {
        "x": lambda row: _wrong_x(row, layout),
        "y": lambda value: _wrong_y(value, layout),
        "unit": _wrong_unit,
    }
    reasons: list[tuple[int | None, str]] = []
    for row, record in enumerate(zip(*document.values(), strict=True)):
        for name, value in zip(document, record, strict=True):
            if reason := checks[name](value):
                reasons.append((row, f"{name}: {reason}"))
        if len(reasons) >= MAX_REASONS:
            break
    if reasons:
        raise InvalidRecords(*reasons)
    units = document.get("unit")
    document = {
        name: [in_order(name, value, names) for value in values] for name, values in document.items() if name != "unit"
    }
    if texts:
        numbers = {"y": np.array(document["y"], dtype=np.float64)} if "y" in document else {}
        x = np.array(document["x"], dtype=np.object_).reshape(-1, layout.features)
        ids: Columns = {} if units is None else {"unit": np.array(units, dtype=np.object_)}
        return {"x": x} | (from_numbers(numbers, layout) if numbers else {}) | ids
    numbers = {name: np.array(values, dtype=np.float64) for name, values in document.items()}
    return from_numbers(numbers, layout, units=units)


def _wrong_units(units: Sequence[Any]) -> list[tuple[int | None, str]]:
    reasons: list[tuple[int | None, str]] = []
    for row, unit in enumerate(units):
        if (reason := _wrong_unit(unit)) is not None:
            reasons.append((row, f"unit: {reason}"))
            if len(reasons) == MAX_REASONS:
                break
    return reasons


def _wrong_unit(unit: Any) -> str | None:
    try:
        canonical(unit)
    except InvalidUnit as wrong:
        return str(wrong)
    return None


def _surely_finite(values: NDArray[Any]) -> bool:
    """Return whether all values are certain to be finite as 32-bit floats; False: it is not known.

    Σ v² is NaN or infinite if a value is, and else at least each v². A record of 32 features is checked and rounded in
    2 µs so, by looking at every value in 5 µs.
    """
    if values.dtype.kind != "f" or values.size > MAX_SQUARED:
        return False
    return float(np.vdot(values, values)) < _SQUARE_WITHIN_FLOAT32


def _wrong_rows(x: NDArray[np.float32], layout: RecordLayout, flaws: Flaws) -> list[tuple[int | None, str]]:
    finite = np.isfinite(x)
    if flaws.x is None and flaws.rows is None and finite.all():
        return []  # the common case; checking row by row takes ten times as long
    bad = ~finite if flaws.x is None else ~finite | flaws.x
    rows = bad.any(axis=1) if flaws.rows is None else bad.any(axis=1) | flaws.rows
    reasons: list[tuple[int | None, str]] = []
    for row in np.flatnonzero(rows)[:MAX_REASONS]:
        if flaws.rows is not None and flaws.rows[row]:
            reason = _not_a_row(layout.features)
        else:
            column = int(bad[row].argmax())
            missing = _at(flaws.x, row, column) or np.isnan(x[row, column])
            reason = f"{layout.names.column(column)} {_MISSING if missing else _NOT_FINITE}"
        reasons.append((int(row), f"x: {reason}"))
    return reasons


def _labels(y: NDArray[Any], most: int | None) -> NDArray[np.int32] | None:
    """Return y as int32, all below `most`; None if some value is not such a whole number."""
    if most is not None and 0 < len(y) <= FEW_LABELS:  # 2 µs, where arrays take 6
        whole = all(0 <= label < most and label == int(label) for label in set(y.tolist()))
        return y.astype(np.int32, copy=False) if whole else None
    if most is None or not len(y) or not 0 <= y.min() <= y.max() < most:
        return None
    labels = y.astype(np.int32, copy=False)
    return labels if y.dtype.kind in "iu" or (labels == y).all() else None


def _wrong_labels(
    y: NDArray[Any], single: NDArray[np.float32], most: int | None, flaws: Flaws
) -> list[tuple[int | None, str]]:
    bad = ~np.isfinite(single)
    if most is not None:
        bad |= ~((y == np.floor(y)) & (y >= 0) & (y < most))
    if flaws.y is not None:
        bad |= flaws.y
    if not bad.any():
        return []
    reasons: list[tuple[int | None, str]] = []
    for row in np.flatnonzero(bad)[:MAX_REASONS]:
        if _at(flaws.y, row) or np.isnan(single[row]):
            reason = _MISSING
        elif most is None or not np.isfinite(single[row]):
            reason = _NOT_FINITE
        else:
            reason = _not_a_class(most)
        reasons.append((int(row), f"y: {reason}"))
    return reasons


def _at(mask: Mask | None, *where: int) -> bool:
    return mask is not None and bool(mask[where])


def _wrong_x(row: Any, layout: RecordLayout) -> str | None:
    if isinstance(row, dict):
        if (reason := wrong_columns(row, layout.names)) is not None:
            return reason
        row = in_order("x", row, layout.names)
    wrong = _wrong_texts if layout.reads_text else _wrong_row
    return wrong(row, layout.features, layout.names)


def _wrong_row(row: Any, features: int, names: Names) -> str | None:
    if not isinstance(row, list) or len(row) != features:
        return _not_a_row(features)
    for column, value in enumerate(row):
        if (reason := _wrong_number(value)) is not None:
            return f"{names.column(column)} {reason}"
    return None


def _wrong_texts(row: Any, features: int, names: Names) -> str | None:
    if not isinstance(row, list) or len(row) != features:
        return f"must be an array of {features} text{'s' * (features > 1)}"
    for column, value in enumerate(row):
        if value is None:
            return f"{names.column(column)} {_MISSING}"
        if not isinstance(value, str):
            return f"{names.column(column)} is not a text"
        if len(value) > MAX_CHARACTERS:
            return f"{names.column(column)} is longer than {MAX_CHARACTERS} characters"
    return None


def _wrong_y(value: Any, layout: RecordLayout) -> str | None:
    if isinstance(value, str) and layout.names.classes:
        return None if value in layout.names.class_numbers else wrong_class(layout.names)
    if (reason := _wrong_number(value)) is not None:
        return reason
    most = layout.classes
    return None if most is None or (value == int(value) and 0 <= value < most) else _not_a_class(most)


def _wrong_number(value: Any) -> str | None:
    if value is None or value != value:  # noqa: PLR0124 - only NaN differs from itself
        return _MISSING
    if isinstance(value, str):
        return _QUOTED
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _NOT_A_NUMBER
    try:
        finite = abs(float(value)) < _PAST_FLOAT32
    except OverflowError:
        finite = False
    return None if finite else _NOT_FINITE


def _not_a_row(features: int) -> str:
    return f"must be an array of {features} numbers"


def _not_a_class(most: int) -> str:
    return f"must be a whole number from 0 to {most - 1}"


def _single(values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype == np.float32:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)
