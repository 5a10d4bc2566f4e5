"""How a step is made private whose noise later steps take back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.learners.linear import Perturbation
from service.privacy.noise import running_sums

if TYPE_CHECKING:
    from service.privacy.noise.additive import Gaussian, SphericalLaplace
    from service.privacy.noise.correlated import Correlated
    from service.privacy.noise.running_sums import Factor
    from service.privacy.noise.window_tree import Windowed


@dataclass(frozen=True, kw_only=True)
class InRunningSums(Perturbation):
    """`noise` is drawn at every step, and what it adds is taken back by later ones as `factor` says."""

    noise: Gaussian | SphericalLaplace
    factor: Factor
    largest: float
    """a public bound on the norm of what it is added to"""
    added_to: str = "running_sums"

    @property
    def sums(self) -> Correlated | Windowed:
        return running_sums.with_noise(self.factor, self.noise, self.largest)

    @property
    def draws(self) -> int:
        """How many draws of nearly exact noise one record moves, in its own step and in later ones."""
        return super().draws * running_sums.moved_draws(self.factor)

    def charge(self) -> float:
        """Return what it costs each record of the batch, now and ever after, rounded up."""
        return self.sums.charge(self.sensitivity)

    def described(self) -> dict[str, Any]:
        """Return it as JSON, with all it takes to recompute the charge."""
        return {**super().described(), "factor": self.factor.described(), "largest": self.largest}
