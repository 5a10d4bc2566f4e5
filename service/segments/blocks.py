"""Reads the records of a range block by block, so that no more than one block is in memory (`optimization.sums`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from service.learning.optimization.sums import Partial, Question, answered
from service.segments.records import Located, SegmentsMissing, load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from service.learning.records import Records
    from service.segments.files import SegmentFiles

    Read = Callable[[int, int], Records]


@dataclass(kw_only=True, eq=False)
class LocatedBlocks:
    """The blocks of a range, of which it is known where they are.

    The range keeps its records while it is read: where the sealer put another file in the place of some, they are
    located again. If records were erased meanwhile, SegmentsMissing ends the fit; it begins anew without them. Else a
    pass could read a record that the pass before it did not.
    """

    files: SegmentFiles
    locate_range: Callable[[], Located]
    mapped: Callable[[Read], Read]
    """Returns what reads records as the mechanism takes them, of what reads them as segments hold them."""
    _located: Located = field(init=False)
    units: None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._located = self.locate_range()

    @property
    def located(self) -> Located:
        """Where the records are."""
        return self._located

    @property
    def slots(self) -> int:
        """Return the length of the range."""
        return self._located.stop - self._located.start

    def read(self, start: int, stop: int) -> Records:
        """Return the records in slots [start, stop), counted from the range's first."""
        return self.mapped(self._stored)(start, stop)

    def add_up(self, question: Question, blocks: Sequence[tuple[int, int]]) -> Partial:
        """Return what all blocks answer, read one after the other."""
        return answered(question, self.read, blocks)

    def _stored(self, start: int, stop: int) -> Records:
        attempts = iter((lambda: None, self._locate_again, self._locate_again))

        def located() -> Located:
            next(attempts)()
            return part_of(self._located, start, stop)

        return load(self.files, located)

    def _locate_again(self) -> None:
        again = self.locate_range()
        if again.erased != self._located.erased:
            raise SegmentsMissing(f"records of stream {again.stream} were erased while a fit read them")
        self._located = again


def as_stored(read: Read) -> Read:
    """Return what reads records as segments hold them."""
    return read


def part_of(located: Located, start: int, stop: int) -> Located:
    """Return where the records in slots [start, stop) of a located range are, counted from its first."""
    position, files = 0, []
    for name, sha256, low, high in located.files:
        first, last = max(start, position), min(stop, position + high - low)
        if first < last:
            files.append((name, sha256, low + first - position, low + last - position))
        position += high - low
    start, stop = located.start + start, located.start + stop
    erased = tuple((max(low, start), min(high, stop)) for low, high in located.erased if low < stop and high > start)
    answers = located.answers and tuple(answer for answer in located.answers if start <= answer[0] < stop)
    return replace(located, start=start, stop=stop, files=tuple(files), erased=erased, answers=answers)
