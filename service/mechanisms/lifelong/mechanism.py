"""A model of all tasks so far after every batch, from private statistics that are remembered (paper D's setting).

Statement. Private: every record of the stream. Neighbours: R⊥. Released: a model after every batch of every task, for
ever. Over the whole run, whoever chooses the records adaptively, one record loses at most `capacity`: an ε or a ρ,
whatever the number of tasks, of steps and of releases.

Why. A record is in one batch of one task; both are public ranges of slots (`lifelong.tasks`). It enters that batch's
statistics, and everything that is ever released is a function of their noisy estimate and of others that do not read
it: `lifelong.task_statistics`. Its charge, the whole capacity, is for all of that, and is taken with the release of its
batch.
One record is what is protected. If records differ in m batches, they lose m·ε together in pure ε; in ρ m times as much
with independent noise, and ‖Σ_j c^(b_j)‖²/‖c‖² times where noise is carried on (docs/privacy.md), at most m² times.

On a stream with units, a unit adds to a batch, or to a step of the encoder, the mean of what its records would add, so
that it moves the sum as far as one record. p of its slots cost at most T(p) of the batches' noise
(`accounting.carried_groups`), B being the longest batch of any task: shorter ones are farther apart. Steps of the
encoder have noise of their own, and come before all batches: a unit with j slots in them and p - j in batches pays
j + T(p - j) ≤ T(p), since T grows by at least 1 with each slot.

With an `encoder`, the records before the first task are what it is learnt from, each in one step of `encoder_pass`, for
its whole charge too. Its weights are the first release: from then on they are public and stay as they are, and tasks
are learnt from statistics of the features that it makes. A record is before the first task or in a batch of one, never
both, so that it pays once. (paper-audit.md 4.2 learns from and counts the same records, for the sum of both charges.
But statistics of an encoder that learns on would be of features that nobody can compute of other records any more.)

Features that are made here, by a map of its own or an encoder, are made of all slots of a batch at once, each in its
public place, empty ones as zeros. A library's result for a row may depend on the row's place and on how many there are
(one row alone is multiplied by another routine than many), and for records that are very long random Fourier features
differ by as much as they can then. So if an empty slot were left out, a record could move those of others.

A step leaves `StatePart`s for the next. They are committed with the release or not at all, and never made again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from service.learning.records import Records
from service.mechanisms.linear import LinearMechanism
from service.mechanisms.mechanism import CarriedState, Model, Release, StateLost, Step, numbered, parts_of
from service.mechanisms.on_schedule import describe_noise
from service.mechanisms.units import of_carried_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from service.mechanisms.lifelong.encoder_pass import EncoderPass
    from service.mechanisms.lifelong.task_statistics import TaskStatistics
    from service.mechanisms.lifelong.tasks import Tasks
    from service.mechanisms.mechanism import Mechanism
    from service.mechanisms.timing import Workspace
    from service.privacy.accounting.events import NoisyStatistics
    from service.privacy.accounting.groups import UnitBound
    from service.schedules.schedule import Fit, Pattern
    from service.streams.feature_maps import FeatureMap


@dataclass(frozen=True, kw_only=True, eq=False)
class Lifelong(LinearMechanism):
    """A publication that learns task after task."""

    schedule: Tasks
    learner: TaskStatistics
    own_map: FeatureMap
    """The map of the stream's mapped records before they are read; part of `feature_map`."""
    encoder: EncoderPass | None = None
    """The encoder that is learnt before the first task, and then maps records that `own_map` has mapped."""

    @property
    def setting_of_features(self) -> str | None:
        """Return the setting by which it makes features of its own of the stream's records; None: it makes none."""
        if self.encoder is not None:
            return "encoder"
        return "features" if self.own_map.steps else None

    def step(
        self, time: int, chain: Sequence[CarriedState], next_version: int, read: Callable[[int, int], Records]
    ) -> Step:
        """Count the batch that ends at `time` and learn from all that is remembered; see `Mechanism.step`."""
        (fit,) = self.schedule.fits(time)
        charge = self._charge(fit.share)
        if fit.role == "base":
            release = self._encoder(fit, next_version, charge, read)
            return Step(releases=(release,), chain=(Model(version=next_version, parameters=release.parameters),))
        place, slots = self.schedule.place(fit.start), self.slots_of(fit)
        perturbation = self.noise_of_batches()
        parts = parts_of(chain, self.learner.remembers(perturbation, place))
        encoders = [item for item in chain if isinstance(item, Model)]
        records = read(fit.start, fit.end)
        state, model = self.learner.advance(
            tuple(part.values for part in parts),
            replace(records, x=self._features(records, fit, encoders)),
            slots,
            self.origin,
            perturbation,
            place,
        )
        release = Release(
            version=next_version,
            role=fit.role,
            time=time,
            window=fit.window,
            fit=(fit.start, fit.end),
            parent=next_version - 1 if self.learner.training == "agem" and place.number else None,
            parameters=model,
            perturbation=perturbation,
            charge=charge,
            model=self.described(records),
        )
        return Step(releases=(release,), chain=(*encoders, *numbered(state, parts)))

    @property
    def workspace(self) -> Workspace:
        """Return the size of the matrices that a model is solved from, or of the encoder's gradients."""
        batches = self.learner.workspace
        return batches if self.encoder is None else replace(batches, numbers=max(batches.numbers, self.encoder.numbers))

    def check_units(self) -> None:
        """Raise nothing: a unit adds the mean of what its records would add to a batch, or to a step of the encoder."""

    def group_factor(self, bound: UnitBound, charging: Callable[[Fraction], Mechanism]) -> Fraction:
        """Return g of the batches' noise, which is enough for the encoder's steps too: see the module."""
        return of_carried_noise(
            bound,
            self.schedule.largest,
            self.noise_of_batches(),
            lambda factor: cast("Lifelong", charging(factor)).noise_of_batches(),
        )

    def fewest_slots(self) -> int:
        """Return the least n of any batch."""
        return self.training.least(self.schedule.smallest)

    def terms(self, time: int) -> dict[str, Any] | None:
        """Return the noise, its factor and the weights, which all batches must share so that estimates can be added."""
        (fit,) = self.schedule.fits(time)
        return self.noise_of_batches().to_json() if fit.start > self.schedule.before else None

    def model_description(self) -> dict[str, Any]:
        """Return all it takes to compute a prediction from released parameters, as JSON."""
        described = super().model_description()
        if self.encoder is not None:
            described["encoder"] = self.encoder.encoder.described() | {"release": 1}
        if self.learner.heads == "shared":
            return described
        rows, columns = self.learner.shape
        return described | {
            "heads": "per_task",
            "shape": [None, columns],
            "dimension": None,
            "rows": f"{rows} of the model of each task remembered, oldest first, then one of each task's scores: the "
            "model of the task with the largest score predicts",
        }

    def planned_model(self) -> dict[str, Any]:
        """Return the loss, the size of the weights, what the learner tells and the encoder, as JSON."""
        return super().planned_model() | ({} if self.encoder is None else {"encoder": self.encoder.describe()})

    def _encoder(self, fit: Fit, version: int, charge: float, read: Callable[[int, int], Records]) -> Release:
        """Return the encoder learnt from the records before the first task."""
        learnt = self.encoder
        assert learnt is not None  # noqa: S101 - nothing is before the first task otherwise
        records = read(fit.start, fit.end)
        of_steps = None
        if records.units is not None:  # shares are of the unit's records in one step, not in the whole range
            of_steps = [read(*batch) for batch in learnt.batches(fit.start)]
            records = replace(_one_after_another(of_steps), units=records.units)
        perturbation = learnt.perturbation(self.currency, charge)
        linear = super().model_description()
        return Release(
            version=version,
            role=fit.role,
            time=fit.end,
            window=fit.window,
            fit=(fit.start, fit.end),
            parent=None,
            parameters=learnt.release(
                replace(records, x=self._mapped(records, fit)),
                fit.start,
                perturbation,
                self.training,
                None if of_steps is None else [summed.units or 0 for summed in of_steps],
            ),
            perturbation=perturbation,
            charge=charge,
            model={"kind": "encoder", "encoder": learnt.encoder.described()}
            | {name: linear[name] for name in ("loss", "classes", "features", "feature_map")}
            | {"shape": [1, learnt.dimension], "coordinates": "each layer's matrix and bias, then the head"}
            | ({} if records.units is None else {"units": records.units}),
        )

    def _features(self, records: Records, fit: Fit, encoders: Sequence[Model]) -> NDArray[Any]:
        """Return the features of mapped records of the stream, by `own_map` and the encoder."""
        if self.encoder is None:
            return self._mapped(records, fit)
        if not encoders:
            raise StateLost("the encoder that its first step released is missing")
        encode, weights = self.encoder.encoder, encoders[0].parameters
        return _in_place(lambda x: encode(weights, self.own_map(x)), records, fit)

    def _mapped(self, records: Records, fit: Fit) -> NDArray[Any]:
        return _in_place(self.own_map, records, fit) if self.own_map.steps else records.x

    def noise_of_batches(self) -> NoisyStatistics:
        """Return the noise of every batch: that of the largest batch, since all of a run share one law."""
        return self.learner.perturbation(
            self.currency, self._charge(self.schedule.lifetime().share), self.schedule.largest
        )

    def _fits(self) -> list[dict[str, Any]]:
        """Return the encoder's pass and the kinds of batches as JSON."""
        learnt = self.encoder
        if learnt is None:
            return super()._fits()
        charge = self._charge(self.schedule.lifetime().share)
        noise = describe_noise(learnt.perturbation(self.currency, charge))
        passed = {
            "what": "encoder",
            "when": f"before the first task, once: {learnt.steps} steps along {learnt.records} records",
            "records": -(-learnt.records // learnt.steps),
            "share": "1",
            "charge": charge,
            "sensitivity": noise.pop("sensitivity"),
            "noise": noise,
        }
        return [passed, *super()._fits()]

    def _pattern(self, pattern: Pattern) -> dict[str, Any]:
        """Return a batch as JSON, with the pull after the first one."""
        slots = self.training.least(pattern.records)
        pull = self.learner.pull(self.noise_of_batches(), slots, 1)
        described = super()._pattern(replace(pattern, records=self.schedule.largest))
        return described | {"records": slots, "ridge": pull}


def _one_after_another(parts: Sequence[Records]) -> Records:
    """Return the records of neighbouring ranges, each with its part of its unit in its own range."""
    x, y, slots, weights = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y", "slots", "weights")
    )
    return Records(x=x, y=y, slots=slots, weights=weights, units=0)


def _in_place(make: Callable[[NDArray[Any]], NDArray[Any]], records: Records, fit: Fit) -> NDArray[Any]:
    """Return the features of each record, (m, features), computed for all slots of the fit at once; see the module."""
    slots = records.in_slots(fit.start, fit.end) - fit.start
    x = np.zeros((fit.end - fit.start, records.x.shape[1]), dtype=records.x.dtype)
    x[slots] = records.x
    return make(x)[slots]
