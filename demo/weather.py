"""The stream and its public part: which days are sent, which are held out, and how a model is judged on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Features = NDArray[np.float32]
    Labels = NDArray[np.int8]

FIRST_YEAR, YEARS = 1949, 50  # see DATA.md: the rows are spread evenly
HELD_OUT_EVERY = 5
HORIZON_YEARS = 2

# Weather lore: rain comes with damp air (a small gap between temperature and dew point), low pressure, poor visibility
# and wind. Five columns instead of eight also mean less noise, which grows with the number of weights. Of a few such
# choices this one did well without noise and with it; see run.py for how that was found out.
FEATURES = ("dew point gap", "dew point", "pressure", "visibility", "wind")
# Public: rounded medians and standard deviations of the held-out days of the first three years, which are never sent.
_TYPICAL = np.array([7.7, 44.0, 1017.0, 10.0, 9.0])
_SPREAD = np.array([3.9, 21.5, 8.4, 2.8, 4.7])
_MOST = 3.0  # values farther out than three spreads are cut off


def standardise(x: NDArray[np.float32]) -> Features:
    """Return the five columns that are sent, from the file's eight. A public function of each day alone."""
    temperature, dew_point, pressure, visibility, wind = np.asarray(x[:, :5], dtype=np.float64).T
    chosen = np.column_stack((temperature - dew_point, dew_point, pressure, visibility, wind))
    return np.asarray(np.clip((chosen - _TYPICAL) / _SPREAD, -_MOST, _MOST).round(4).astype(np.float32))


@dataclass(frozen=True)
class Weather:
    """All days, in order of time. `x` is standardised; `y` is 1 where it rained."""

    x: Features
    y: Labels

    @cached_property
    def sent(self) -> NDArray[np.intp]:
        """Return the rows that are sent, in order: record n is row sent[n]. The last years are for the test."""
        rows = np.arange(len(self.y) - self._rows(HORIZON_YEARS))
        return rows[~self._is_held_out(rows)]

    def year(self, records: int) -> float:
        """Return the year that has been reached once that many records were sent."""
        return FIRST_YEAR + self._row_after(records) / self._rows(1)

    def window(self, start: int, end: int) -> tuple[Features, Labels]:
        """Return records [start, end) by the numbers that the service gave them."""
        rows = self.sent[start:end]
        return self.x[rows], self.y[rows]

    def held_out(self, start: int, end: int) -> tuple[Features, Labels]:
        """Return the held-out days between the records `start` and `end` - 1."""
        rows = np.arange(self.sent[start], self.sent[end - 1] + 1)
        rows = rows[self._is_held_out(rows)]
        return self.x[rows], self.y[rows]

    def judge(self, predict: Callable[[Features], NDArray[np.bool_]], records: int) -> float:
        """Return the accuracy on the held-out days of the two years after the first `records` records."""
        rows = self._days_after(records)
        return float((predict(self.x[rows]) == (self.y[rows] == 1)).mean())

    def judge_yesterday(self, records: int) -> float:
        """Return the accuracy, on the same days, of saying that it rains if it rained the day before."""
        rows = self._days_after(records)
        return float((self.y[rows] == self.y[rows - 1]).mean())

    def judge_dry(self, records: int) -> float:
        """Return the accuracy, on the same days, of saying that it never rains: most days are dry."""
        return float((self.y[self._days_after(records)] == 0).mean())

    def _days_after(self, records: int) -> NDArray[np.intp]:
        first = self._row_after(records)
        rows = np.arange(first, min(first + self._rows(HORIZON_YEARS), len(self.y)))
        return rows[self._is_held_out(rows)]

    def _row_after(self, records: int) -> int:
        return int(self.sent[records - 1]) + 1

    def _rows(self, years: int) -> int:
        return round(len(self.y) * years / YEARS)

    @staticmethod
    def _is_held_out(rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        return np.asarray(rows % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)


def load() -> Weather:
    """Return the bundled copy."""
    file_of_it = files("service.explorer").joinpath("samples/noaa_weather.npz")
    with file_of_it.open("rb") as opened, np.load(opened) as file:
        return Weather(x=standardise(file["x"]), y=file["y"])
