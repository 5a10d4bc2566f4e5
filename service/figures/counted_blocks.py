"""The newest blocks of an evaluation in which it counted a model of one publication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from service.figures.figures import BlockCounts, ClassFigures, added_up
from service.figures.reported_figures import figures_of, slots_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from service.figures.intervals import CountLaw
    from service.mechanisms.evaluation.tables import ClassCounts

    Block = tuple[Mapping[str, Any], Mapping[str, Any], NDArray[np.float64]]
    """The model, the noise and the counts of a release."""


class CountedBlock(NamedTuple):
    """The version of each evaluated publication that a block counted, and its counts."""

    versions: Sequence[int | None]
    counts: BlockCounts


@dataclass(frozen=True, kw_only=True)
class CountedBlocks:
    """The blocks of a classification in which an evaluation counted a model of one publication, oldest first."""

    layout: ClassCounts
    one: CountLaw
    """The noise and size of a block; all blocks have the same noise."""
    names: Sequence[str]
    number: int
    """The publication's, among those that are evaluated."""
    blocks: list[CountedBlock]

    @classmethod
    def of(cls, blocks: Sequence[Block], name: str) -> CountedBlocks | None:
        """Return the blocks of a publication; None: no model in the newest block, or records without classes.

        blocks: neighbouring releases of one evaluation, the newest last.
        """
        newest, noise, counts = blocks[-1]
        number = newest["of"].index(name)
        figures = figures_of(newest, noise, counts)
        if not isinstance(figures, ClassFigures) or newest["versions"][number] is None:
            return None
        counted = [
            CountedBlock(model["versions"], BlockCounts(slots_of(model), counts.ravel()))
            for model, _, counts in blocks
            if model["versions"][number] is not None
        ]
        return cls(layout=figures.layout, one=figures.counted, names=newest["of"], number=number, blocks=counted)

    def counts(self, other: int | None = None) -> list[BlockCounts]:
        """Return the counts of all blocks, or of those in which another publication had a model, too."""
        return [block.counts for block in self.blocks if other is None or block.versions[other] is not None]

    def of_version(self, before: int = 0) -> list[BlockCounts]:
        """Return the counts of the blocks of the newest version, or of the version so many before it; [] if none is."""
        versions = sorted({block.versions[self.number] for block in self.blocks}, key=lambda version: version or 0)
        some = versions[-1 - before : len(versions) - before]
        return [block.counts for block in self.blocks if block.versions[self.number] in some]

    def together(self, blocks: Sequence[BlockCounts]) -> ClassFigures:
        """Return the figures of several blocks added up."""
        counts, counted = added_up(blocks, self.one)
        return ClassFigures(layout=self.layout, counts=counts, counted=counted)
