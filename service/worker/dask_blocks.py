"""Passes over blocks on the workers of a Dask cluster, with the same result as in this process (`optimization.sums`).

Dask only makes a fit faster. Blocks that failed there are answered in this process. Where the cluster can't be reached,
or answers nothing for `SECONDS_OF_SILENCE`, the fit goes on without it. Records don't travel, but the paths of segments
and the sums of blocks do, which are as secret as records; whoever reaches a Dask port can run code (SECURITY.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from service.learning.optimization.sums import Partial, answered
from service.segments.blocks import LocatedBlocks, part_of
from service.segments.places import open_elsewhere
from service.segments.records import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from distributed import Client

    from service.learning.optimization.sums import Question
    from service.learning.records import Records
    from service.segments.blocks import Read
    from service.segments.files import SegmentFiles
    from service.segments.records import Located

    Group = tuple[tuple[int, int], ...]

SECONDS_OF_SILENCE = 60.0
SECONDS_TO_CONNECT = 10
BLOCKS_OF_A_TASK = 4  # which take about a tenth of a second; Dask needs some milliseconds for a task


@dataclass(kw_only=True, eq=False)
class DaskBlocks(LocatedBlocks):
    """Blocks that Dask workers read, from the folder or the object store that this process reads, too."""

    scheduler: str
    note: Callable[[str], None]
    """Says why blocks were answered in this process."""
    _client: Client | None = field(default=None, init=False)
    _gave_up: bool = field(default=False, init=False)

    def add_up(self, question: Question, blocks: Sequence[tuple[int, int]]) -> Partial:
        """Return what all blocks answer, on Dask or here."""
        total = Partial()
        left = {tuple(blocks[start : start + BLOCKS_OF_A_TASK]) for start in range(0, len(blocks), BLOCKS_OF_A_TASK)}
        if not self._gave_up:
            try:
                for group, answer in self._answers(question, sorted(left)):
                    total += answer
                    left.remove(group)
            except Exception as error:  # noqa: BLE001 - a fit needs nothing of Dask
                self._gave_up = True
                self.note(f"the Dask cluster is left alone after {type(error).__name__}")
            else:
                if left:
                    self.note(f"{len(left)} tasks failed on the Dask cluster")
        return total + LocatedBlocks.add_up(self, question, [block for group in sorted(left) for block in group])

    def _answers(self, question: Question, groups: Sequence[Group]) -> Iterator[tuple[Group, Partial]]:
        """Yield what Dask answers, as it comes; groups that failed are left out."""
        from distributed import Client, wait

        if self._client is None:
            self._client = Client(self.scheduler, timeout=SECONDS_TO_CONNECT)  # type: ignore[no-untyped-call]
        waiting = {}
        for group in groups:
            located = part_of(self.located, group[0][0], group[-1][1])
            described = tuple(sorted(self.files.described().items()))
            task = self._client.submit(answer, described, located, self.mapped, question, group, pure=False)
            waiting[task] = group
        while waiting:
            done, _ = wait(list(waiting), timeout=SECONDS_OF_SILENCE, return_when="FIRST_COMPLETED")  # type: ignore[no-untyped-call]
            for task in done:
                group = waiting.pop(task)
                if task.status == "finished":
                    yield group, task.result()


def answer(
    described: tuple[tuple[str, Any], ...],
    located: Located,
    mapped: Callable[[Read], Read],
    question: Question,
    blocks: Group,
) -> Partial:
    """Return what some neighbouring blocks answer, on a Dask worker. `located`: where their records are."""
    files, first = _opened(described), blocks[0][0]

    def read(start: int, stop: int) -> Records:
        return load(files, lambda: part_of(located, start - first, stop - first))

    return answered(question, mapped(read), blocks)


@lru_cache(maxsize=4)
def _opened(described: tuple[tuple[str, Any], ...]) -> SegmentFiles:
    """Return the files, opened once for each Dask worker, which then checks the hash of each file once."""
    return open_elsewhere(dict(described))
