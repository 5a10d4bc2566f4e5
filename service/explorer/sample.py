"""A public sample of one's own: a CSV file with a header, numbers in all columns, and a column of labels."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MOST_RECORDS = 200_000
LEAST_RECORDS = 400
MOST_CLASSES = 100


class Unusable(ValueError):
    """A file that no advice can be given on. It says what is wrong and what to do."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Records in their order: x of shape (m, d), y the number of each label's class in `classes`."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    columns: tuple[str, ...]
    classes: tuple[str, ...]


def read_sample(file: Path, label: str) -> Sample:
    """Return the first `MOST_RECORDS` records of a CSV file. Raises Unusable, and OSError where it cannot be read."""
    with file.open(newline="", encoding="utf-8") as lines:
        rows = csv.reader(lines)
        header = next(rows, [])
        if label not in header:
            raise Unusable(f"the file has no column {label}: give --label one of the names in its first line")
        place = header.index(label)
        columns = tuple(name for name in header if name != label)
        labels: list[str] = []
        values: list[list[float]] = []
        for number, row in enumerate(rows, 2):
            if len(labels) == MOST_RECORDS:
                break
            if len(row) != len(header):
                raise Unusable(f"line {number} has {len(row)} values, and the first line {len(header)} names")
            labels.append(row.pop(place))
            values.append(_numbers(row, columns, number))
    classes = tuple(sorted(set(labels), key=_in_order))
    _check(len(labels), len(classes), len(columns))
    codes = {name: code for code, name in enumerate(classes)}
    return Sample(x=np.array(values), y=np.array([codes[each] for each in labels]), columns=columns, classes=classes)


def _numbers(row: list[str], columns: tuple[str, ...], line: int) -> list[float]:
    try:
        numbers = [float(value) for value in row]
    except ValueError:
        numbers = [np.nan]
    if not np.isfinite(numbers).all():
        wrong = next(name for name, value in zip(columns, row, strict=True) if not _is_number(value))
        raise Unusable(f"line {line}: column {wrong} is not a finite number; leave the line or the column out")
    return numbers


def _is_number(value: str) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        return False


def _in_order(label: str) -> tuple[bool, float, str]:
    return (False, float(label), "") if _is_number(label) else (True, 0.0, label)


def _check(records: int, classes: int, features: int) -> None:
    if records < LEAST_RECORDS:
        raise Unusable(f"the file has {records} records: at least {LEAST_RECORDS} are needed")
    if not 2 <= classes <= MOST_CLASSES:
        raise Unusable(f"the label has {classes} values: advice is for classes, 2 to {MOST_CLASSES} of them")
    if not features:
        raise Unusable("the file has no column beside the label")
