"""Units: which slots count, and how many units a release is of, counted anew from the segments.

Sealing counts by what the database says of each unit, and a release states the number n of units that it was made for.
Both follow from the public pattern, the pseudonym of every slot, which segments hold: here they are computed from that
alone. If the first segments were dropped, nobody can tell any more which slots of the others ought to count.

The pattern is walked once for every `UNITS_AT_ONCE` units, so that memory does not grow with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from service.ledger.verify.reading import read
from service.privacy.accounting.composition import Slots
from service.segments.files import SegmentDamaged
from service.store import publications, releases, segments, streams, units
from service.store.database import ONE_VIEW
from service.store.rows import Rows
from service.streams.units import (
    NEVER,
    PSEUDONYM_BYTES,
    UnitState,
    UnitStates,
    counting_slots,
    distinct,
    set_aside,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from service.privacy.accounting.groups import UnitBound
    from service.segments.files import SegmentFiles
    from service.store.database import Database
    from service.store.streams import Stream
    from service.store.units import UnitRow

UNITS_AT_ONCE = 2**18
_PATTERN = frozenset(("unit", "counts"))


class PatternMissing(Exception):
    """Nobody can read whose the slots of a range are."""


class Piece(NamedTuple):
    """The pattern of the slots from `start` on: their pseudonyms, (slots, 16), and whether they count."""

    start: int
    pseudonyms: NDArray[np.uint8]
    counting: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class PatternReader:
    """Reads the pattern of a stream while segments come, merge and go."""

    database: Database
    files: SegmentFiles
    stream: Stream
    bound: UnitBound

    def first(self) -> int:
        """Return the first slot whose segment was not dropped."""
        with self.database.transaction() as connection:
            return segments.kept_from(connection, self.stream.id)

    def pieces(self, start: int, stop: int) -> Iterator[Piece]:
        """Yield [start, stop), segment by segment. Raises PatternMissing."""
        while start < stop:
            piece = self._piece(start, stop)
            yield piece
            start += len(piece.counting)

    def _piece(self, start: int, stop: int) -> Piece:
        for _ in range(3):
            with self.database.transaction() as connection:
                holding = segments.holding(connection, self.stream.id, start, start + 1)
            if not holding:
                break
            (segment,) = holding
            low, high = start - segment.start, min(stop, segment.stop) - segment.start
            try:
                columns = self.files.read(self.stream.log, segment.file, segment.sha256, low, high, only=_PATTERN)
            except FileNotFoundError:
                continue  # the sealer may have put another file in its place while we looked
            except (SegmentDamaged, OSError):
                break
            return Piece(start, columns["unit"].astype(np.uint8), columns["counts"].astype(np.bool_))
        raise PatternMissing


def recounted(database: Database, files: SegmentFiles, stream: Stream) -> Iterator[str]:
    """Check which slots of a stream with units count, and of how many units each of its releases is."""
    where = f"stream {stream.name}"
    try:
        yield from read(where, _recounted(where, database, files, stream))
    except PatternMissing:
        yield f"{where}: its units can't be counted, since a segment is missing or damaged"


def _recounted(where: str, database: Database, files: SegmentFiles, stream: Stream) -> Iterator[str]:
    unit = stream.parsed_schema.unit
    if unit is None:
        return
    reader = PatternReader(database=database, files=files, stream=stream, bound=unit.bound)
    yield from read(where, _parts(reader))
    yield from read(where, _releases(reader))


def _parts(reader: PatternReader) -> Iterator[str]:
    with reader.database.transaction() as connection:
        parts = 1 + units.number(connection, reader.stream.id) // UNITS_AT_ONCE
    for part in range(parts):
        yield from _part(reader, part, parts)


def _part(reader: PatternReader, part: int, parts: int) -> list[str]:
    """Return what is wrong with one part of the units. It is counted anew where first slots are dropped meanwhile."""
    while True:
        first = reader.first()
        with reader.database.transaction() as connection:
            connection.execute(ONE_VIEW)
            records = streams.get(connection, reader.stream.id).records
            rows = units.rows(connection, reader.stream.id, part, parts)
        try:
            return list(_recount(reader, (first, records), rows, part, parts))
        except PatternMissing:
            if reader.first() == first:
                raise


def _recount(
    reader: PatternReader, among: tuple[int, int], rows: dict[bytes, UnitRow], part: int, parts: int
) -> Iterator[str]:
    """Compare one part of the units' rows with the slots of [first, records), up to which those count."""
    where, (first, records) = f"stream {reader.stream.name}", among
    tally = Tally(bound=reader.bound, whole=first == 0)
    for piece in reader.pieces(first, records):
        mine = units.part_of(piece.pseudonyms, parts) == part
        wrong = tally.add(piece, mine, rows)
        if wrong is not None:
            yield f"{where}: record {wrong} counts, or does not, against the order of its unit's records"
            return
    for pseudonym, seen in tally.states.items():
        row = rows.pop(pseudonym, None)
        if not tally.agrees(seen, row):
            yield f"{where}: a unit has other counting records than are written down"
            return
    if any(row.last >= first for row in rows.values()):
        yield f"{where}: a unit has counting records that no segment holds"


@dataclass
class Tally:
    """The counting slots of units so far: `states` as segments have them, `due` as they follow from the pattern.

    whole: whether the walk began with the stream's first slot.
    """

    bound: UnitBound
    whole: bool
    states: dict[bytes, UnitState] = field(default_factory=dict)
    due: dict[bytes, UnitState] = field(default_factory=dict)

    def add(self, piece: Piece, mine: NDArray[np.bool_], rows: dict[bytes, UnitRow]) -> int | None:
        """Count the slots that are `mine` in; return the first that counts or doesn't, but should not or should."""
        pseudonyms, places = distinct(piece.pseudonyms[mine])
        names, slots, counting = [each.tobytes() for each in pseudonyms], np.flatnonzero(mine), piece.counting[mine]
        last = np.full(len(names), NEVER)
        np.maximum.at(last, places[counting], slots[counting] + piece.start)
        for place, more in enumerate(np.bincount(places[counting], minlength=len(names)).tolist()):
            if more:
                before = self.states.get(names[place], UnitState())
                self.states[names[place]] = UnitState(before.counted + more, int(last[place]))
        if not self.whole:
            return None
        due = self._due(piece, mine, names, places)[mine]
        erased = np.array([each in rows and rows[each].erased for each in names], dtype=np.bool_)[places]
        wrong = slots[np.where(erased, counting & ~due, counting != due)]  # once it was erased none counts any more
        return piece.start + int(wrong[0]) if wrong.size else None

    def _due(
        self, piece: Piece, mine: NDArray[np.bool_], names: list[bytes], places: NDArray[np.intp]
    ) -> NDArray[np.bool_]:
        """Return which slots of a piece count by the law, those that are not `mine` aside."""
        others = UnitState(counted=self.bound.max_records)
        before = UnitStates.of([*(self.due.get(each, UnitState()) for each in names), others])
        whose = np.full(len(mine), len(names))
        whose[mine] = places
        due, after = counting_slots(self.bound, before, whose, piece.start)
        self.due.update(zip(names, after.listed()[:-1], strict=True))
        return due

    def agrees(self, seen: UnitState, row: UnitRow | None) -> bool:
        """Return whether a unit's row says what its slots are that were seen, or also others that were dropped."""
        if row is None or row.last != seen.last:
            return False
        return row.counted == seen.counted if self.whole else row.counted >= seen.counted


def _releases(reader: PatternReader) -> Iterator[str]:
    with reader.database.transaction() as connection:
        rows = Rows(connection)
        of_stream = [
            (each, releases.of_units(connection, each.id)) for each in publications.walk(rows, reader.stream.id)
        ]
    first, newest, units_there = reader.first(), None, 0  # several releases may be of one range
    for publication, stated in of_stream:
        evaluates = publication.slots is Slots.EVALUATION
        for version, start, stop, number in stated:
            if start < first:
                continue
            if newest != (start, stop, evaluates):
                try:
                    units_there = _units(reader, start, stop, evaluates=evaluates)
                except PatternMissing:
                    if start >= (first := reader.first()):
                        raise
                    continue  # they were dropped meanwhile
                newest = (start, stop, evaluates)
            if number != units_there:
                what = f"it is of {number} units, and its records are of {units_there}"
                yield f"publication {publication.name}, version {version}: {what} (stream {reader.stream.name})"


def _units(reader: PatternReader, start: int, stop: int, *, evaluates: bool) -> int:
    """Return of how many units slots of [start, stop) count, of the kind that is evaluated or of that which is not."""
    period, seen = reader.stream.evaluation_period, np.zeros((0, PSEUDONYM_BYTES), dtype=np.uint8)
    for piece in reader.pieces(start, stop):
        counting = piece.counting
        if period is not None:
            counting = counting & (set_aside(piece.pseudonyms, period) == evaluates)
        seen, _ = distinct(np.concatenate((seen, piece.pseudonyms[counting])))
    return len(seen)
