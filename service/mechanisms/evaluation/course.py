"""Whether a publication becomes worse, from the newest releases of an evaluation that counts it. It costs nothing.

`drift.py` has the statements. Blocks before the publication's first model are left out, and so are blocks of another
size than the newest, which the erasure of records leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from service.mechanisms.evaluation.drift import MEMORY, has_fallen, is_worse
from service.mechanisms.evaluation.figures import ClassFigures
from service.mechanisms.evaluation.told import figures_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Block = tuple[Mapping[str, Any], Mapping[str, Any], NDArray[np.float64]]
    """Of a release: its model, its noise and its counts."""

BLOCKS = MEMORY + 1
"""Releases that are looked at, the newest with them."""


def course(blocks: Sequence[Block], name: str) -> dict[str, bool | None]:
    """Return two alarms of a publication, as JSON.

    `drift`: the newest block is worse than those before it. `worse`: the newest version is worse than the version
    before it. None: there is nothing yet to compare with, or the records have no classes.

    blocks: neighbouring releases of one evaluation, the newest last.
    """
    newest, noise, counts = blocks[-1]
    number = newest["of"].index(name)
    figures = figures_of(newest, noise, counts)
    if not isinstance(figures, ClassFigures) or newest["versions"][number] is None:
        return {"drift": None, "worse": None}
    alike = [
        (model["versions"][number], counts.ravel())
        for model, _, counts in blocks
        if model["slots"] == newest["slots"] and model["versions"][number] is not None
    ]
    versions = sorted({version for version, _ in alike})
    now, last = ([counts for version, counts in alike if version in some] for some in (versions[-1:], versions[-2:-1]))
    layout, counted = figures.layout, figures.counted
    return {
        "drift": has_fallen(layout, [each for _, each in alike], counted, publication=number) if alike[1:] else None,
        "worse": is_worse(layout, now, last, counted, publication=number) if last else None,
    }
