"""Figures of some counts that were made up, and how far noise may have moved some predictions, as JSON.

Other tests show that the intervals are right; this one notices each number that changes. Run `python -m
tests.figures.numbers` after you changed one knowingly: it writes numbers.json anew.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from service.figures.drift_alarms import drift_alarms
from service.figures.recent import recent
from service.figures.reported_figures import all_figures, figures_of, outline
from service.figures.score_noise import score_noise
from service.learning.optimization.losses import LOSSES
from service.mechanisms.evaluation.tables import ClassCounts, Counts, ErrorSums
from service.mechanisms.released_models import Predictions
from service.privacy.accounting.events import NoisyCounts
from service.privacy.currency import Currency
from service.privacy.noise.counts import CountNoise
from tests.golden import readable, rounded

WRITTEN = Path(__file__).with_name("numbers.json")
CLASSES: dict[str, Counts] = {
    "two classes": ClassCounts(classes=2, publications=1),
    "three classes, shortened": ClassCounts(classes=3, publications=2, shortened=True),
    "four classes, in pairs": ClassCounts(classes=4, publications=3, bins=False, pairs=((0, 1), (1, 2))),
}
REGRESSIONS: dict[str, Counts] = {
    "errors": ErrorSums(bound=2.0, publications=2, shortened=True),
    "errors, with moments": ErrorSums(bound=2.0, publications=2, moments=True),
}
SLOTS = 900
SCALES = {Currency.PURE: 3.0, Currency.ZCDP: 2.0}


def text() -> str:
    """Return the figures of each case, numbers to eight digits."""
    return readable(json.loads(json.dumps(rounded(dict([*_of_counts(), *_of_predictions()]), 8))))


def _of_counts() -> Iterator[tuple[str, Any]]:
    for number, (name, layout) in enumerate((CLASSES | REGRESSIONS).items()):
        currency = list(SCALES)[number % 2]
        blocks = [_block(layout, currency, SCALES[currency], SLOTS, version) for version in (1, 2, 2, 3)]
        figures = figures_of(*blocks[-1])
        yield (
            f"{name}, {currency.value}",
            {
                "counts": _counts(layout, SLOTS, 3).tolist(),
                "change": [layout.change.counts, layout.change.largest],
                "outline": outline(*blocks[-1]),
                "figures": all_figures(*blocks[-1]),
                "recent": {of: recent(blocks, of) for of in "ab"[: layout.publications]},
                "course": {of: drift_alarms(blocks, of) for of in "ab"[: layout.publications]},
                "r_squared": _described(figures.r_squared(0)) if isinstance(layout, ErrorSums) else None,
                "commonest": _described(figures.commonest(0)) if isinstance(layout, ClassCounts) else None,
            },
        )


def _block(layout: Counts, currency: Currency, scale: float, slots: int, version: int) -> tuple[Any, Any, Any]:
    """Return a release of counts with noise that is the same each time. The last publication has no model yet."""
    scale *= layout.change.largest
    noise = NoisyCounts(noise=CountNoise(currency=currency, scale=scale, dimension=layout.size), change=layout.change)
    counts = _counts(layout, slots, version) + np.rint(scale * np.sin(7.0 * np.arange(layout.size) + version))
    versions = [version, 1, None][: layout.publications]
    of = {"of": ["a", "b", "c"][: layout.publications], "versions": versions, "slots": slots}
    return of | layout.described(), noise.to_json(), counts


def _counts(layout: Counts, slots: int, version: int) -> Any:
    places = np.arange(slots)
    labels = np.sin(places) * 2.2 if isinstance(layout, ErrorSums) else (places * places % 7) % layout.classes
    labels = np.where(places % 11 == 5, np.nan, labels)
    predictions = [_predictions(layout, places, labels, step) for step in (version + 2, 3, 4)[: layout.publications]]
    return layout.count(labels, [*predictions[:2], *[None for _ in predictions[2:]]])


def _predictions(layout: Counts, places: Any, labels: Any, step: int) -> Predictions:
    shortened = places % step == 1 if layout.shortened else None
    if isinstance(layout, ErrorSums):
        return Predictions(labels=labels + np.cos(places * step) / step, shortened=shortened)
    sure = 1.0 / layout.classes + (1.0 - 1.0 / layout.classes) * (places * step % 17) / 16.0
    guessed = np.where(places % step == 0, places % layout.classes, np.nan_to_num(labels))
    return Predictions(labels=guessed, confidences=sure, shortened=shortened)


def _of_predictions() -> Iterator[tuple[str, Any]]:
    x = np.random.default_rng(5).normal(size=(2000, 3))
    for loss, classes in (("logistic", 2), ("softmax", 3), ("huber_hinge", 2), ("squared", 0)):
        rows = LOSSES[loss].rows(classes)
        model = {"kind": "linear", "loss": loss, "classes": classes or None, "features": 3, "shape": [rows, 4]}
        more = {"huber_hinge": {"huber_width": 0.5}, "squared": {"bound": 1.0}}.get(loss, {})
        model |= more | {"intercept": True, "norm_bound": 2.0, "feature_map": None}
        weights = np.cos(np.arange(4.0 * rows)).reshape(rows, 4)
        for distribution in ("gaussian", "spherical_laplace"):
            added = {"distribution": distribution, "scale": 0.03, "dimension": 4 * rows, "added_to": "weights"}
            tilted = added | {"added_to": "objective", "regularization": 0.1, "output": added | {"sensitivity": 0.01}}
            for noise in (added, tilted) if distribution == "spherical_laplace" else (added,):
                moved = score_noise(model, noise, 100, weights, x)
                assert moved is not None
                flips = None if moved.could_flip is None else int(moved.could_flip.sum())
                yield (
                    f"{loss}, {distribution} on {noise['added_to']}",
                    {"low": moved.low[:4].tolist(), "high": moved.high[:4].tolist(), "could_flip": flips},
                )


def _described(figure: Any) -> Any:
    return None if figure is None else figure.described()


if __name__ == "__main__":
    WRITTEN.write_text(text())
