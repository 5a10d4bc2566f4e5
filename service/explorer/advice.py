"""One recommendation for a stream, measured on a public sample of it with the very mechanisms that would run.

Nothing here is private: the sample is taken to be public, and its means and deviations become public constants of the
stream. Every record is predicted by the model that was the latest when it came (prequential accuracy), from the second
quarter of the sample on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from service.explorer.comparison import releases
from service.inputs.refused import Refused
from service.learning.records import Records
from service.learning.solvers import Inaccurate
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.linear import LinearMechanism, predict
from service.mechanisms.preparation.scales import FULL
from service.privacy.noise.additive import Unaffordable
from service.streams.schema import StreamSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from service.explorer.sample import Sample

HARDLY_ANY_NOISE = 1000.0
"""An epsilon for comparison. It promises nothing."""
COUNTED_FROM = 0.25  # of the sample
BATCHES = 40
LEAST_BATCH, MOST_BATCH = 50, 10_000
_DESCENT = {"kind": "noisy_gradient_descent"}
_SOLVED = {"kind": "output_perturbation"}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings of a publication that releases a model after every batch."""

    title: str
    mechanism: Mapping[str, Any]
    learner: Mapping[str, Any]
    forgets: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A candidate with its mean accuracies: private, and with hardly any noise."""

    candidate: Candidate
    accuracy: float
    without_noise: float


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Measured candidates, best first. `stream` and `publication`: the JSON to post."""

    measured: tuple[Measured, ...]
    baselines: Mapping[str, float]
    counted: int
    stream: dict[str, Any]
    publication: dict[str, Any]
    left_out: tuple[str, ...] = field(default=())

    @property
    def best(self) -> Measured:
        return self.measured[0]

    @property
    def loss(self) -> float:
        """How much accuracy privacy is expected to cost: the recommended one beside the best with hardly any noise."""
        return max(0.0, max(each.without_noise for each in self.measured) - self.best.accuracy)

    @property
    def margin(self) -> float:
        """How far off an accuracy may be by sampling alone: two standard deviations."""
        share = self.best.accuracy
        return 2.0 * math.sqrt(share * (1.0 - share) / self.counted)


def candidates(batch: int) -> Iterator[Candidate]:
    """Yield what is tried: windows, averages of iterates, and how fast noise of running sums is taken back."""
    for blocks in (3, 7, 15, 31):
        window = {"kind": "window_statistics", "block": batch, "blocks": blocks}
        yield Candidate(title=f"window of {blocks} blocks", mechanism=window, learner=_SOLVED, forgets=True)
    leader = {"kind": "online_leader", "batch": batch}
    for title, more in (
        ("online leader", {}),
        ("online leader, decay .9", {"decay": 0.9}),
        ("online leader, without averaging", {"averaging": False}),
    ):
        yield Candidate(title=title, mechanism=leader | more, learner=_DESCENT, forgets=False)


def advise(
    sample: Sample,
    *,
    epsilon: float,
    delta: float,
    batch: int | None = None,
    runs: int = 3,
    forget: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Advice:
    """Return what does best on the sample at (epsilon, delta) for each record.

    batch: records a release; None: a fortieth of the sample. forget: only what forgets old records. progress: gets the
    title of each candidate before it is measured. Raises Refused where no candidate can run.
    """
    batch = batch or min(MOST_BATCH, max(LEAST_BATCH, len(sample.y) // BATCHES))
    schema = stream_of(sample)
    measured, left_out = [], []
    for candidate in candidates(batch):
        if forget and not candidate.forgets:
            continue
        progress(candidate.title)
        try:
            private = [_accuracy(schema, candidate, epsilon, delta, sample) for _ in range(runs)]
            exact = _accuracy(schema, candidate, HARDLY_ANY_NOISE, delta, sample)
        except (Refused, Inaccurate, Unaffordable) as problem:
            left_out.append(f"{candidate.title}: {problem}")
            continue
        measured.append(Measured(candidate=candidate, accuracy=float(np.mean(private)), without_noise=float(exact)))
    if not measured:
        raise Refused("batch", "no candidate gave a model in time: give a larger sample or a smaller batch")
    measured.sort(key=lambda each: each.accuracy, reverse=True)
    return Advice(
        measured=tuple(measured),
        baselines=_baselines(sample),
        counted=len(sample.y) - _first(sample),
        stream={"name": "my-stream", **schema, "budget": _budget(epsilon, delta)},
        publication={
            "name": "my-models",
            "stream": "my-stream",
            "mechanism": dict(measured[0].candidate.mechanism),
            "learner": dict(measured[0].candidate.learner),
            "privacy": {"epsilon": epsilon, "delta": delta},
        },
        left_out=tuple(left_out),
    )


def stream_of(sample: Sample) -> dict[str, Any]:
    """Return the stream's settings: columns by the sample's means and deviations, rounded, and rows that fill the norm.

    With FULL as in preparations, rows are a little longer than the norm to which they are shortened.
    """
    spread = sample.x.std(axis=0)
    return {
        "features": len(sample.columns),
        "task": {"kind": "classification", "classes": len(sample.classes)},
        "norm_bound": _short(max(math.sqrt(len(sample.columns)) / FULL, 1e-3)),
        "feature_map": {
            "kind": "standardize",
            "mean": [_short(each) for each in sample.x.mean(axis=0)],
            "scale": [min(1e6, max(1e-6, _short(each))) if each > 0 else 1.0 for each in spread],
        },
    }


def _accuracy(schema: Mapping[str, Any], candidate: Candidate, epsilon: float, delta: float, sample: Sample) -> float:
    settings = {"mechanism": candidate.mechanism, "learner": candidate.learner}
    privacy = {"privacy": {"epsilon": epsilon, "delta": delta}}
    configuration = PublicationConfiguration.model_validate(settings | privacy).begun()
    built = build(StreamSchema.model_validate(schema), configuration)
    if not isinstance(built, LinearMechanism):
        raise TypeError("every candidate releases linear models")
    x, description = built.feature_map(sample.x), built.model_description()
    right = np.zeros(len(sample.y), dtype=bool)
    start = len(right)
    for release, upcoming in releases(built, lambda first, end: Records(x=x[first:end], y=sample.y[first:end]), start):
        used = slice(release.time, upcoming)
        right[used] = predict(description, release.parameters, sample.x[used])[0] == sample.y[used]
        start = min(start, release.time)
    if start > _first(sample):
        raise Refused("batch", "its first model comes after a quarter of the sample")
    return float(right[_first(sample) :].mean())


def _first(sample: Sample) -> int:
    return int(COUNTED_FROM * len(sample.y))


def _baselines(sample: Sample) -> dict[str, float]:
    counted = sample.y[_first(sample) :]
    before = sample.y[_first(sample) - 1 : -1]
    return {
        "always the commonest class": float(np.bincount(counted).max() / len(counted)),
        "the label before": float((counted == before).mean()),
    }


def _budget(epsilon: float, delta: float) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": delta} | ({"accounting": "zcdp"} if delta else {})


def _short(value: float) -> float:
    """Return four digits of a number: enough for a scale, and readable."""
    return float(f"{value:.4g}")
