"""Alarms for accuracy that has fallen, from released figures, with a stated rate of false alarms. Post-processing.

Statement. Let the model in use be right about the newest block's records with a mean probability that is no lower than
that of the blocks before it which are compared with it, records being independent. Then `has_fallen` is true with a
probability of at most `rate`, whatever the noise, the numbers of slots and the models are.

Why. It is true only if the newest block's interval lies below that of the earlier blocks together. Both are exact
(`intervals.CountLaw.share`), and each is on the wrong side of its own mean with a probability of at most rate/2. So
each block raises a false alarm with at most that probability, and N blocks raise N·rate of them on average.

The earlier blocks are the last `MEMORY` before the newest, so an alarm goes on until what came after the fall has
become usual. Blocks before a publication's first model tell nothing, and are to be left out.

`is_worse` compares any two groups of blocks in the same way: the newest version with the version before it, say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from service.figures.figures import ClassFigures, added_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from service.figures.figures import BlockCounts
    from service.figures.intervals import CountLaw, Figure
    from service.mechanisms.evaluation.tables import ClassCounts

RATE = 1e-3
MEMORY = 8
"""Blocks with which the newest one is compared."""


def has_fallen(
    layout: ClassCounts,
    blocks: Sequence[BlockCounts],
    counted: CountLaw,
    *,
    publication: int = 0,
    rate: float = RATE,
) -> bool:
    """Return whether the newest block is worse than the blocks before it. False while it is the only one.

    blocks: neighbours, the newest last. counted: how one of them was made, all with the same noise.
    """
    *before, newest = blocks[-MEMORY - 1 :]
    return is_worse(layout, [newest], before, counted, publication=publication, rate=rate)


def is_worse(
    layout: ClassCounts,
    blocks: Sequence[BlockCounts],
    before: Sequence[BlockCounts],
    counted: CountLaw,
    *,
    publication: int = 0,
    rate: float = RATE,
) -> bool:
    """Return whether some blocks together are worse than other blocks. False if there are no others.

    It is true falsely with a probability of at most `rate`. Blocks and `counted`: as of `has_fallen`.
    """
    if not before:
        return False
    now, usual = (_accuracy(layout, group, counted, publication, rate) for group in (blocks, before))
    return now.population.high < usual.population.low


def _accuracy(
    layout: ClassCounts, blocks: Sequence[BlockCounts], counted: CountLaw, publication: int, rate: float
) -> Figure:
    counts, together = added_up(blocks, replace(counted, error=rate))
    return ClassFigures(layout=layout, counts=counts, counted=together).accuracy(publication)
