"""Read a user's public sample: a file with numbers in all columns except the label's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from service.explorer.tables import Unusable, read_lines

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Sample", "Unusable", "read_sample"]

MAX_RECORDS = 200_000
LEAST_RECORDS = 400
MAX_CLASSES = 100
LARGEST = float(np.finfo(np.float32).max)  # the number of a record


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Records in their order: x of shape (m, d), y the number of each label's class in `classes`.

    In a regression y are numbers within ±`bound`, and there are no classes.
    """

    x: NDArray[np.float64]
    y: NDArray[np.int64] | NDArray[np.float64]
    columns: tuple[str, ...]
    classes: tuple[str, ...] = ()
    bound: float | None = None


def read_sample(file: Path, label: str, bound: float | None = None) -> Sample:
    """Return the first `MAX_RECORDS` records of a file. Raises Unusable, and OSError where it cannot be read.

    bound: of a regression, whose labels are numbers within ±bound; None: labels are classes.
    """
    lines = read_lines(file)
    _, names = next(lines, ("", []))
    if not names:
        raise Unusable("the file is empty")
    if label not in names:
        advice = "give --label one of its columns' names"
        if len(names) == 1 and ";" in names[0]:
            advice = "semicolons separate its values; save it with commas between values, and points in numbers"
        raise Unusable(f"the file has no column {label}: {advice}")
    if len(set(names)) < len(names):
        raise Unusable("two columns have the same name: rename one")
    place = names.index(label)
    columns = tuple(name for name in names if name != label)
    labels: list[Any] = []
    values: list[list[float]] = []
    for where, row in islice(lines, MAX_RECORDS):
        labels.append(_label(row.pop(place), where, bound))
        values.append(_numbers(row, columns, where))
    classes = () if bound is not None else tuple(sorted(set(labels), key=_in_order))
    _check(labels, len(columns), bound)
    codes = {name: code for code, name in enumerate(classes)}
    y = np.array(labels) if bound is not None else np.array([codes[label] for label in labels])
    return Sample(x=np.array(values), y=y, columns=columns, classes=classes, bound=bound)


def _label(value: object, where: str, bound: float | None) -> str | float:
    if bound is None:
        if value is None or value == "":
            raise Unusable(f"{where} has no label; leave it out")
        return str(value)
    number = _number(value)
    if not abs(number) <= bound:
        raise Unusable(f"{where}: the label is no number within ±{bound:g}; leave it out, or give a larger --bound")
    return number


def _numbers(row: list[Any], columns: tuple[str, ...], where: str) -> list[float]:
    numbers = [_number(value) for value in row]
    if not all(abs(number) <= LARGEST for number in numbers):
        wrong = next(name for name, number in zip(columns, numbers, strict=True) if not abs(number) <= LARGEST)
        raise Unusable(f"{where}: column {wrong} is not a finite number of 32 bits; leave the line or the column out")
    return numbers


def _number(value: Any) -> float:
    """Return the value as a number; NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _in_order(label: str) -> tuple[bool, float, str]:
    number = _number(label)
    return (False, number, "") if math.isfinite(number) else (True, 0.0, label)


def _check(labels: list[Any], features: int, bound: float | None) -> None:
    if len(labels) < LEAST_RECORDS:
        raise Unusable(f"the file has {len(labels)} records: at least {LEAST_RECORDS} are needed")
    values = len(set(labels))
    if bound is None and not 2 <= values <= MAX_CLASSES:
        raise Unusable(
            f"the label has {values} values: advice is for classes, 2 to {MAX_CLASSES} of them; for a regression give "
            "--bound"
        )
    if values < 2:
        raise Unusable("all labels are the same: there is nothing to predict")
    if not features:
        raise Unusable("the file has no column beside the label")
