"""A step of a feature map: one kind of map with its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class MapStep(Protocol):
    """One kind of map with its settings. Never raises for the contents of a record, whatever floats they are."""

    @property
    def features(self) -> int:
        """Return the number of numbers in a mapped record."""

    def __call__(self, x: NDArray[Any], /) -> Floats:
        """Return x of shape (m, input features) mapped, (m, features), each row by itself."""
