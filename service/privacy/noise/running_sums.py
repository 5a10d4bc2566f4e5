"""The noise of running sums over an endless stream, step by step: of a factor, or of a window's nodes.

Statement. As in `correlated` and in `window_tree`: private are vectors of which a record moves one, released are
estimates of them whose running sums are near the truth, and the record pays once. A run of steps has noise of its own;
steps of one run tell nothing of another's vectors but through what was released, so each record pays for its own run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from service.privacy.noise import correlated, window_tree
from service.privacy.noise.correlated import Blt, Correlated, Toeplitz, Tree
from service.privacy.noise.window_tree import Windowed, WindowTree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from service.privacy.currency import Currency
    from service.privacy.noise.additive import Gaussian, SphericalLaplace

Factor = correlated.Factor | WindowTree


class Runs(Protocol):
    """The public division of an endless stream into runs, each with its factor."""

    def at(self, step: int) -> tuple[Factor, int]:
        """Return the factor of the run that this step is in, and the step's number there."""

    def samples(self) -> Sequence[int]:
        """Return some steps from which on there is another factor, the first one first, to tell people about."""


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """One run after another, all alike."""

    factor: Factor

    def at(self, step: int) -> tuple[Factor, int]:
        return self.factor, step if self.factor.steps is None else step % self.factor.steps

    def samples(self) -> Sequence[int]:
        return (0,)


@dataclass(frozen=True, kw_only=True)
class Doubling:
    """Trees of 1, 2, 4, … steps. A record is in one of them; the later, the more levels, and the more noise."""

    def at(self, step: int) -> tuple[Factor, int]:
        steps = 1 << ((step + 1).bit_length() - 1)
        return Tree(steps=steps), step + 1 - steps

    def samples(self) -> Sequence[int]:
        return tuple(2**e - 1 for e in (0, 2, 5, 10, 20))


def moved_draws(factor: Factor) -> int:
    """Return how many draws of noise one record can move."""
    return factor.levels if isinstance(factor, WindowTree) else factor.column.length


def with_noise(factor: Factor, noise: Gaussian | SphericalLaplace, largest: float) -> Correlated | Windowed:
    """Return what releases the steps of a run; largest: V."""
    if isinstance(factor, WindowTree):
        return Windowed(factor=factor, noise=noise, largest=largest)
    return Correlated(factor=factor, noise=noise, largest=largest)


def calibrate(
    currency: Currency, *, factor: Factor, sensitivity: float, largest: float, charge: float, dimension: int
) -> Correlated | Windowed:
    """Return the least noise for which a run costs a record at most `charge`: an ε (PURE) or a ρ (ZCDP).

    sensitivity: Δ, largest: V. Unaffordable where rounding would cost more than the records.
    """
    settings: dict[str, Any] = {
        "sensitivity": sensitivity,
        "largest": largest,
        "charge": charge,
        "dimension": dimension,
    }
    if isinstance(factor, WindowTree):
        return window_tree.calibrate(currency, tree=factor, **settings)
    return correlated.calibrate(currency, factor=factor, **settings)


def of(described: Mapping[str, Any]) -> Factor:
    """Return the factor of a description. ValueError, KeyError or TypeError if it describes none."""
    match described["kind"]:
        case Toeplitz.kind:
            return Toeplitz(bands=_whole(described["bands"]), decay=described["decay"])
        case Blt.kind:
            decays, scales = (tuple(float(number) for number in described[name]) for name in ("decays", "scales"))
            return Blt(decays=decays, scales=scales, steps=_whole(described["steps"]))
        case Tree.kind:
            return Tree(steps=_whole(described["steps"]))
        case WindowTree.kind:
            return WindowTree(window=_whole(described["window"]), expiry=described["expiry"])
        case other:
            raise ValueError(f"no factor is a {other}")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("a factor's sizes are whole numbers")
    return value
