"""The lines of paper E's benchmark: FLSW and FLMB, by the service's own mechanism, and the lines beside them."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import drift
from benchmarks.replay import Features, Labels, load, publication
from service.learning.objective_perturbation import ObjectivePerturbation
from service.learning.optimization.losses import HuberHinge
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.mechanisms.active_learning.mechanism import ActiveLearning
from service.mechanisms.linear import predict
from service.mechanisms.mechanism import CarriedState
from service.privacy.currency import Currency

Floats = NDArray[np.float64]

WHERE = "benchmarks/README.md says how to make it"
RECORDS = 4000  # of each order
SHARES = (
    *np.geomspace(0.005, 0.1, 8)[:-1],
    *np.linspace(0.1, 1.0, 10),
)  # of the records after which errors are counted
SIZES = (1, 5, 20, 50)
EPSILON = 1.0  # ε_s and ε_g, as the paper's
WITHOUT_NOISE = 1000.0  # ε, of which selection has EPSILON, or half
LAMBDA = 0.01
BALLS = (1.0, 1 / math.sqrt(LAMBDA))  # radii: the paper's; and where the best of all weights are (Pegasos, 2007)
SVM = {"kind": "noisy_gradient_descent", "loss": "huber_hinge", "huber_width": 1e-6, "regularization": LAMBDA}

NOT_PRIVATE = "without noise (NOT private)"
PASSIVE = "passive"
ALWAYS, LEAST = "always the more frequent class", f"all at once, {NOT_PRIVATE}"
INFORMATIVE = {"τ = 0.8": math.log(1 / 0.8), "τ = 0.2": math.log(1 / 0.2)}  # b; all records are within the second
INFORMATIVE_SIZE, INFORMATIVE_EPSILONS = 50, (0.1, 0.5, 1.0, 4.0)  # figure 7's, and ε_s


@dataclass(frozen=True, kw_only=True)
class Order:
    """Records to learn from, in order, and records to judge by."""

    x: Features
    y: Labels
    test_x: Features
    test_y: Labels


def marks(records: int) -> list[int]:
    """Return the numbers of records after which errors are counted."""
    return [max(1, round(share * records)) for share in SHARES]


Dataset = tuple[Features, Labels]


def attacks(_: np.random.Generator) -> Dataset:
    """Return all 4,958 attacks, `back` against six other kinds, with every column on one scale as in the paper."""
    data = load("kdd99_attacks7", WHERE)
    return data["X"], (data["y"] == 1).astype(np.int64)


def intrusions(random: np.random.Generator) -> Dataset:
    """Return all 200 U2R attacks and 200 normal connections, drawn anew in every order: the paper's set is balanced."""
    data = load("kdd99_u2r_vs_normal", WHERE)
    attacked = data["y"] == 1
    normal = random.choice(np.flatnonzero(~attacked), size=attacked.sum(), replace=False)
    chosen = np.concatenate([np.flatnonzero(attacked), normal])
    return data["X"][chosen], attacked[chosen].astype(np.int64)


def two_classes(stream: str) -> Callable[[np.random.Generator], Dataset]:
    """Return a stream of `drift`."""
    return lambda _: drift.STREAMS[stream]()[:2]


STREAMS: dict[str, Callable[[np.random.Generator], Dataset]] = {
    "kdd99_attacks7": attacks,
    "kdd99_u2r_vs_normal": intrusions,
    "noaa_weather": two_classes("noaa_weather"),
    "elec2": two_classes("elec2"),
}


def ordered(stream: str, order: int) -> Order:
    """Return the records of that order."""
    random = np.random.default_rng(order)
    x, y = STREAMS[stream](random)
    mixed = random.permutation(len(y))
    held, others = mixed[: len(y) // 5], mixed[len(y) // 5 :][:RECORDS]
    return Order(x=x[others], y=y[others], test_x=x[held], test_y=y[held])


@dataclass(frozen=True, kw_only=True)
class Models:
    """Whose labels were asked for, by increasing slot; each model, with the number of records it came after."""

    requested: list[int]
    released: list[tuple[int, Floats]]


@dataclass(frozen=True, kw_only=True)
class Found:
    """At each of an order's marks, or at the end: labels asked for so far, and the share wrong of those held out."""

    records: int
    """of the order"""
    labels: list[int]
    error: list[float]

    @property
    def at(self) -> list[int]:
        """Return the numbers of records at the marks."""
        return marks(self.records)[-len(self.error) :]


def active(features: int, size: int, epsilon: float, **settings: Any) -> ActiveLearning:
    """Return what the service runs on a stream without labels, so that it tells whom it asks."""
    mechanism = {"kind": "active_learning", "size": size, "batching": "fixed_batch"} | settings
    stream = {"features": features, "task": {"kind": "unlabelled"}}
    built = publication(stream, {"mechanism": mechanism, "learner": SVM, "privacy": {"epsilon": epsilon}})
    assert isinstance(built, ActiveLearning)
    return built


def learnt(mechanism: ActiveLearning, x: Features, y: Labels) -> Models:
    """Return the requested labels and the releases, if every label is given at once."""

    def read(start: int, end: int) -> Records:
        return Records(x=x[start:end], y=y[start:end])

    time, awaits = 0, False
    chain: tuple[CarriedState, ...] = ()
    models = Models(requested=[], released=[])
    while awaits or mechanism.next_time(time) <= len(y):
        due = time if awaits else mechanism.next_time(time)
        step = mechanism.step(mechanism.taken_at(due, len(y)), chain, len(models.released) + 1, read)
        chain, awaits = step.chain, step.awaits
        time = time if step.reached is None else step.reached
        models.requested.extend(step.asks)
        models.released.extend((time, release.parameters) for release in step.releases)
    return models


def passive(mechanism: ActiveLearning, epsilon: float, x: Features, y: Labels) -> Models:
    """Return the updates of a mechanism, from every record, for all of ε."""
    learner, size = mechanism.learner, mechanism.size
    weights = origin = np.zeros(learner.shape)
    spent = learner.perturbation(Currency.PURE, epsilon, size, origin)
    models = Models(requested=list(range(len(y))), released=[])
    for update, end in enumerate(range(size, len(y) + 1, size), 1):
        records = Records(x=x[end - size : end], y=y[end - size : end])
        weights = learner.update(records, size, weights, origin, spent, update)
        models.released.append((end, weights))
    return models


def judged(mechanism: ActiveLearning, models: Models, order: Order) -> Found:
    """Return the errors of the latest models at the marks; before the first model, of the zero model."""
    times = [time for time, _ in models.released]
    labels, errors = [], []
    for mark in marks(len(order.y)):
        latest = bisect_right(times, mark) - 1
        weights = models.released[latest][1] if latest >= 0 else mechanism.origin
        labels.append(bisect_left(models.requested, mark))
        errors.append(error(mechanism, weights, order))
    return Found(records=len(order.y), labels=labels, error=errors)


def error(mechanism: ActiveLearning, weights: Floats, order: Order) -> float:
    """Return the share of the records held out that a model gets wrong."""
    labels, _ = predict(mechanism.model_description(), weights, order.test_x)
    return round(float(np.mean(labels != order.test_y)), 4)


def once(law: type[OutputPerturbation], order: Order, chosen: list[int], epsilon: float | None) -> Found:
    """Return the model of Algorithm 1 for the chosen records; epsilon None: without noise."""
    mechanism = active(order.x.shape[1], 1, EPSILON)
    settings = {name: getattr(mechanism.learner, name) for name in ("intercept", "norm_bound", "features", "classes")}
    learner = law(loss=HuberHinge(), regularization=LAMBDA, **settings)
    records, center = Records(x=order.x[chosen], y=order.y[chosen]), np.zeros(learner.shape)
    if epsilon is None:
        weights = learner.fit(records, len(chosen), center)
    else:
        spent = learner.perturbation(Currency.PURE, epsilon, len(chosen))
        weights = learner.release(records, len(chosen), center, spent)
    return Found(records=len(order.y), labels=[len(chosen)], error=[error(mechanism, weights, order)])


def always(order: Order) -> Found:
    """Return the class that is the more frequent among those held out."""
    share = float(np.mean(order.test_y))
    return Found(records=len(order.y), labels=[0], error=[round(min(share, 1 - share), 4)])


Run = Callable[[Order], Found]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A compared line, with batches of so many records; 0: it has none."""

    name: str
    size: int
    run: Run


def selecting(size: int, radius: float, epsilon: float = 2 * EPSILON, **settings: Any) -> Run:
    """Return active learning in that ball, for that ε in all."""

    def run(order: Order) -> Found:
        mechanism = active(order.x.shape[1], size, epsilon, radius=radius, **settings)
        return judged(mechanism, learnt(mechanism, order.x, order.y), order)

    return run


def learning_from_all(size: int, radius: float, epsilon: float) -> Run:
    """Return passive learning in that ball."""

    def run(order: Order) -> Found:
        mechanism = active(order.x.shape[1], size, epsilon, radius=radius, epsilon_selection=1e-9)  # of no use here
        return judged(mechanism, passive(mechanism, epsilon, order.x, order.y), order)

    return run


def fitting_once(law: type[OutputPerturbation], radius: float | None = None) -> Run:
    """Algorithm 1, of all records, or of what `fixed_batch, bernoulli` selected in that ball, in batches of 20."""

    def run(order: Order) -> Found:
        if radius is None:
            return once(law, order, list(range(len(order.y))), 2 * EPSILON)
        selector = active(order.x.shape[1], 20, 2 * EPSILON, radius=radius)
        return once(law, order, learnt(selector, order.x, order.y).requested, EPSILON)

    return run


def lines(radius: float) -> Iterator[Line]:
    """Return all lines to run on an order in that ball."""
    for size in SIZES:
        yield from _of_size(size, radius)
    for name, law in {"output": OutputPerturbation, "objective": ObjectivePerturbation}.items():
        yield Line(name=f"{name} perturbation, all at once", size=0, run=fitting_once(law))
        yield Line(name=f"{name} perturbation, what was selected", size=0, run=fitting_once(law, radius))
    yield Line(name=LEAST, size=0, run=lambda order: once(OutputPerturbation, order, list(range(len(order.y))), None))
    yield Line(name=ALWAYS, size=0, run=always)
    size = INFORMATIVE_SIZE
    for epsilon, (name, slab) in product(INFORMATIVE_EPSILONS, INFORMATIVE.items()):
        run = selecting(size, radius, epsilon + EPSILON, threshold=slab, epsilon_selection=epsilon)
        yield Line(name=f"{name}, ε_s = {epsilon:g}", size=size, run=run)
    for epsilon in INFORMATIVE_EPSILONS:
        run = learning_from_all(size, radius, epsilon + EPSILON)
        yield Line(name=f"{PASSIVE}, ε = {epsilon + EPSILON:g}", size=size, run=run)


def _of_size(size: int, radius: float) -> Iterator[Line]:
    batchings = ("fixed_batch",) if size == 1 else ("fixed_window", "fixed_batch")  # with 1 both lines are equal
    for batching, law in product(batchings, ("bernoulli", "exponential")):
        name = f"{batching}, {law}"
        how: dict[str, Any] = {"batching": batching, "selection": law}
        slab = {"initial": 1.0 if law == "bernoulli" else 0.5, "decay": 1.0}  # 1/m, the paper's; b < M
        free = selecting(size, radius, WITHOUT_NOISE, **how, epsilon_selection=EPSILON)
        yield Line(name=name, size=size, run=selecting(size, radius, **how))
        yield Line(name=f"{name}, shrinking", size=size, run=selecting(size, radius, **how, threshold=slab))
        yield Line(name=f"{name}, {NOT_PRIVATE}", size=size, run=free)
    for batching in batchings:
        run = selecting(size, radius, WITHOUT_NOISE, batching=batching)
        yield Line(name=f"{batching}, slab alone, {NOT_PRIVATE}", size=size, run=run)
    yield Line(name=PASSIVE, size=size, run=learning_from_all(size, radius, 2 * EPSILON))
    yield Line(name=f"{PASSIVE}, {NOT_PRIVATE}", size=size, run=learning_from_all(size, radius, WITHOUT_NOISE))
