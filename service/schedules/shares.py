"""The division of a record's budget among bases and updates of `continual`: three rules and their cost.

Words of `continual`: epoch k = 1, 2, … is (2^(k-1)·B, 2^k·B]; its base is the one over 2^(k-1)·B records. Its updates
come every b_0 records, i·b_0 after that base and before the next one. Those with i = 2^0 … 2^J, 2^J·b_0 < 2^(k-1)·B,
read all records since the base; any other reads the last b_0 only. r = 1/2 (pure) or 1/4 (ρ): what a fit of twice the
records costs at equal noise.

Readers of a record (paper-audit.md 1.3). The first B records: every base, no update. A record of epoch k: bases over
2^k·B records and more, and of the epoch's updates, if it lies in the i-th b_0 records,
 - the updates since the base over 2^j·b_0 records with 2^j ≥ i, and
 - if i is no power of two, the update over just these b_0 records, if it happens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

from service.privacy.currency import Currency


class Shares(Protocol):
    """The exact share of the budget that each fit charges to each record it reads."""

    def base(self, doublings: int) -> Fraction:
        """Return the share of the base over 2^doublings·B records."""

    def bases(self, doublings: int) -> Fraction:
        """Return the sum of the shares of all bases over 2^doublings·B records and more, infinitely many."""

    def since_base(self, epoch: int, j: int) -> Fraction:
        """Return the share of the epoch's update over 2^j·b_0 records."""

    def latest(self, epoch: int, j: int) -> Fraction:
        """Return the share of the epoch's i-th update over the last b_0 records, 2^j < i < 2^(j+1)."""

    def worst_epoch(self) -> int:
        """Return the epoch whose first record pays most; 0: the first B records do."""


def since_base(base: int, update_every: int, epoch: int) -> int:
    """Return J + 1: how many updates of the epoch read all records since its base."""
    return (((base << (epoch - 1)) - 1) // update_every).bit_length()


def first_epoch(base: int, update_every: int, updates: int) -> int:
    """Return the first epoch that has so many updates."""
    return (updates * update_every // base).bit_length() + 1


@dataclass(frozen=True, kw_only=True)
class EqualNoise:
    """All fits carry the same noise per b_0 or per B records: e for a base of B or an update of b_0 records.

    The cost of one record. A fit of 2^k times the records costs r^k·e.
     - The first B: e·(1 + r + r² + …) = e/(1 - r).
     - Epoch k: its bases cost e·r^k/(1 - r). Its first b_0 records are in every update since the base: e·(1 + … + r^J).
       Any other record of the epoch is in at most one small update and in fewer of the large ones (from the second
       power on): no more.
     - Let A be the largest integer with 2^A < B/b_0. Epoch k has updates from k = 1 - A on, and then J = A + k - 1. So
       its worst total is e·(1 + r^k·(1 - r^A))/(1 - r), or less than e/(1 - r) before. If A ≥ 1 that falls with k:
       epoch 1 is the worst. If A ≤ 0 it is at most e/(1 - r): the first B records are the worst.
    So the worst record is among the first B or the next b_0. (The tests add up every fit over every record instead.)

    `equal`: e is 1 over the worse of these two totals, so that it comes to exactly the budget.

    `paper`: e = (1 - r)/2, that is e_b = e_u = ε/4, or ρ·3/8. Paper A says that with e_b = e_u = ε/2 Algorithms 2 and 4
    cost ε each and 2ε together; half of that is ε. It is valid, because bases and updates cost at most e/(1 - r) each,
    and loose, because no record is at the worst of both: never more than 3/4 of ε or 5/8 of ρ.
    """

    ratio: Fraction
    unit: Fraction
    worst: int

    def base(self, doublings: int) -> Fraction:
        return self.unit * self.ratio**doublings

    def bases(self, doublings: int) -> Fraction:
        return self.base(doublings) / (1 - self.ratio)

    def since_base(self, epoch: int, j: int) -> Fraction:  # noqa: ARG002
        return self.unit * self.ratio**j

    def latest(self, epoch: int, j: int) -> Fraction:  # noqa: ARG002
        return self.unit

    def worst_epoch(self) -> int:
        return self.worst


def _worst(ratio: Fraction, base: int, update_every: int) -> tuple[int, Fraction]:
    """Return (epoch, total) of the worst record at equal noise, in units of e: see EqualNoise."""
    first = 1 / (1 - ratio)
    second = (1 - ratio ** since_base(base, update_every, 1) + ratio) / (1 - ratio)
    return (1, second) if second > first else (0, first)


def equal(currency: Currency, base: int, update_every: int) -> EqualNoise:
    """Return the largest equal shares that the budget allows."""
    ratio = Fraction(1, 2 ** currency.power())
    epoch, total = _worst(ratio, base, update_every)
    return EqualNoise(ratio=ratio, unit=1 / total, worst=epoch)


def papers(currency: Currency, base: int, update_every: int) -> EqualNoise:
    """Return the paper's constants, made valid."""
    ratio = Fraction(1, 2 ** currency.power())
    return EqualNoise(ratio=ratio, unit=(1 - ratio) / 2, worst=_worst(ratio, base, update_every)[0])


@dataclass(frozen=True, kw_only=True)
class Improving:
    """A larger base gets so much that its noise falls, and the updates of an epoch get all that its bases leave.

    With R = `bases_ratio`, 1/2 < R < 1, Q = `updates_ratio` > 0 and S(n) = 1 + Q + … + Q^(n-1):
     - The base over 2^k·B records gets (1 - R)·R^k, so all bases from there on together get R^k. At equal noise that
       would fall as r^k, r ≤ 1/2 < R: the noise scale falls as (2R)^-k (pure) or (2·√R)^-k (ρ).
     - The updates of epoch k share u = 1 - R^k, which grows towards the whole budget. An update over 2^j·b_0 records
       since the base gets u·Q^j/S(J + 1), 0 ≤ j ≤ J.
     - An update over the last b_0 records, 2^j < i < 2^(j+1), gets u·S(j + 1)/S(J + 1).

    Cost of one record. The first B: R^0 = 1, by the closed tail. The i-th b_0 records of epoch k: R^k for bases, and
     - i = 1: every update since the base, u·S(J + 1)/S(J + 1) = u;
     - 2^j < i < 2^(j+1): its own update and those since the base over 2^(j+1)·b_0 records and more,
       u·(S(j + 1) + Q^(j+1) + … + Q^J)/S(J + 1) = u, or less if its own does not happen;
     - i = 2^j, j ≥ 1: a part of the first sum, so less than u.
    The sum is at most R^k + u = 1 for every record, and exactly 1 for the first B and for the first b_0 of every epoch
    that has an update. There is no slack but that of the last case.
    """

    base_records: int
    update_every: int
    bases_ratio: Fraction
    updates_ratio: Fraction

    def base(self, doublings: int) -> Fraction:
        return (1 - self.bases_ratio) * self.bases_ratio**doublings

    def bases(self, doublings: int) -> Fraction:
        return self.bases_ratio**doublings

    def since_base(self, epoch: int, j: int) -> Fraction:
        return _smallest(self, epoch) * self.updates_ratio**j

    def latest(self, epoch: int, j: int) -> Fraction:
        return _smallest(self, epoch) * _geometric(self.updates_ratio, j + 1)

    def worst_epoch(self) -> int:
        return first_epoch(self.base_records, self.update_every, 1)


@lru_cache(maxsize=256)
def _smallest(shares: Improving, epoch: int) -> Fraction:
    """Return the share of the epoch's smallest update since the base."""
    updates = since_base(shares.base_records, shares.update_every, epoch)
    return (1 - shares.bases(epoch)) / _geometric(shares.updates_ratio, updates)


@lru_cache(maxsize=1024)
def _geometric(ratio: Fraction, terms: int) -> Fraction:
    """Return 1 + ratio + … + ratio^(terms - 1)."""
    return Fraction(terms) if ratio == 1 else (1 - ratio**terms) / (1 - ratio)


HORIZON = 8
"""Epochs that the ratios of `improving` are chosen for: B to 256·B records. Longer streams improve all the same."""

_BASES_RATIOS = tuple(Fraction(n, 20) for n in range(11, 20))
_UPDATES_RATIOS = tuple(Fraction(n, 20) for n in range(10, 41))


@lru_cache(maxsize=256)
def improving(base: int, update_every: int) -> Improving:
    """Return the ratios, in twentieths, with the least mean log noise of the models in use.

    The objective, a function of the public B and b_0 alone: over the first 8 epochs, at every moment (uniform in the
    logarithm of time, as a doubling is a doubling), the sum over the model in use and all it was fitted near of the
    logarithm of the fit's noise scale; that is minus the logarithm of its share, halved in ρ, and a constant.

    Why the sum of logarithms, and not the logarithm of the summed variances. Updates over the last b_0 records are in
    use most of the time and their noise is by far the largest, whatever they are given: b_0 does not grow. The sum of
    variances would starve the bases for them (to R = .3 in ρ, where a base's noise falls by 9 % when its records
    double), and nothing would improve. A learner that knows its noise makes a noisy fit stay near its start, so that
    what counts is how well each fit of the chain does by its own measure.

    Each share is a factor that depends on R alone times one that depends on Q alone, so both are found one by one, by
    trying all. The last digits of a logarithm are rounded off: every process must find the same shares. (Any shares are
    private, but the charges of two different ones within one publication might not fit its cap.)
    """
    in_use = [0.0] * (HORIZON + 1)  # mean number of updates in the chain over an epoch
    power, terms = (
        0.0,
        defaultdict[int, float](float),
    )  # Σ log share of the updates is power·ln Q + Σ terms[n]·ln S(n) + what R says
    for epoch, j, links, weight in _moments(base, update_every):
        in_use[epoch] += weight * links
        if links:
            power += weight * j
            terms[since_base(base, update_every, epoch)] -= weight * links
        if links == 2:
            terms[j + 1] += weight

    def of_bases(ratio: Fraction) -> float:
        return math.fsum(
            math.log((1 - ratio) * ratio ** (epoch - 1)) + in_use[epoch] * math.log(1 - ratio**epoch)
            for epoch in range(1, HORIZON + 1)
        )

    def of_updates(ratio: Fraction) -> float:
        sums = (weight * math.log(_geometric(ratio, count)) for count, weight in terms.items())
        return math.fsum((power * math.log(ratio), *sums))

    return Improving(
        base_records=base,
        update_every=update_every,
        bases_ratio=max(_BASES_RATIOS, key=lambda ratio: round(of_bases(ratio), 9)),
        updates_ratio=max(_UPDATES_RATIOS, key=lambda ratio: round(of_updates(ratio), 9)),
    )


def _moments(base: int, update_every: int) -> list[tuple[int, int, int, float]]:
    """Return (epoch, j, links, weight): for what part of the log-time of the horizon's epochs which models are in use.

    links: how many updates the chain has after the base: 0; 1, the one over 2^j·b_0 records; or 2, one over the last
    b_0 records near that.
    """
    moments = []
    for epoch in range(1, HORIZON + 1):
        start = base << (epoch - 1)
        last = (start - 1) // update_every

        def weight(first: int, end: int, start: int = start) -> float:
            """Return the log-time from update `first` until update `end`, or the next base."""
            return math.log2(min(2 * start, start + end * update_every) / (start + first * update_every))

        moments.append((epoch, 0, 0, weight(0, 1)))
        for j in range(last.bit_length()):
            power = 1 << j
            moments.append((epoch, j, 1, weight(power, power + 1)))
            if power < (end := min(2 * power, last + 1)) - 1:
                moments.append((epoch, j, 2, weight(power + 1, end)))
    return moments
