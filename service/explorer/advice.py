"""One recommendation for a stream, measured on a public sample of it with the very mechanisms that would run.

Nothing here is private: the sample is taken to be public, and its means and deviations become public constants of the
stream. Every record is predicted by the model that was the latest when it came (prequential scores), from the second
quarter of the sample on. The score of classes is the accuracy, that of a regression R².
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from service.explorer.comparison import releases
from service.inputs.fields import LARGEST_WEIGHT
from service.inputs.refused import Refused
from service.learning.optimization.solvers import Inaccurate
from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.limits import FULL
from service.mechanisms.linear import LinearMechanism, predict
from service.mechanisms.measured import OFFERS
from service.privacy.noise.additive import Unaffordable
from service.streams.names import LONGEST_NAME
from service.streams.schema import StreamSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from service.explorer.sample import Sample

HARDLY_ANY_NOISE = 1000.0
"""An epsilon for comparison. It promises nothing."""
COUNTED_FROM = 0.25  # share of the sample after which predictions are counted
BATCHES = 40
LEAST_BATCH, MAX_BATCH = 50, 10_000
LEAST_SCALE, LARGEST_SCALE = 1e-6, 1e6  # the bounds of a scale in a feature map
RESOLUTION = 2.0**-20  # relative spread below which a column is constant: records hold 24 binary digits


@dataclass(frozen=True, kw_only=True)
class CandidateSettings:
    """Settings of a publication that releases a model after every batch."""

    title: str
    mechanism: Mapping[str, Any]
    learner: Mapping[str, Any]
    forgets: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A candidate with its mean scores: private, and with hardly any noise."""

    candidate: CandidateSettings
    score: float
    without_noise: float
    margin: float
    """Two standard deviations of the score by sampling alone."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Measured candidates, best first. `stream` and `publication`: the JSON to post."""

    measured: tuple[Measured, ...]
    score: str
    """The name of the measured score, for people."""
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
        """Return the expected loss of score by privacy: the best score without noise less the recommended one."""
        return max(0.0, max(candidate.without_noise for candidate in self.measured) - self.best.score)


def candidates(batch: int) -> Iterator[CandidateSettings]:
    """Yield the candidates of all offers, with a release after that many records."""
    for offer in OFFERS:
        for title, settings in offer.candidates.items():
            yield CandidateSettings(
                title=title,
                mechanism=offer.settings(batch) | dict(settings),
                learner={"kind": offer.learner},
                forgets=offer.forgets,
            )


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
    """Return the candidates measured on the sample at (epsilon, delta) per record, and the best of them.

    batch: records a release; None: a fortieth of the sample. forget: only what forgets old records. progress: gets the
    title of each candidate before it is measured. Raises Refused where no candidate can run.
    """
    batch = batch or min(MAX_BATCH, max(LEAST_BATCH, len(sample.y) // BATCHES))
    schema = stream_of(sample)
    measured, left_out = [], []
    for candidate in candidates(batch):
        if forget and not candidate.forgets:
            continue
        progress(candidate.title)
        try:
            private = [_scores(schema, candidate, epsilon, delta, sample) for _ in range(runs)]
            exact = _scores(schema, candidate, HARDLY_ANY_NOISE, delta, sample)
        except (Refused, Inaccurate, Unaffordable) as problem:
            left_out.append(f"{candidate.title}: {problem}")
            continue
        measured.append(
            Measured(
                candidate=candidate,
                score=float(np.mean(private)),
                without_noise=float(exact.mean()),
                margin=2.0 * float(private[0].std()) / math.sqrt(len(exact)),
            )
        )
    if not measured:
        raise Refused("batch", "no candidate gave a model in time: give a larger sample or a smaller batch")
    measured.sort(key=lambda candidate: candidate.score, reverse=True)
    return Advice(
        measured=tuple(measured),
        score="accuracy" if sample.bound is None else "R²",
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
    return {
        "features": len(sample.columns),
        "task": {"kind": "classification", "classes": len(sample.classes)}
        if sample.bound is None
        else {"kind": "regression", "bound": sample.bound},
        "norm_bound": _short(max(math.sqrt(len(sample.columns)) / FULL, 1e-3)),
        "feature_map": _scaled(sample.x),
        **_class_names(sample.classes),
    }


def _class_names(classes: tuple[str, ...]) -> dict[str, list[str]]:
    """Return names for classes that are not just their numbers, so that the stream takes the sample's own labels."""
    nameable = all(len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip() != "" for name in classes)
    numbers = tuple(map(str, range(len(classes))))
    return {"class_names": list(classes)} if classes and nameable and classes != numbers else {}


def _scaled(x: NDArray[np.float64]) -> dict[str, Any]:
    """Return the map of columns by their means and deviations; large and small ones go by a power of ten before."""
    sizes, spread = np.abs(x).max(axis=0), _spread(x)
    is_far = (sizes > LARGEST_SCALE) | ((spread > 0.0) & (spread < LEAST_SCALE))
    if not is_far.any():
        return _standardized(x)
    factors = np.minimum(LARGEST_WEIGHT, 10.0 ** (3.0 - np.ceil(np.log10(np.where(is_far, sizes, 1e3)))))
    powers = {"kind": "clipped_scale", "factor": factors.tolist(), "limit": LARGEST_SCALE}
    return {"kind": "compose", "maps": [powers, _standardized(x * factors)]}


def _standardized(x: NDArray[np.float64]) -> dict[str, Any]:
    sizes, spread = np.abs(x).max(axis=0), _spread(x)
    scales = np.where(spread > 0.0, spread, np.maximum(1.0, sizes)).clip(LEAST_SCALE, LARGEST_SCALE)
    digits = 3 - np.floor(np.log10(scales)).astype(int)  # decimals of a mean: rounding is then small beside the scale
    means = [round(mean, places) for mean, places in zip(x.mean(axis=0).tolist(), digits.tolist(), strict=True)]
    return {"kind": "standardize", "mean": means, "scale": [_short(scale) for scale in scales]}


def _spread(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the columns' deviations; 0 of those that are the same throughout, as far as float32 tells."""
    spread = x.std(axis=0)
    return np.where(spread > RESOLUTION * np.abs(x).max(axis=0), spread, 0.0)


def _scores(
    schema: Mapping[str, Any], candidate: CandidateSettings, epsilon: float, delta: float, sample: Sample
) -> NDArray[np.float64]:
    """Return, for each counted record, how well it was predicted; the mean is the score."""
    settings = {"mechanism": candidate.mechanism, "learner": candidate.learner}
    privacy = {"privacy": {"epsilon": epsilon, "delta": delta}}
    configuration = PublicationConfiguration.model_validate(settings | privacy).begun()
    built = build(StreamSchema.model_validate(schema), configuration)
    if not isinstance(built, LinearMechanism):
        raise TypeError("every candidate releases linear models")
    x, description = built.feature_map(sample.x), built.model_description()
    predicted = np.zeros(len(sample.y))
    start = len(predicted)
    for release, upcoming in releases(built, lambda first, end: Records(x=x[first:end], y=sample.y[first:end]), start):
        used = slice(release.time, upcoming)
        predicted[used] = predict(description, release.parameters, sample.x[used])[0]
        start = min(start, release.time)
    if start > _first(sample):
        raise Refused("batch", "its first model comes after a quarter of the sample")
    return _judged(predicted[_first(sample) :], sample)


def _judged(predicted: NDArray[np.float64], sample: Sample) -> NDArray[np.float64]:
    """Return how well each counted record is predicted: 0 or 1, or its term of R²."""
    counted = sample.y[_first(sample) :]
    if sample.bound is None:
        return np.asarray(predicted == counted, dtype=np.float64)
    return np.asarray(1.0 - (counted - predicted) ** 2 / max(float(counted.var()), np.finfo(float).tiny))


def _first(sample: Sample) -> int:
    return int(COUNTED_FROM * len(sample.y))


def _baselines(sample: Sample) -> dict[str, float]:
    counted = sample.y[_first(sample) :]
    before = sample.y[_first(sample) - 1 : -1].astype(np.float64)
    named = {"the label before": float(_judged(before, sample).mean())}
    if sample.bound is None:
        named["always the commonest class"] = float(np.bincount(counted).max() / len(counted))
    return named


def _budget(epsilon: float, delta: float) -> dict[str, Any]:
    return {"epsilon": epsilon, "delta": delta} | ({"accounting": "zcdp"} if delta else {})


def _short(value: float) -> float:
    """Return four digits of a number: enough for a scale, and readable."""
    return float(f"{value:.4g}")
