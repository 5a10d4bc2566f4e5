"""A model of the last W blocks, solved from private sums of their records' statistics.

Statement. Private: every record of the stream. Neighbours: R⊥. Released: the model after every block, for ever. Over
the whole run, whoever chooses the records adaptively, one record loses at most `capacity`: an ε or a ρ.

Why. A record is in one block, whose slots are public. It enters that block's statistics, and everything that is ever
released is a function of their noisy estimate and of others that do not read it: `mechanisms.sufficient_statistics` and
`noise.correlated`. Its charge, the whole capacity, is for all of that, whatever W is, and is taken with the release
of its block. A window that has left a block behind depends on nothing of it: forgetting is exact.

Candidates are models of the newest of the same estimates, with other pulls: post-processing, for which nothing more is
charged. None is of more blocks than W, so that forgetting is exact for them too.

A step leaves `StatePart`s for the next: the estimates of the blocks that are still in the window, and noise, as
secret as the records. They are committed with the release or not at all, and never made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from service.mechanisms.linear import LinearMechanism
from service.mechanisms.mechanism import CarriedState, Release, Step, numbered, parts_of
from service.mechanisms.on_schedule import describe_noise
from service.mechanisms.units import of_carried_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from service.learning.optimization.losses import Floats
    from service.learning.records import Records
    from service.mechanisms.mechanism import Mechanism
    from service.mechanisms.timing import Workspace
    from service.mechanisms.window_statistics.window_model import WindowModel
    from service.privacy.accounting.events import NoisyStatistics
    from service.privacy.accounting.groups import UnitBound
    from service.schedules.schedule import Fit


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowStatistics(LinearMechanism):
    """A publication that adds up each block once; its schedule is the blocks."""

    learner: WindowModel

    def step(
        self, time: int, chain: Sequence[CarriedState], next_version: int, read: Callable[[int, int], Records]
    ) -> Step:
        """Add up the block that ends at `time` and solve for the window; see `Mechanism.step`."""
        (fit,) = self.schedule.fits(time)
        records = fit.end - fit.start
        number = fit.start // records
        perturbation = self._perturbation(fit)
        parts = parts_of(chain, self.learner.remembers(perturbation, number))
        present = read(fit.start, fit.end)
        state, (model, *candidates) = self.learner.advance(
            tuple(part.values for part in parts),
            present,
            self.slots_of(fit),
            self.origin,
            perturbation,
            number,
        )
        release = Release(
            version=next_version,
            role=fit.role,
            time=time,
            window=(max(0, time - self.learner.blocks * records), time),
            fit=(fit.start, fit.end),
            parent=None,
            parameters=model,
            perturbation=perturbation,
            charge=self._charge(fit.share),
            model=self._released_description(present, candidates),
        )
        return Step(releases=(release,), chain=numbered(state, parts))

    def terms(self, time: int) -> dict[str, Any] | None:
        """Return the noise, its factor and the weights, which all blocks must share so that estimates can be added."""
        (fit,) = self.schedule.fits(time)
        return self._perturbation(fit).to_json() if fit.start else None

    @property
    def workspace(self) -> Workspace:
        """Return the size of the matrices that a model is solved from."""
        return self.learner.workspace

    def check_units(self) -> None:
        """Raise nothing: a unit adds the mean of its records' statistics to a block."""

    def group_factor(self, bound: UnitBound, charging: Callable[[Fraction], Mechanism]) -> Fraction:
        """Return g of the blocks' noise, in which a unit has one contribution a block."""
        return of_carried_noise(
            bound,
            self.next_time(0),
            self.first_noise(),
            lambda factor: cast("WindowStatistics", charging(factor)).first_noise(),
        )

    def first_noise(self) -> NoisyStatistics:
        """Return the noise of the first block."""
        (fit,) = self.schedule.fits(self.next_time(0))
        return self._perturbation(fit)

    def _released_description(self, records: Records, candidates: Sequence[Floats]) -> dict[str, Any] | None:
        """Return what a release says of its model, with the candidates' parameters if there are candidates."""
        described = self.described(records)
        if not candidates:
            return described
        listed = [
            {**candidate, "parameters": parameters.tolist()}
            for candidate, parameters in zip(self._candidates(), candidates, strict=True)
        ]
        return (described or self.model_description()) | {"candidates": listed}

    def _candidates(self) -> list[dict[str, Any]]:
        """Return the settings of the candidates as JSON."""
        return [{"blocks": candidate.blocks, "ridge": candidate.ridge} for candidate in self.learner.candidates]

    def _perturbation(self, fit: Fit) -> NoisyStatistics:
        return self.learner.perturbation(self.currency, self._charge(fit.share), fit.end - fit.start)

    def _fits(self) -> list[dict[str, Any]]:
        """Return what is done for every block as JSON."""
        (fit,) = self.schedule.fits(self.next_time(0))
        perturbation, records = self._perturbation(fit), fit.end - fit.start
        slots = self.training.least(records)
        noise = describe_noise(perturbation)

        def pull(model: WindowModel) -> float:
            return model.pull(perturbation, slots * model.blocks, 4 * model.blocks)

        candidates = [
            candidate | {"ridge": pull(model)}
            for candidate, model in zip(self._candidates(), self.learner.candidates, strict=True)
        ]
        return [
            {
                "what": "block",
                "when": f"every {records} records, the statistics of the last {records}; "
                f"the model is solved from those of the last {records * self.learner.blocks}, at first of fewer",
                "records": slots,
                "share": str(fit.share),
                "charge": self._charge(fit.share),
                "ridge": pull(self.learner),
                **({"candidates": candidates} if candidates else {}),
                "sensitivity": noise.pop("sensitivity"),
                "noise": noise,
            }
        ]
