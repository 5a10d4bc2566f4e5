"""Data sets of the explorer: bundled samples, and uploads as CSV or npz.

A data set is public or made for evaluation; still no error repeats what is in it.
"""

from __future__ import annotations

import csv
import io
import math
import zipfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_RECORDS = 200_000
MAX_FEATURES = 4096
MAX_NUMBERS = 2**25
MAX_CLASSES = 1000
LONGEST_NAME = 1000  # characters of a class name: numpy stores every text at the length of the longest
_LABELS = ("y", "label", "class", "target")
_SAMPLES = Path(__file__).with_name("samples")
SAMPLES = {
    "weather": ("noaa_weather.npz", "Did it rain? Fifty years of days at one station, eight measurements each."),
    "fashion": ("fashion.npz", "Ten kinds of clothes, 28×28 grey pixels each: take hog features."),
}


class UnreadableDataset(Exception):
    """Raised for a data set that can't be used. The message says where and what to do, and repeats no value."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Records to try things out on, in order."""

    x: NDArray[np.float32]
    """(records, features), finite."""
    y: NDArray[np.int64]
    """(records,), of classes 0 … len(names) - 1."""
    names: tuple[str, ...]
    """Labels as the data set calls them, in the order of classes."""

    @property
    def shape(self) -> dict[str, int]:
        """Return how many records, features and classes it has."""
        return {"records": len(self.y), "features": self.x.shape[1], "classes": len(self.names)}

    def packed(self) -> bytes:
        """Return the data set as bytes that `unpacked` reads."""
        out = io.BytesIO()
        np.savez_compressed(out, x=self.x, y=self.y, names=np.array(self.names))
        return out.getvalue()


def unpacked(content: bytes) -> Dataset:
    """Return a data set that was `packed`."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return Dataset(x=arrays["x"], y=arrays["y"], names=tuple(arrays["names"].tolist()))


def sample(name: str) -> Dataset:
    """Return a bundled data set of `SAMPLES`."""
    return read_npz((_SAMPLES / SAMPLES[name][0]).read_bytes())


def read_npz(content: bytes) -> Dataset:
    """Read arrays `x` (records × features) and `y` (a class per record) from an npz file. Raises Unreadable."""
    try:
        named = _arrays(content)
    except UnreadableDataset:
        raise
    except Exception:  # noqa: BLE001 - zipfile, its unpackers and numpy raise all kinds of errors of a damaged one
        raise UnreadableDataset("it is no npz file of plain arrays: numpy.savez(file, x=…, y=…) makes one") from None
    if set(named) != {"x", "y"}:
        raise UnreadableDataset("it needs an array x, a row per record, and an array y, a class per record")
    return _checked(named["x"], named["y"])


def _arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays `x` and `y` of an npz file, those that it has; any error says that it can't be read."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(member.file_size for member in archive.infolist()) > 8 * MAX_NUMBERS + 2**20:
            raise UnreadableDataset(f"unpacked, it has more than {MAX_NUMBERS} numbers: take fewer records")
        for member in archive.infolist():
            if member.filename.lower() in ("x.npy", "y.npy"):
                with archive.open(member) as file:
                    _check_length(file, member.file_size)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {key.lower(): np.asarray(arrays[key]) for key in arrays.files if key.lower() in ("x", "y")}


def _check_length(file: IO[bytes], size: int) -> None:
    """Raise ValueError where an array's header does not match its length, since memory is allocated by the header."""
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
    shape, _, dtype = read(file)
    if file.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ValueError


def read_csv(content: bytes, label: str | None = None) -> Dataset:
    """Read a CSV file: one record a row, one column of classes, all others numbers. Raises Unreadable.

    A first row that is not all numbers names the columns. label: the column of classes by its name or, from 1, its
    number; None: the one called y, label, class or target, else the last.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableDataset("it is not UTF-8 text") from None
    try:
        rows = list(islice((row for row in csv.reader(io.StringIO(text)) if row), MAX_RECORDS + 2))
    except csv.Error:
        raise UnreadableDataset("it is no CSV file") from None
    if not rows:
        raise UnreadableDataset("it is empty")
    if len(rows[0]) == 1:
        raise UnreadableDataset("it has one column: values must be separated by commas, not by semicolons or tabs")
    named = not all(_is_number(cell) for cell in rows[0])
    if named and len(rows) > 1 and all(_is_number(cell) for cell in rows[0][:-1]) and not _is_number(rows[1][-1]):
        named = False  # numbers as texts, and classes with names
    header = [cell.strip() for cell in rows[0]] if named else [str(number + 1) for number in range(len(rows[0]))]
    column = _label_column(header, label)
    rows = rows[named:]
    for number, row in enumerate(rows, 1 + named):
        if len(row) != len(header):
            raise UnreadableDataset(f"row {number} has not as many columns as the first one")
    labels = [row[column].strip() for row in rows]
    names = sorted(set(labels))
    if any(len(name) > LONGEST_NAME for name in names):
        raise UnreadableDataset(f"a class has a name of more than {LONGEST_NAME} characters: name it in fewer")
    numbers = {name: number for number, name in enumerate(names)}
    y = np.array([numbers[label] for label in labels], dtype=np.int64)
    try:
        x = np.array([row[:column] + row[column + 1 :] for row in rows], dtype=np.float64)
    except ValueError:
        where = next(
            (number, header[place])
            for number, row in enumerate(rows, 1 + named)
            for place, cell in enumerate(row)
            if place != column and not _is_number(cell)
        )
        raise UnreadableDataset("row {}, column {} is not a number: leave such columns out".format(*where)) from None
    return _checked(x, y, tuple(names))


def _label_column(header: list[str], label: str | None) -> int:
    if label is None:
        lower = [name.lower() for name in header]
        return next((lower.index(name) for name in _LABELS if name in lower), len(header) - 1)
    if label in header:
        return header.index(label)
    if label.isdecimal() and 1 <= int(label) <= len(header):
        return int(label) - 1
    raise UnreadableDataset(
        "it has no such column as `label` says: give its name in the first row, or its number from 1"
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _checked(x: NDArray[Any], y: NDArray[Any], names: tuple[str, ...] | None = None) -> Dataset:
    if x.dtype.kind not in "buif" or (names is None and y.dtype.kind not in "buif"):
        raise UnreadableDataset("x and y must be numbers")
    if x.ndim != 2 or y.shape != (len(x),):
        raise UnreadableDataset("x needs a row per record, and y one class per record")
    if not 10 <= len(x) <= MAX_RECORDS:
        raise UnreadableDataset(f"it needs 10 to {MAX_RECORDS} records")
    if not 1 <= x.shape[1] <= MAX_FEATURES or x.size > MAX_NUMBERS:
        raise UnreadableDataset(f"it needs 1 to {MAX_FEATURES} features, and may have {MAX_NUMBERS} numbers in all")
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    if not np.isfinite(single).all():
        row = int(np.flatnonzero(~np.isfinite(single).all(axis=1))[0])
        raise UnreadableDataset(f"record {row + 1} has a value that is missing, or not finite as a 32-bit float")
    if names is None:
        if not np.isfinite(y.astype(np.float64)).all() or (y != np.floor(y)).any():
            raise UnreadableDataset("y must hold classes, whole numbers: there is no explorer of regressions")
        values, y = np.unique(y, return_inverse=True)
        names = tuple(str(int(value)) for value in values)
    if not 2 <= len(names) <= MAX_CLASSES:
        raise UnreadableDataset(f"it needs 2 to {MAX_CLASSES} classes")
    return Dataset(x=single, y=y.astype(np.int64), names=names)
