"""The version of a publication that an evaluation block uses: a function of released, public facts.

Slots and times are absolute: a release at time t has been made from slots below t. A block uses, of each publication,
the release with the greatest time that is at most the block's first slot, and of these the greatest version; releases
that predict nothing (a base, an encoder) do not count. So no model has read a record of the block, on any stream, and
a clock has no say: every worker, today or after a crash, finds the same version.

A block waits until every evaluated publication has passed its first slot: until all of its releases up to there are
made. A publication that has halted or was stopped makes no more; its newest release is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Made:
    """A release of an evaluated publication."""

    version: int
    time: int
    predicts: bool = True


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of an evaluated publication."""

    releases: tuple[Made, ...]
    passed: int
    """The time up to which all its releases are made."""
    ended: bool = False
    """Whether it has halted or was stopped."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """One model's predictions for the n slots of a block."""

    labels: NDArray[np.generic]
    """(n,): classes, or predicted targets. Not finite, or no class: the model could not predict this record."""
    confidences: NDArray[np.float64] | None = None
    """(n,): the greatest probability of a class; None: the model has no probabilities, and fills no bins."""
    shortened: NDArray[np.bool_] | None = None
    """(n,): whether the model shortens the record to its norm; None: the evaluation does not count that."""

    def count_shortened(self, known: NDArray[np.bool_]) -> int:
        """Return how many of the slots that are known, (n,), hold a record that the model shortens."""
        return 0 if self.shortened is None else int((self.shortened & known).sum())


class Models(Protocol):
    """A reader of the released models of evaluated publications."""

    def progress(self, name: str, first_slot: int) -> Progress:
        """Return how far a publication has come, by what is confirmed and visible alone.

        Its releases include at least the newest that a block which begins with that slot may use.
        """

    def predict(self, name: str, version: int, x: NDArray[np.floating]) -> Predictions:
        """Return what a release predicts for x, shape (n, features)."""


def version_used(releases: Iterable[Made], first_slot: int) -> int | None:
    """Return the version for a block that begins with that slot; None: there is no model yet."""
    usable = [
        (release.time, release.version) for release in releases if release.predicts and release.time <= first_slot
    ]
    return max(usable)[1] if usable else None


def has_passed(progress: Progress, first_slot: int) -> bool:
    """Return whether the version for a block that begins with that slot is settled."""
    return progress.ended or progress.passed >= first_slot
