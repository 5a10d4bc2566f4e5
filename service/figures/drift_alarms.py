"""Alarms for publications that become worse, from the newest releases of an evaluation. They cost nothing.

`drift.py` has the statements. Blocks before the publication's first model are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.figures.counted_blocks import CountedBlocks
from service.figures.drift import MEMORY, has_fallen, is_worse
from service.figures.reported_figures import outline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from service.figures.counted_blocks import Block

_FIGURES = ("accuracy", "absolute_error", "baseline", "low", "high")
BLOCKS = MEMORY + 1
"""Releases that are looked at, the newest with them."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedPublication:
    """A publication's figures in the newest block of an evaluation. None: unknown, or not of this task.

    `drift` and `worse`: see `drift_alarms`.
    """

    publication: str
    evaluation: str
    stream: str
    low: float
    high: float
    accuracy: float | None = None
    baseline: float | None = None
    absolute_error: float | None = None
    drift: bool | None
    worse: bool | None


def judged(evaluation: str, stream: str, blocks: Sequence[Block]) -> list[EvaluatedPublication]:
    """Return the newest figures of all publications of an evaluation that had a model. blocks: as of `drift_alarms`."""
    return [
        EvaluatedPublication(
            publication=name,
            evaluation=evaluation,
            stream=stream,
            **{key: figures[key] for key in _FIGURES if key in figures},
            **drift_alarms(blocks, name),
        )
        for name, figures in outline(*blocks[-1]).items()
        if figures["version"] is not None
    ]


def drift_alarms(blocks: Sequence[Block], name: str) -> dict[str, Any]:
    """Return two alarms of a publication, as JSON.

    `drift`: the newest block is worse than those before it. `worse`: the newest version is worse than the version
    before it. None: there is nothing yet to compare with, or the records have no classes.

    blocks: neighbouring releases of one evaluation, the newest last.
    """
    counted = CountedBlocks.of(blocks, name)
    if counted is None:
        return {"drift": None, "worse": None}
    layout, one, number = counted.layout, counted.one, counted.number
    whole, now, last = counted.counts(), counted.of_version(), counted.of_version(1)
    return {
        "drift": has_fallen(layout, whole, one, publication=number) if whole[1:] else None,
        "worse": is_worse(layout, now, last, one, publication=number) if last else None,
    }
