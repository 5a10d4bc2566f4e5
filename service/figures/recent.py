"""Figures of a publication over the newest blocks of an evaluation together. They cost nothing.

Many blocks know an accuracy better than one does: noise and chance in which records came shrink with their number. The
figures are of all records of these blocks, whichever versions were in use. Intervals are of 95 %, each by itself.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from service.figures.counted_blocks import CountedBlocks
from service.figures.figures import rise
from service.figures.reported_figures import MAX_CLASSES, MAX_COMPARED, bounds, figure_described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from service.figures.counted_blocks import Block


def recent(blocks: Sequence[Block], name: str) -> dict[str, Any]:
    """Return the figures of a publication by all these blocks, as JSON.

    None: as of `drift_alarms`, or there is no version before.

    `recent`: accuracy, lift over the commonest class and over other publications, in the blocks where both had a
    model. `lift_over_previous`: how far the newest version's accuracy is above that of the version before it, each by
    its own blocks.

    blocks: neighbouring releases of one evaluation, the newest last.
    """
    described = json.dumps([(model, noise) for model, noise, _ in blocks])
    counts = np.stack([counts.ravel() for *_, counts in blocks]).astype(np.float64)
    copied: dict[str, Any] = json.loads(_recent(described, counts.tobytes(), name))
    return copied


@lru_cache(maxsize=256)
def _recent(described: str, content: bytes, name: str) -> str:
    """Return the figures of `recent`, cached: many readers ask for the newest blocks."""
    pairs = json.loads(described)
    counts = np.frombuffer(content).reshape(len(pairs), -1)
    blocks = CountedBlocks.of([(model, noise, row) for (model, noise), row in zip(pairs, counts, strict=True)], name)
    if blocks is None:
        return json.dumps({"recent": None, "lift_over_previous": None})
    return json.dumps({"recent": _together(blocks), "lift_over_previous": _lift_over_previous(blocks)})


def _together(blocks: CountedBlocks) -> dict[str, Any]:
    figures = blocks.together(blocks.counts())
    accuracy = figures.accuracy(blocks.number)
    lift = figure_described(figures.lift(blocks.number)) if blocks.layout.classes <= MAX_CLASSES else None
    return {
        "blocks": len(blocks.blocks),
        "slots": figures.counted.slots,
        "accuracy": accuracy.estimate,
        **bounds(accuracy),
        "lift": lift,
        "better_than": _better_than(blocks),
    }


def _better_than(blocks: CountedBlocks) -> dict[str, Any]:
    if len(blocks.names) > MAX_COMPARED:
        return {}
    others = [other for other in range(len(blocks.names)) if other != blocks.number and blocks.counts(other)]
    return {
        blocks.names[other]: figure_described(blocks.together(blocks.counts(other)).better(blocks.number, other))
        for other in others
    }


def _lift_over_previous(blocks: CountedBlocks) -> dict[str, Any] | None:
    now, last = blocks.of_version(), blocks.of_version(1)
    if not last:
        return None
    figures = [blocks.together(some).accuracy(blocks.number) for some in (now, last)]
    return figure_described(rise(*figures))
