"""How far one record can move the counts of an evaluation, recomputed from what its release says of them."""

from collections.abc import Mapping
from typing import Any

from service.privacy.noise.counts import Change


def change_of(model: Mapping[str, Any]) -> Change:
    """Return how one record changes the counts of all evaluated publications together. ValueError for other counts.

    A record adds 1 to a cell of each publication's table, of its bins, and to at most one cell of each pair; another
    record adds its 1 elsewhere. In a regression it moves two sums of each publication, and two moments, by at most
    `unit` each.
    """
    publications = len(model["of"])
    match model["counts"]:
        case "classes":
            cells = publications * (2 if model["bins"] else 1) + len(model["pairs"])
            return Change(counts=2 * cells, largest=1)
        case "errors":
            return Change(counts=2 * (publications + (1 if model["moments"] else 0)), largest=int(model["unit"]))
    raise ValueError("its counts are of no kind that is known")
