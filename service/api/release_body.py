"""A release as it is told."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.figures.reported_figures import all_figures, outline
from service.store import digests, releases


def shown(publication: str, release: releases.ReleaseInfo) -> dict[str, Any]:
    """Return a release as it is served, with its parameters' values if they are there."""
    parameters: dict[str, Any] = {"shape": list(release.shape)}
    if isinstance(release, releases.Release):
        parameters["values"] = np.ascontiguousarray(release.parameters)
    return {
        "publication": publication,
        "version": release.version,
        "time": release.time,
        "role": release.role,
        "window": _range(release.window),
        "fit": _range(release.fit),
        "parent": release.parent,
        "parameters": parameters,
        "model": release.model,
        "noise": release.noise,
        "charge": release.charge,
        "published_at": digests.timestamp(release.published_at),
        **({} if release.counts is None else {"evaluation": _evaluation(release, release.counts)}),
    }


def _evaluation(release: releases.ReleaseInfo, counts: NDArray[np.float64]) -> dict[str, Any]:
    """Return how good the evaluated publications are: all figures with a whole release, the main ones in a list."""
    whole = isinstance(release, releases.Release)
    return (all_figures if whole else outline)(release.model, release.noise, counts)


def _range(bounds: tuple[int, int]) -> dict[str, int]:
    return {"start": bounds[0], "end": bounds[1]}
