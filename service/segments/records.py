"""Reads any range of numbered records across segments, without what was erased.

Where the records are, `locating` says: nothing here knows a database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from service.learning.records import Records, UnitPattern
from service.streams.slots import EvaluationSlots
from service.streams.units import contributions, distinct, set_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from service.segments.files import SegmentFiles
    from service.streams.codec import Columns


class SegmentsMissing(Exception):
    """Records that a fit needs are not there. Nothing may be published from the rest."""


@dataclass(frozen=True, kw_only=True)
class Located:
    """Where the records of a range are: all that it takes to read them without the database.

    `start` and `stop` are numbers of the stream, `origin` the number that the records' slots are counted from. `files`:
    name, SHA-256 and the rows of each segment, in order. `erased`: ranges of the stream. `answers`: (number, label) of
    the labels that people gave; None: the labels are in the segments. `period`: every so many-th slot, or unit, is set
    aside for evaluations, None where none is; `evaluates`: these are read, and no others, else all others.
    """

    stream: str
    log: str
    origin: int
    start: int
    stop: int
    files: tuple[tuple[str, bytes, int, int], ...]
    erased: tuple[tuple[int, int], ...]
    answers: tuple[tuple[int, int], ...] | None
    period: int | None = None
    evaluates: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        files = [(name, sha256.hex(), low, high) for name, sha256, low, high in self.files]
        return vars(self) | {"files": files}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Located:
        """Return what `to_json` returned."""
        return cls(
            **dict(content)
            | {
                "files": tuple(
                    (name, bytes.fromhex(sha256), low, high) for name, sha256, low, high in content["files"]
                ),
                "erased": tuple((low, high) for low, high in content["erased"]),
                "answers": None if content["answers"] is None else tuple(map(tuple, content["answers"])),
            }
        )


def load(files: SegmentFiles, locate_range: Callable[[], Located]) -> Records:
    """Return the records that `locate_range` locates, in slots that may be read, without the erased ones.

    Their label is NaN where people gave none.

    Raises:
        SegmentsMissing: the segments do not cover the range, or can't be read.
        SegmentDamaged: a segment does not hold what was written to it.
    """
    for attempt in range(3):
        located = locate_range()
        try:
            columns = _columns(files, located)
        except FileNotFoundError:
            if attempt < 2:  # the sealer put another file in its place while we looked
                continue
            raise SegmentsMissing(f"a segment of stream {located.stream} is not in its folder") from None
        except OSError as error:
            raise SegmentsMissing(f"a segment of stream {located.stream} can't be read ({error.strerror})") from None
        break
    start, stop = located.start, located.stop
    if located.answers is not None:
        y = np.full(stop - start, np.nan)
        for record, label in located.answers:
            y[record - start] = label
        columns["y"] = y
    pattern = _pattern(columns, located) if "unit" in columns else None
    present = _may_be_read(located) if pattern is None else pattern.counting.copy()
    for low, high in located.erased:
        present[low - start : high - start] = False
    if not present.all():
        columns = {name: column[present] for name, column in columns.items()}
    y = columns["y"]
    x = columns.get("x", np.zeros((len(y), 0), dtype=np.float32))
    slots = np.flatnonzero(present) + (start - located.origin)
    of_units = {} if pattern is None else pattern.of(present)
    return Records(x=x.astype(np.float32, copy=False), y=y, slots=slots, **of_units)


def _may_be_read(located: Located) -> NDArray[np.bool_]:
    """Return which slots of the range are of the kind that is asked for."""
    slots = np.arange(located.start, located.stop, dtype=np.int64)
    if located.period is None:
        return np.ones(len(slots), dtype=np.bool_)
    evaluated = EvaluationSlots(period=located.period).among(slots)
    return evaluated if located.evaluates else ~evaluated


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pattern:
    """The public pattern of a range: erased and empty slots have their part too, slots that don't count have none.

    Nor have those of units that are not to be read here.

    `counting`, `shares`, `owners`, `firsts`, `pseudonyms`: of every slot, as in `Records`. `units`: their number.
    """

    counting: NDArray[np.bool_]
    shares: NDArray[np.float64]
    owners: NDArray[np.int64]
    firsts: NDArray[np.bool_]
    units: int
    pseudonyms: NDArray[np.uint8]

    def of(self, present: NDArray[np.bool_]) -> dict[str, Any]:
        """Return the fields of `Records` that say of which units those present are."""
        return {
            "weights": self.shares[present],
            "units": self.units,
            "firsts": self.firsts[present],
            "owners": self.owners[present],
            "pattern": UnitPattern(pseudonyms=self.pseudonyms, counting=self.counting),
        }


def _pattern(columns: Columns, located: Located) -> _Pattern:
    counting, unit = columns.pop("counts").astype(np.bool_), columns.pop("unit")
    if located.period is not None:
        counting &= set_aside(unit, located.period) == located.evaluates
    pseudonyms, places = distinct(unit[counting])
    shares, owners = np.zeros(len(counting)), np.full(len(counting), -1, dtype=np.int64)
    shares[counting], owners[counting] = contributions(places), places
    firsts = np.zeros(len(counting), dtype=np.bool_)
    firsts[np.flatnonzero(counting)[np.unique(places, return_index=True)[1]]] = True
    units = len(pseudonyms)
    return _Pattern(
        counting=counting, shares=shares, owners=owners, firsts=firsts, units=units, pseudonyms=unit.astype(np.uint8)
    )


def _columns(files: SegmentFiles, located: Located) -> dict[str, NDArray[np.generic]]:
    """Return all columns of a range, erased records included; no more than one segment is in memory twice."""
    columns: dict[str, NDArray[np.generic]] = {}
    position = 0
    for name, sha256, low, high in located.files:
        part = files.read(located.log, name, sha256, low, high)
        for column, values in part.items():
            if len(located.files) == 1:
                columns[column] = values
                continue
            if column not in columns:
                columns[column] = np.empty((located.stop - located.start, *values.shape[1:]), values.dtype)
            columns[column][position : position + len(values)] = values
        position += high - low
    return columns
