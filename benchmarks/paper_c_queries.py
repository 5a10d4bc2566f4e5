"""Paper C: who answers linear queries of a growing stream, who asks them, and what was proved of their worst error.

At every doubling of the records an analyst asks QUERIES questions, each the share of a subset of the categories: half
of them random, half chosen after the answers so far, the categories that seem to have become more frequent since the
doubling before. The worst error of an epoch is that over all its questions; who answers:
 - `linear_queries`, one publication of the service that begins when there are BEGIN records, before that uniform;
 - the same mechanism begun anew at every doubling, from the uniform histogram, for the share of a black box's run;
 - noise for every answer, the budget of a doubling (the same share) divided among its queries: Gaussian or Laplace;
 - `scheduled_black_box` with `small_database`, where there are few enough categories;
 - an answer that never looks: the uniform histogram's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.replay import load
from service.learning.records import Records
from service.learning.small_database import error_bound
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.histogram import Histogram, LinearQuery
from service.mechanisms.interactive import Opened, opened
from service.mechanisms.linear_queries.mechanism import LinearQueries
from service.mechanisms.mechanism import CarriedState
from service.mechanisms.scheduled.histograms import ScheduledHistograms
from service.privacy.currency import Currency
from service.privacy.noise.samplers import discrete_gaussian, discrete_laplace
from service.schedules.scheduled_black_box import ScheduledBlackBox
from service.streams.schema import StreamSchema

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

WHERE = "benchmarks/README.md says how to make it"
EPSILON, DELTA = 1.0, 1e-6
SMALLEST, DOUBLINGS = 2**12, 7
SIZES = [SMALLEST << doubling for doubling in range(DOUBLINGS + 1)]
QUERIES = 5000
BEGIN = 2**15
HITS = {
    False: {"accuracy": 0.1, "hits": 40},
    True: {"accuracy": 0.2, "hits": 80},
}  # streams of few categories, and of many
FAILURE = 0.05
FEW = 16  # categories up to which a small database is tried
GRID = 2.0**-40  # the grid of single answers' noise


# Streams of categories


def cover(data: dict[str, NDArray[Any]]) -> Counts:
    """Return the kinds of trees there, 7 of them."""
    kinds: Counts = data["y"].astype(np.int64)
    return kinds


def cover_and_soil(data: dict[str, NDArray[Any]]) -> Counts:
    """Return the kinds of trees combined with the 40 kinds of soil."""
    both: Counts = cover(data) * 40 + data["X"][:, 14:].argmax(axis=1)
    return both


def zipf(cardinality: int, seed: int) -> Counts:
    """Return records with P(j) ∝ 1/(j + 1)^1.2, categories permuted by the seed."""
    rng = np.random.default_rng(seed)
    shares = 1.0 / np.arange(1, cardinality + 1) ** 1.2
    return rng.permutation(cardinality)[rng.choice(cardinality, size=SIZES[-1], p=shares / shares.sum())]


def forest(of: Callable[[dict[str, NDArray[Any]]], Counts]) -> Callable[[int], Counts]:
    """Return covtype's records in the file's order, which is by place, so that shares keep changing."""
    return lambda _: of(load("covtype", WHERE))[: SIZES[-1]]


CATEGORIES: dict[str, tuple[int, Callable[[int], Counts]]] = {
    "covtype, 7 kinds of trees": (7, forest(cover)),
    "covtype, trees × soils: 280": (280, forest(cover_and_soil)),
    "skewed, 8": (8, lambda seed: zipf(8, seed)),
    "skewed, 256": (256, lambda seed: zipf(256, seed)),
}


# Who answers


class Answers(Protocol):
    """The answers of one mechanism, which first gets the counts of its records."""

    def grow(self, counts: Counts, time: int) -> None:
        """Take in the counts of all records so far."""

    def ask(self, query: LinearQuery) -> float:
        """Return the answer to a query."""


@dataclass
class Blind:
    """Answers from the uniform histogram, without reading any record."""

    cardinality: int

    def grow(self, counts: Counts, time: int) -> None:
        """Do nothing."""

    def ask(self, query: LinearQuery) -> float:
        """Return the uniform histogram's answer."""
        return query.of(np.full(self.cardinality, 1.0 / self.cardinality))


@dataclass
class Compared:
    """`linear_queries`, step by step as the service takes them, with what the oldest record has paid."""

    mechanism: LinearQueries
    histogram: Histogram = field(init=False)
    counts: Counts = field(init=False)
    chain: tuple[CarriedState, ...] = ()
    spent: Fraction = Fraction(0)
    version: int = 0

    def grow(self, counts: Counts, time: int) -> None:
        """Count the new records in."""
        self.counts = counts
        if time < self.mechanism.first:
            self.histogram = Histogram.uniform(self.mechanism.cardinality, time)
            return
        step = self.mechanism.step(time, self.chain, 1, lambda *_: Records(x=np.empty((0, 0)), y=np.empty(0)))
        self._take(step.chain, sum(Fraction(charge.amount) for charge in step.charges if charge.start == 0))
        known = self.histogram if self.version else Histogram.uniform(self.mechanism.cardinality, time)
        self.histogram = known.grown(time)

    def _take(self, chain: tuple[CarriedState, ...], charged: Fraction | int) -> None:
        self.chain = chain
        self.spent += charged

    def ask(self, query: LinearQuery) -> float:
        """Return the answer after comparing it with the records, and measuring it where it is hard."""
        time, guess = self.histogram.time, query.of(self.histogram.shares)
        now: Opened | None = opened(self.chain) if self.chain else None
        if now is None or not now.instance.is_above(
            now.instance.value(query.count(self.counts), time, guess), self.mechanism.height, now.noise
        ):
            return guess
        measurement = self.mechanism.measure(now, query, self.counts, self.histogram)
        step = self.mechanism.close(now, measurement, self.spent, self.version + 1)
        (release,) = step.releases
        charged = Fraction(release.charge) + sum(
            Fraction(charge.amount) for charge in step.charges if charge.start == 0
        )
        self._take(step.chain, charged)
        self.version += 1
        self.histogram = measurement.moved
        return measurement.answer


@dataclass
class Anew:
    """A static instance for every epoch, with that epoch's share."""

    mechanism: LinearQueries
    now: Compared = field(init=False)

    def grow(self, counts: Counts, time: int) -> None:
        """Start a new instance from the uniform histogram."""
        capacity = self.mechanism.capacity * share(self.mechanism.currency, time)
        self.now = Compared(mechanism=replace(self.mechanism, first=time, capacity=capacity))
        self.now.grow(counts, time)

    def ask(self, query: LinearQuery) -> float:
        """Return the answer of the epoch's instance."""
        return self.now.ask(query)


@dataclass
class Noisy:
    """Noise for every answer."""

    kind: Currency
    capacity: Fraction
    counts: Counts = field(init=False)
    scale: Fraction = field(init=False)
    time: int = 0

    def grow(self, counts: Counts, time: int) -> None:
        """Divide the epoch's share among its queries."""
        self.counts, self.time = counts, time
        self.scale = Fraction(noise_for_each(self.kind, self.capacity, time) / GRID)

    def ask(self, query: LinearQuery) -> float:
        """Add noise to the true answer."""
        if self.kind is Currency.PURE:
            noise = discrete_laplace(self.scale)
        else:
            noise = int(discrete_gaussian(self.scale**2, 1)[0])
        return float(np.clip(query.of(self.counts / self.time) + noise * GRID, 0, 1))


def noise_for_each(kind: Currency, capacity: Fraction, time: int) -> float:
    """Return the scale of each answer's noise, of a sensitivity of 1/t."""
    each = float(capacity * share(kind, time)) / QUERIES
    return 1 / (time * each) if kind is Currency.PURE else 1 / (time * math.sqrt(2 * each))


@dataclass
class Database:
    """`scheduled_black_box` with `small_database`."""

    scheduled: ScheduledHistograms
    y: Counts
    shares: Floats = field(init=False)

    def grow(self, counts: Counts, time: int) -> None:  # noqa: ARG002
        """Take the run of this time."""
        read = lambda start, end: Records(x=np.empty((end - start, 0)), y=self.y[start:end])  # noqa: E731
        (release,) = self.scheduled.step(time, (), 1, read).releases
        self.shares = release.parameters[0]

    def ask(self, query: LinearQuery) -> float:
        """Return the database's answer."""
        return query.of(self.shares)


def share(kind: Currency, time: int) -> Fraction:
    """Return the share of a doubling's run."""
    return ScheduledBlackBox(currency=kind, first=SMALLEST, growth=Fraction(1)).fits(time)[0].share


LINEAR, STATIC, SINGLE, SMALL, BLIND = (
    "linear_queries",
    "the same, anew at every doubling",
    "noise for every answer",
    "scheduled_black_box, small_database",
    "uniform, never looks",
)


def built(cardinality: int, delta: float, mechanism: dict[str, Any], learner: dict[str, Any] | None = None) -> Any:
    """Return the publication that the service would build."""
    return build(
        StreamSchema.model_validate({"task": {"kind": "categorical", "cardinality": cardinality}}),
        PublicationConfiguration.model_validate(
            {"mechanism": mechanism, "learner": learner, "privacy": {"epsilon": EPSILON, "delta": delta}}
        ),
    )


def queries(cardinality: int, delta: float) -> LinearQueries:
    """Return the publication of `linear_queries`."""
    settings = {"kind": "linear_queries", "first": BEGIN, **HITS[cardinality > FEW]}
    mechanism = built(cardinality, delta, settings)
    assert isinstance(mechanism, LinearQueries)
    return mechanism


def database(cardinality: int, delta: float) -> ScheduledHistograms:
    """Return the publication of small databases, as accurate as the number of candidates allows."""
    mechanism = {"kind": "scheduled_black_box", "first": SMALLEST, "growth": 1}
    accuracy = next(
        a / 100 for a in range(1, 100) if math.comb(cardinality + _size(cardinality, a), cardinality) <= 2**18
    )
    scheduled = built(cardinality, delta, mechanism, {"kind": "small_database", "queries": "all", "accuracy": accuracy})
    assert isinstance(scheduled, ScheduledHistograms)
    return scheduled


def _size(cardinality: int, hundredths: int) -> int:
    return math.ceil(Fraction(cardinality + 1, 2) / Fraction(hundredths, 100))


def answering(name: str, y: Counts, cardinality: int, delta: float) -> Answers:
    """Return the answering mechanisms by name."""
    mechanism = queries(cardinality, delta)
    match name:
        case "linear_queries":
            return Compared(mechanism=mechanism)
        case _ if name == STATIC:
            return Anew(mechanism=mechanism)
        case _ if name == SINGLE:
            return Noisy(kind=mechanism.currency, capacity=mechanism.capacity)
        case _ if name == SMALL:
            return Database(scheduled=database(cardinality, delta), y=y)
    return Blind(cardinality=cardinality)


# Who asks


def worst(answers: Answers, y: Counts, cardinality: int, seed: int) -> list[tuple[int, float]]:
    """Return the largest error of each epoch's questions."""
    rng = np.random.default_rng([seed, 1])
    estimate = np.full(cardinality, 1.0 / cardinality)
    errors = []
    for time in SIZES:
        counts = np.bincount(y[:time], minlength=cardinality)
        answers.grow(counts, time)
        before, largest = estimate.copy(), 0.0
        for number in range(QUERIES):
            categories = rng.random(cardinality) < 0.5
            if number % 2:  # categories more frequent than in the histogram, with a tenth flipped
                categories = (estimate > before) ^ (rng.random(cardinality) < 0.1)
            query = LinearQuery.holding(np.flatnonzero(categories))
            answer = answers.ask(query)
            largest = max(largest, abs(answer - query.of(counts / time)))
            off = answer - float(estimate[categories].sum())
            if categories.any():  # a step of multiplicative weights by the asker
                estimate = estimate * np.where(categories, math.exp(off), 1.0)
                estimate /= estimate.sum()
        errors.append((time, round(largest, 5)))
    return errors


def theory(name: str, cardinality: int, delta: float) -> list[tuple[int, float]]:
    """Return the proven bound on an epoch's worst error, but for FAILURE."""
    mechanism = queries(cardinality, delta)
    bounds = []
    for time in SIZES:
        if name == LINEAR:  # the least accuracy that can be promised for all later queries
            promised = replace(mechanism, first=time, hits=None, failure_probability=FAILURE)
            grid = np.geomspace(1e-3, 1.0, 400)
            fitting = (a for a in grid if replace(promised, accuracy=float(a)).records_needed(QUERIES) <= time)
            bounds.append((time, float(next(fitting, 1.0))))
        elif name == SINGLE:
            scale = noise_for_each(mechanism.currency, mechanism.capacity, time)
            tail = (
                math.log(QUERIES / FAILURE)
                if mechanism.currency is Currency.PURE
                else math.sqrt(2 * math.log(2 * QUERIES / FAILURE))
            )
            bounds.append((time, min(1.0, scale * tail)))
        elif name == SMALL and cardinality <= FEW:
            scheduled = database(cardinality, delta)
            charge = float(scheduled.capacity * share(scheduled.currency, time))
            noise = scheduled.learner.perturbation(scheduled.currency, charge, time).noise
            bounds.append((time, min(1.0, error_bound(scheduled.learner.describe(), noise.scale))))
    return bounds
