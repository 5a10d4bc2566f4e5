"""Linear queries of a growing database, answered from a public histogram (paper C, PMWG; paper-audit.md 3.1).

Statement. Private: every record of the stream. Neighbours: R⊥. Told: the answers to any number of queries, which may
be chosen adaptively by anybody, and every release of the histogram. Over the whole run one record loses at most
`capacity`: an ε or a ρ.

How. A query is answered by the public histogram as long as that is right: an instance of the sparse vector technique
(`noise.sparse_vector`) compares the two. When they differ by much, the query is hard: it is measured
(`noise.numeric_sparse`), the measured answer is told, the histogram takes a step of multiplicative weights towards
it and is released, and the next instance opens with another threshold.

Why it is private. An instance that opens over t slots is paid for by these when it opens and by every slot that comes
while it is open when it comes: `version` of that charge is null. A measured answer is paid for by the slots that it
counted, with the version of the release that follows from it. So each slot pays for each instance that was open while
it was there, once, and all of it: `sparse_vector` and `numeric_sparse` prove the amounts, the ledger theorem
(paper-audit.md L1) adds them up. An instance opens only if all of it, its measured answer too, fits the cap of the slot
that has paid most; when it does not, the histogram is `frozen`: it goes on answering, and nothing that is told depends
on a record any more. The stop is what the guarantee rests on; how many hard queries there can be is only reckoned
with.

Units. Neighbours: U⊥. Every counting slot is counted, so that the m slots of a unit move a count by up to m·STEPS. Each
instance, and each measured answer, is a release of its own that charges a slot that was there all of its cost, and any
other nothing; k slots of a unit cost k times its ε, or k² times its ρ (a chain of k streams, however slots arrive and
queries are chosen: `groups`). So a slot may be charged ε/m, or ρ/m² (`groups.shared`), and the scale of the noise, made
for one slot at that charge, is m times as large. Sensitivity stays that of one slot: m in both would count twice.

Why it is accurate. Let N' = N + 1 cells (with ⊥), α the accuracy, and let every noise stay within α/6 of its query
(thresholds and comparisons together), a measured answer's within α/18. `HEIGHT` is 5α/6, so an easy answer is within
α; a hard query is off by d ≥ 2α/3 and its step lowers the relative entropy of truth to histogram by at least 2d² -
2(α/18)² ≥ (143/162)·α² (`Histogram.moved`). It begins at most at ln N', and a new slot raises it by at most ln N'/(t +
1) (joint convexity), so that up to time t there are at most H0·(1 + ln(t/n)) hard queries, H0 = (162/143)·ln N'/α².
With e(t) = e0·√(n/t) for the instance that opens at t, and costs that are proportional to e (ε) or e² (ρ), they cost
together at most e0·(1 + 3·H0) or e0²·(1 + 2·H0), whatever t is, and that sets e0. All noise of k queries stays within
those bounds, but for a probability β, once n ≥ 54·ln((3k + 1)/β)/(α·e0): at most k comparisons, k + 1 thresholds and k
measurements are made, whose scales are at most 6/(n·e0), 3/(n·e0) and 3/(n·e0).

Where it differs from paper-audit.md 3.1: one comparison with |f(x) - a| in the place of two; HEIGHT 5α/6 and not 2α/3,
a step of 4·(measured - guess) and not α/6, which need 16 times fewer records for the same promise; under δ > 0 an
instance is counted as what its parts cost, ρ = 5e²/18 and not e²/2, and its number has Gaussian noise.

| here | paper-audit.md 3.1 | paper C |
|---|---|---|
| first n, time t, cells N' | n, t, N | n, t, N |
| accuracy α, failure_probability β | α, β | α, β |
| e0, e(t), p = 1/2 | e0, e(t), p | ξ_0, ξ_t, p |
| Instance.scale | 3·STEPS/e | |
| Histogram.shares | y | y_t |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from service.mechanisms import histogram
from service.mechanisms.interactive import InteractiveMechanism, Measurement, Opened, opened
from service.mechanisms.mechanism import Charge, Release, StatePart, Step
from service.privacy.accounting.events import MeasuredQuery, OpenedInstance
from service.privacy.accounting.groups import group_factor, shared
from service.privacy.accounting.obligations import Obligations, OnOpening
from service.privacy.currency import Currency, round_down, round_up
from service.privacy.noise import numeric_sparse
from service.privacy.noise.additive import Unaffordable
from service.privacy.noise.sparse_vector import LARGEST_SCALE, STEPS, Instance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from service.learning.records import Records
    from service.mechanisms.histogram import Histogram, LinearQuery
    from service.mechanisms.mechanism import CarriedState, Mechanism
    from service.privacy.accounting.groups import UnitBound

HEIGHT = Fraction(5, 6)  # times the accuracy: the error from which on a query is hard
SHARPNESS = Fraction(1, 6)  # times the accuracy: the error that noise may add
_ROUNDED = 1 - Fraction(1, 2**45)  # room for rounding up the charges of a fixed number of instances
_STRIDE = 1024  # new records are counted once they are 1/1024 of the counted ones
RECKONED = (1_000, 1_000_000)  # numbers of queries for which a plan states how many records are needed


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearQueries(InteractiveMechanism):
    """A publication of one histogram over `cardinality` categories. `hits`: so many instances, each for its share."""

    first: int
    accuracy: float | None
    failure_probability: float
    hits: int | None

    @property
    def alpha(self) -> float:
        """Return the accuracy: the requested one, or, with `hits`, the least at which noise alone makes no query hard.

        Then `height` is what the noise of the first instance stays within, for a thousand queries, and at most 5/6. It
        is no promise: an answer's `error_bound` says what is known of it.
        """
        if self.accuracy is not None:
            return self.accuracy
        return min(1.0, self._noise(RECKONED[0]) / (float(HEIGHT) * self.first))

    @property
    def reckoned_hits(self) -> float:
        """H0: how many hard queries there are at most until the number of records has grown by a factor of e."""
        return 162 / 143 * math.log(self.cardinality + 1) / self.alpha**2

    def next_time(self, after: int) -> int:
        """Return the next time at which records are counted: first for `first` records, then for each 1/1024 more."""
        return self.first if after < self.first else after + 1 + after // _STRIDE

    def taken_at(self, due: int, records: int) -> int:
        """Return how many there are: all are counted in together, but for the first ones, over which it opens."""
        return due if due == self.first else records

    def needs(self, after: int) -> int:  # noqa: ARG002 - every hard query counts them all
        """Return 0: a hard query counts every record."""
        return 0

    def reads(self, time: int) -> int:  # noqa: ARG002 - hard queries are counted where they are asked
        """Return 0: no step reads any record."""
        return 0

    def terms(self, time: int) -> dict[str, Any] | None:  # noqa: ARG002 - at no time others
        """Return the lattice and the height, with which a threshold was drawn."""
        return {"steps": STEPS, "height": self.height}

    @property
    def height(self) -> float:
        """Return how far off a query is that counts as hard, in parts of the slots."""
        return float(HEIGHT) * self.alpha

    # Nothing is read or released.
    def step(
        self,
        time: int,
        chain: Sequence[CarriedState],
        next_version: int,  # noqa: ARG002
        read: Callable[[int, int], Records],  # noqa: ARG002
    ) -> Step:
        """Count the records up to `time` in: open the first instance over them, or charge the new ones for that open.

        See `Mechanism.step`. It releases nothing; `close` does.
        """
        if time == self.first:
            return self._charged(self._opening(time, number=1, paid=time), 0)
        now = opened(chain)
        if now is None:
            return Step(releases=(), chain=tuple(chain))
        later = Opened(number=now.number + 1, instance=now.instance, noise=now.noise, paid=time)
        return self._charged(later, now.paid)

    def measure(self, now: Opened, query: LinearQuery, counts: NDArray[np.int64], shown: Histogram) -> Measurement:
        """See `InteractiveMechanism.measure`."""
        measured = numeric_sparse.measured(self.currency, now.instance.scale, query.count(counts))
        answer = min(1.0, max(0.0, float(Fraction(measured, STEPS * shown.time))))
        return Measurement(answer=answer, moved=shown.moved(query, answer - query.of(shown.shares)))

    def close(self, now: Opened, measurement: Measurement, spent: Fraction, next_version: int) -> Step:
        """Close an instance; the next one opens if all of it fits the cap. See `InteractiveMechanism.close`."""
        moved = measurement.moved
        charge = self._answer_charge(now.instance)
        following = self._next(now, moved.time, spent + Fraction(charge))
        release = Release(
            version=next_version,
            role="model",
            time=moved.time,
            window=(0, moved.time),
            fit=(0, moved.time),
            parent=next_version - 1 or None,
            parameters=moved.shares[None, :],
            perturbation=self._measured(now.instance, None if following is None else following.instance),
            charge=charge,
        )
        if following is None:
            frozen = StatePart(number=now.number + 1, values=np.zeros(0))
            return Step(releases=(release,), chain=(frozen,))
        opening = self._charged(following, 0)
        return Step(releases=(release,), chain=opening.chain, charges=opening.charges)

    def error_of_easy(self, instance: Instance) -> float:
        """Return how far an easy answer is from the truth at most, but for a probability of `failure_probability`."""
        noise = numeric_sparse.reach(Currency.PURE, 3 * instance.scale, self.failure_probability / 2)
        return self._error(self.height + float(noise * instance.step))

    def error_of_measured(self, instance: Instance, time: int) -> float:
        """Return the same of a measured answer over `time` slots."""
        noise = numeric_sparse.reach(self.currency, instance.scale, self.failure_probability)
        return self._error(float(Fraction(noise) / (STEPS * time)))

    @staticmethod
    def _error(noise: float) -> float:
        """Return an error plus the error of rounding a query's weights to the lattice."""
        return min(1.0, noise + 1.0 / STEPS)

    def _charged(self, now: Opened, start: int) -> Step:
        charge = Charge(start=start, stop=now.paid, amount=self._opening_charge(now.instance))
        return Step(releases=(), chain=(now.part(),), charges=(charge,))

    def _next(self, now: Opened, time: int, spent: Fraction) -> Opened | None:
        """Return the next instance, over the slots that were counted, if all of it fits the cap; None: it is frozen."""
        try:
            following = self._opening(time, number=now.number + 1, paid=now.paid)
        except Unaffordable:
            return None
        opening = Fraction(self._opening_charge(following.instance))
        answer = Fraction(self._answer_charge(following.instance))
        return following if spent + opening + answer <= self.capacity else None

    def _opening(self, time: int, *, number: int, paid: int) -> Opened:
        """Return an instance over that many slots, with a threshold of its own."""
        instance = Instance(opened=time, scale=self._scale(time))
        return Opened(number=number, instance=instance, noise=instance.threshold_noise(), paid=paid)

    def _opening_charge(self, instance: Instance) -> float:
        return round_up(OpenedInstance(instance=instance).cost(self.currency, records=instance.opened))

    def _answer_charge(self, instance: Instance) -> float:
        return round_up(self._measured(instance, None).cost(self.currency, records=instance.opened))

    def _measured(self, closed: Instance, following: Instance | None) -> MeasuredQuery:
        return MeasuredQuery(currency=self.currency, scale=closed.scale, closed=closed, opened=following)

    def _scale(self, time: int) -> float:
        """Return the scale of the instance that opens at a time. Raises Unaffordable where no noise is that large."""
        e = self._first_e if self.hits is not None else self._first_e * math.sqrt(self.first / time)
        scale = max(1.0, round_up(3 * STEPS / Fraction(e))) if e > 0 else math.inf
        if scale > LARGEST_SCALE:
            raise Unaffordable("the budget is too small: no noise is as large as each comparison would need")
        return scale

    @property
    def _first_e(self) -> float:
        """Return e0: what the first instance costs, in units in which each of its three parts is a third of it."""
        if self.hits is not None:
            share = self.capacity / self.hits * _ROUNDED
        elif self.currency is Currency.PURE:
            share = self.capacity / (1 + 3 * Fraction(self.reckoned_hits))
        else:
            share = self.capacity / (1 + 2 * Fraction(self.reckoned_hits))
        if self.currency is Currency.PURE:
            return round_down(share)
        return math.sqrt(round_down(share * 18 / 5)) * (1 - 2.0**-50)

    def _noise(self, queries: int) -> float:
        """Return n times what all noise of that many queries stays within, in parts of n slots (see the module)."""
        return 9 * math.log((3 * queries + 1) / self.failure_probability) / self._first_e

    def records_needed(self, queries: int) -> int:
        """Return how many records the first instance should have, for the accuracy to hold for that many queries."""
        return math.ceil(self._noise(queries) / (float(SHARPNESS) * self.alpha))

    def check_units(self) -> None:
        """Do nothing: what all slots of a unit cost together is shown whatever they hold."""

    def group_factor(self, bound: UnitBound, charging: Callable[[Fraction], Mechanism]) -> Fraction:  # noqa: ARG002
        """Return m²: all slots of a unit may be counted by the same noise."""
        return group_factor(shared(bound))

    def draws(self) -> int:
        """Return 0: thresholds, comparisons and measured answers have exact noise."""
        return 0

    @property
    def charging(self) -> OnOpening:
        """Each record pays for every instance that is open while it is there."""
        return OnOpening(OpenedInstance(instance=self._first_instance()))

    def obligations(self) -> Obligations:
        """Return the obligations: charges of open instances, and the number of categories."""
        return replace(super().obligations(), cells=self.cardinality, ticks=False)

    def _first_instance(self) -> Instance:
        return Instance(opened=self.first, scale=self._scale(self.first))

    def plan(self) -> dict[str, Any]:
        """Return what this publication does to a record and how accurate it is, as JSON: for a person to judge."""
        first = self._first_instance()
        opening = self._opening_charge(first)
        answer = self._answer_charge(first)
        promised = RECKONED if self.accuracy is not None else ()
        return {
            "kind": self.currency.value,
            "guarantee": self.guarantee(),
            "first_releases": [],
            "model": self.model_description(),
            "accuracy": self.alpha,
            "failure_probability": self.failure_probability,
            "height": self.height,
            "first_instance": {
                "opened": self.first,
                "scale": first.scale,
                "charge": {"comparisons": opening, "answer": answer},
                "error_bound": {
                    "easy": self.error_of_easy(first),
                    "measured": self.error_of_measured(first, self.first),
                },
            },
            "hits": self.hits or self.reckoned_hits,
            "records_needed": [{"queries": count, "records": self.records_needed(count)} for count in promised],
            **self._warning(),
            "lifetime": {
                "record": 0,
                **self.loss_of(self.capacity * self.factor),
                "share": "1",
                "note": "an instance opens only while all of it fits the cap of every record that it is about",
                "parts": [  # without a number of hits, later instances cost less
                    {
                        "what": what,
                        "fits": self.hits or 1,
                        **self.loss_of((self.hits or 1) * Fraction(amount) * self.factor),
                    }
                    for what, amount in (
                        (f"comparisons of {'the first' if self.hits is None else 'an'} instance", opening),
                        ("answer to the hard query that closes it", answer),
                    )
                ],
            },
        }

    def _warning(self) -> dict[str, str]:
        if self.accuracy is None:
            if self.alpha < 1:
                return {}
            short = (
                f"with {self.hits} hits noise is as large as any answer until there are many more records than `first`"
            )
        elif self.first >= (records := self.records_needed(RECKONED[0])):
            return {}
        else:
            short = (
                f"an accuracy of {self.accuracy:.3g} for {RECKONED[0]} queries needs {records} records before the "
                f"first answer, and `first` is {self.first}: noise will spend the budget on queries that are not hard, "
                "and answers will be off by more"
            )
        return {"warning": f"{short}. Ask for less accuracy, for fewer hits, or wait for more records"}

    def model_description(self) -> dict[str, Any]:
        """Return what a release says of its model; what came since is taken to be spread evenly."""
        return histogram.described(self.cardinality, growth="uniform", **self.names.to_json())
