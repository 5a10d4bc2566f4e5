"""How far one record can move counts, recomputed from what their release says of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from service.privacy.accounting.events import NoisyCellCounts, NoisyCounts
from service.privacy.noise.counts import Change


def change_of(event: NoisyCounts, model: Mapping[str, Any], shape: Sequence[int]) -> Change:
    """Return how one record changes the counts of a release together. ValueError for counts of no kind that is known.

    shape: of the counts. Cells of features have a row for each feature, and a record adds 1 to a cell of each row.
    Another record adds its 1 elsewhere.

    Tables of predictions are of several publications. A record adds 1 to a cell of each publication's table, of its
    bins, and to at most one cell of each pair; another record adds its 1 elsewhere. In a regression it moves two sums
    of each publication, and two moments, by at most `unit` each. Where the shortened are counted, a record adds 1, or
    `unit`, or nothing to one cell of each publication, and another record moves that cell by no more.
    """
    if isinstance(event, NoisyCellCounts):
        return Change(counts=2 * shape[0], largest=1)
    publications = len(model["of"])
    shortened = publications if model.get("shortened", False) else 0
    match model["counts"]:
        case "classes":
            cells = publications * (2 if model["bins"] else 1) + len(model["pairs"])
            return Change(counts=2 * cells + shortened, largest=1)
        case "errors":
            sums = 2 * (publications + (1 if model["moments"] else 0))
            return Change(counts=sums + shortened, largest=int(model["unit"]))
    raise ValueError("its counts are of no kind that is known")
