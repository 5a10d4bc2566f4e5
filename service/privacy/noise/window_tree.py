"""Running sums whose oldest vectors are given up, to be without their noise: paper B's window tree, with expiry.

Statement. Private: vectors v_0, v_1, … in R^D, ‖v_t‖ ≤ V, each a function of records of its own and of what was
released before; replacing one record (R⊥) moves one of them, v_i, by at most Δ. Released at step t: S_t - S_(t-1), S_t
being v_0 + … + v_t with noise on the last of them only. All that is released before v_i is *declassified* costs the
record at most h·c, c being what `noise` charges a node of sensitivity Δ' (below). From then on nothing is promised of
it, and no bound holds: v_i itself is in every S_t, and the more of them, the more they tell (paper-audit.md 2).

| expiry | v_i is declassified at step | h | remembers, at most |
|---|---|---|---|
| `leaf` | i + W, never before | ⌊log₂ W⌋ + 1 | W + 2·⌊log₂ W⌋ + 2 vectors |
| `block` | W after the last of its block of B steps | ⌈log₂ W⌉ + 1 | 2·⌈log₂ W⌉ + 3 |

W is the window, B = 2^⌈log₂ W⌉. `leaf` is paper B's; `block` has no noise of nodes that come and go at the window's far
end. The case in which nothing is ever declassified is `correlated.Tree`.

How. e_t vectors are declassified at step t: max(0, t + 1 - W), of which `block` takes whole blocks. The rest, [e_t, t],
is covered by maximal aligned nodes [q·2^k, (q + 1)·2^k), at most B long. A node is the exact sum of its vectors, and
noise that is drawn when it is first used:
    S_t = Σ_(i < e_t) v_i + Σ_(nodes of the cover) (Σ_(i in node) v_i + noise of the node).

Why. Let somebody see every node as it is drawn, and the vectors themselves once they are declassified; S_t is a
function of that. Fix what he saw, and all records but that of v_i, which is not declassified yet. A node that holds i
then moves by at most Δ', and nothing else moves: other nodes hold other vectors, and these depend on what was released
only. So the record loses what the nodes that hold i cost together, however they are interleaved and whatever later
vectors make of them (paper-audit.md L1). There is one aligned node of a size that holds i, and none is used that
is longer than W (`leaf`: it lies in [e_t, t]) or B: at most h. This rests on each node's noise being drawn once.
 - A node [a, b) is within [e_t, t] from step b - 1 on, until e_t > a. A left child's parent begins at a and ends later:
   the child is used until the parent ends, or until both are left behind. A right child's parent ends with it and
   begins earlier: the child is used once the parent is left behind. Neither e_t nor t ever falls, so a node is used in
   steps that follow each other: what the step before left is all there is to remember, and none is drawn again.
 - The last node of a cover ends with step t, so it is new: every release has noise that no earlier one has, and no
   linear combination of releases is free of noise.

Rounding. Each v is rounded once to multiples of G, a power of two that is ≥ 2^-52·B·V, after its coordinates are
clipped to ±V; neighbours are then Δ' = Δ + G·√D apart at most. Sums of up to B of them are exact in doubles, in any
order, since they are whole multiples of G below 2^53·G. Rounding to the noise's own lattice is charged by `noise`.
The rest is post-processing: the sums of nodes and, which soon are not exact, of what is declassified.

The cost is exact (fractions, rounded up). Nothing is left out but SphericalLaplace's slack (`noise`), once for each of
the h draws that a record moves. The memory is as secret as the records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from service.privacy.currency import Currency, round_down, round_up
from service.privacy.noise import additive as noises
from service.privacy.noise.additive import Unaffordable, root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from service.privacy.noise.additive import Gaussian, SphericalLaplace

    Floats = NDArray[np.float64]

Node = tuple[int, int]
"""Steps [start, stop)."""
_LONGEST = 2**40
_BITS = 52  # exact sums fit these bits; one more bit covers rounding of their parts
_LEAST_GRID = -1000


@dataclass(frozen=True, kw_only=True)
class WindowTree:
    """The public plan of a window: which vectors are declassified when, and which tree nodes hold the others.

    >>> tree = WindowTree(window=4, expiry="block")
    >>> [tree.declassified(step) for step in range(1, 9)]
    [0, 0, 0, 0, 0, 0, 4, 4]
    >>> tree.cover(7)
    ((4, 8),)
    """

    kind: ClassVar[str] = "window_tree"
    steps: ClassVar[int | None] = None
    window: int
    """W"""
    expiry: Literal["block", "leaf"]

    def __post_init__(self) -> None:
        if not 1 <= self.window <= _LONGEST or self.expiry not in ("block", "leaf"):
            raise ValueError("a window tree has a window of 1 to 2^40 steps and expiry block or leaf")

    @property
    def block(self) -> int:
        """Return B, the steps of a block."""
        return 1 << (self.window - 1).bit_length()

    @property
    def levels(self) -> int:
        """Return h, the number of levels."""
        return (self.window if self.expiry == "leaf" else self.block).bit_length()

    def declassified(self, step: int) -> int:
        """Return e_t: the release of this step shows the first e_t vectors without noise."""
        past = max(0, step + 1 - self.window)
        return past if self.expiry == "leaf" else past // self.block * self.block

    def cover(self, step: int) -> tuple[Node, ...]:
        """Return the nodes that this step uses, from left to right."""
        nodes: list[Node] = []
        start, stop = self.declassified(step), step + 1
        while start < stop:
            size = min(start & -start or self.block, self.block)
            while start + size > stop:
                size //= 2
            nodes.append((start, start + size))
            start += size
        return tuple(nodes)

    def remembered(self, step: int) -> tuple[tuple[bool, Node], ...]:
        """Return the nodes remembered when this step begins, each with whether its sum has noise (else it is exact).

        In the order in which they came to be, so that what is new is always last. After them come the declassified.
        """
        if not step:
            return ()
        noisy = self.cover(step - 1)
        exact = [(i, i + 1) for i in range(self.declassified(step - 1), step)] if self.expiry == "leaf" else noisy
        nodes = [*((False, node) for node in exact), *((True, node) for node in noisy)]
        return tuple(sorted(nodes, key=lambda one: (self._first(one[1]) if one[0] else one[1][1] - 1, *one)))

    def remembers(self, step: int) -> int:
        """Return how many vectors are remembered when this step begins."""
        return len(self.remembered(step)) + 1 if step else 0

    def described(self) -> dict[str, Any]:
        """Return it as JSON, from which `running_sums.of` makes it again."""
        return {"kind": self.kind, "window": self.window, "expiry": self.expiry}

    def grid(self, largest: float) -> float:
        """Return G for the bound V = `largest`."""
        return math.ldexp(1.0, max(math.frexp(largest)[1] + self.block.bit_length() - 1 - _BITS, _LEAST_GRID))

    def _first(self, node: Node) -> int:
        """Return the first step that uses a node: where the node ends, or where its parent leaves the window."""
        start, stop = node
        size = stop - start
        right = size < self.block and start // size % 2 == 1
        return max(stop - 1, start - size + self.window) if right and self.expiry == "leaf" else stop - 1


@dataclass(frozen=True, kw_only=True)
class Windowed:
    """A window tree, the noise of every node, and V, the public bound on the norm of every v."""

    factor: WindowTree
    noise: Gaussian | SphericalLaplace
    largest: float

    def charge(self, sensitivity: float) -> float:
        """Return what a record that moves one vector by at most that pays until it is declassified: a ρ or an ε."""
        moved = _moved(self.factor, sensitivity, self.largest, self.noise.dimension)
        return round_up(self.factor.levels * Fraction(self.noise.charge(moved)))

    def release(self, values: Floats, memory: tuple[Floats, ...], step: int) -> tuple[Floats, tuple[Floats, ...]]:
        """Return S_t - S_(t-1), which the record's one charge pays for, and the state for the next step.

        values: v_t, `dimension` numbers, ‖v_t‖ ≤ V. step: its number; memory: what the step before returned. Both
        results are lost together or kept together: a step that is run twice is charged twice.
        """
        tree = self.factor
        if [array.shape for array in memory] != [values.shape] * tree.remembers(step):
            raise ValueError("the remembered state belongs to another step")
        *stored, clear = memory or (np.zeros(values.shape),)
        known = dict(zip(tree.remembered(step), stored, strict=True))
        exact = {node: sums for (noisy, node), sums in known.items() if not noisy}
        before = {node: known[True, node] for node in tree.cover(step - 1)}
        exact[step, step + 1] = _rounded(values, self.largest, tree.grid(self.largest))
        now = {
            node: before[node] if node in before else noises.add(_sum(exact, node), self.noise)
            for node in tree.cover(step)
        }
        gone = tree.declassified(step - 1), tree.declassified(step)
        cleared = clear + _sum(exact, gone) if gone[0] < gone[1] else clear
        released = (cleared + sum(now.values())) - (clear + sum(before.values()))
        after = (
            now[node] if noisy else exact[node] if node in exact else _sum(exact, node)
            for noisy, node in tree.remembered(step + 1)
        )
        return released, (*after, cleared)


@lru_cache(maxsize=64)
def calibrate(
    currency: Currency, *, tree: WindowTree, sensitivity: float, largest: float, charge: float, dimension: int
) -> Windowed:
    """Return the least noise for which a record pays at most `charge` until it is declassified: an ε or a ρ.

    sensitivity Δ and largest V: see the module. Unaffordable where rounding would cost more than the records.
    """
    moved = _moved(tree, sensitivity, largest, dimension)
    if moved > 2 * sensitivity:
        raise Unaffordable("the window is too long: rounding its sums would cost more than the records")
    share = round_down(Fraction(charge) / tree.levels)
    law = noises.calibrate(currency, sensitivity=moved, charge=share, dimension=dimension)
    return Windowed(factor=tree, noise=law, largest=largest)


def _moved(tree: WindowTree, sensitivity: float, largest: float, dimension: int) -> float:
    """Return Δ', rounded up."""
    return round_up(Fraction(sensitivity) + Fraction(tree.grid(largest)) * root(Fraction(dimension)))


def _rounded(values: Floats, largest: float, grid: float) -> Floats:
    return np.asarray(np.rint(np.clip(values, -largest, largest) / grid) * grid)


def _sum(exact: Mapping[Node, Floats], node: Node) -> Floats:
    """Return the sum of what lies within a node."""
    return np.asarray(sum(sums for (start, stop), sums in exact.items() if node[0] <= start and stop <= node[1]))
