"""Publications of every task, loss and feature map, and models of them: what predictions are compared on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.conftest import ok

if TYPE_CHECKING:
    import perennial
    from tests.conftest import Service

RECORDS = 40
SIDE = 4
PRIVACY = {"epsilon": 1000, "delta": 1e-6}
BATCH = {"kind": "independent_batches", "batch": RECORDS}
TASKS_OF_TEN = {"kind": "lifelong", "task_size": 10, "heads": "per_task", "memory": 2}

_FOURIER = {"kind": "random_fourier", "features": 6, "width": 1.5, "seed": 3}
_HOG = {"kind": "hog", "width": SIDE, "height": SIDE, "orientations": 5, "cell": 2, "block": 1}
_BLOCKS = {"kind": "hog", "width": SIDE, "height": SIDE, "orientations": 1, "cell": 1, "block": 3}
_STANDARDIZE = {"kind": "standardize", "mean": [0.25] * SIDE**2, "scale": 2.0}
_CLIPPED = {"kind": "clipped_scale", "center": 0.25, "factor": [2.0] * (SIDE**2 - 1) + [0.0], "limit": 1.5}
_LINEAR = {"kind": "linear", "matrix": [[(row + at) % 3 - 1.0 for at in range(SIDE**2)] for row in range(4)]}
_NORMALIZE, _CENTER = {"kind": "normalize"}, {"kind": "center"}
MAPS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "random_fourier": _FOURIER,
    "hog": _HOG,
    "hog of one orientation": _BLOCKS,
    "standardize": _STANDARDIZE,
    "clipped_scale": _CLIPPED,
    "linear": _LINEAR,
    "center": _CENTER,
    "normalize": _NORMALIZE,
    "compose": {"kind": "compose", "maps": [_STANDARDIZE, _NORMALIZE, _CENTER, _FOURIER]},
    "categories": {"kind": "hashing", "features": 8, "tokens": "categories", "seed": 5},
    "words": {"kind": "hashing", "features": 16, "tokens": "words", "ngrams": [1, 2]},
    "characters": {"kind": "hashing", "features": 16, "tokens": "characters", "ngrams": [2, 3], "seed": 7},
    "whole": {"kind": "hashing", "features": 8, "tokens": "whole"},
}
HASHED = ("categories", "words", "characters", "whole")
TEXTS = ("words", "characters", "whole")


def _classes(count: int) -> dict[str, Any]:
    return {"task": {"kind": "classification", "classes": count}}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A stream, without its feature map, and how models of it are fitted."""

    stream: dict[str, Any]
    learner: dict[str, Any]
    mechanism: dict[str, Any] | None = None


KINDS = {
    "logistic": Kind(stream=_classes(2), learner={}),
    "softmax": Kind(stream=_classes(3), learner={"intercept": False}),
    "softmax of two": Kind(stream=_classes(2), learner={"loss": "softmax"}),
    "hinge": Kind(stream=_classes(2), learner={"loss": "huber_hinge"}),
    "hinges": Kind(stream=_classes(3) | {"norm_bound": 2.5}, learner={"loss": "huber_hinge"}),
    "squared": Kind(stream={"task": {"kind": "regression", "bound": 0.2}}, learner={"regularization": 1}),
}
SPECIAL = {
    "heads": Kind(stream=_classes(3), learner={}, mechanism=TASKS_OF_TEN),
    "encoder": Kind(
        stream=_classes(2),
        learner={},
        mechanism=TASKS_OF_TEN
        | {
            "encoder": {
                "kind": "convolutional",
                "records": 10,
                "width": SIDE,
                "height": SIDE,
                "channels": [3, 2],
                "kernel": 1,
            }
        },
    ),
}
TASKS = ("logistic", "softmax", "squared")  # with every map; other losses of the same tasks with one
CASES = [("logistic", mapped) for mapped in MAPS] + [(kind, "random_fourier") for kind in KINDS if kind != "logistic"]
CASES += [(kind, "none") for kind in ("softmax", "squared", *SPECIAL)]
LONG = [(kind, mapped) for kind in TASKS for mapped in MAPS if (kind, mapped) not in CASES]
"""Other tasks with other maps: neither knows of the other."""


def records(mapped: str, seed: int) -> Any:
    """Return records that the map reads, (RECORDS, 16) or texts in two columns."""
    random = np.random.default_rng(seed)
    if mapped in TEXTS:
        words = ["Fix", "the", "net!", "disk", "ÉTÉ", "σς", "clock", "", "42", "漢字"]
        return [[" ".join(random.choice(words, 3)) for _ in range(2)] for _ in range(RECORDS)]
    if mapped == "categories":
        return random.integers(-3, 9, (RECORDS, SIDE**2)).astype(float)
    x = random.normal(size=(RECORDS, SIDE**2)).round(3)
    x[0] = 0.0
    return x


def named(stream: dict[str, Any], features: int) -> dict[str, Any]:
    """Return names of columns and, where there are some, of classes: names change no prediction."""
    columns = {"columns": [f"column {number}" for number in range(features)]}
    count = stream["task"].get("classes")
    return columns if count is None else columns | {"class_names": [f"class {number}" for number in range(count)]}


def labels(stream: dict[str, Any]) -> Any:
    random = np.random.default_rng(0)
    if stream["task"]["kind"] == "regression":
        return random.normal(size=RECORDS)
    return random.integers(0, stream["task"]["classes"], RECORDS)


def publish_all(
    service: Service, client: perennial.Client, cases: list[tuple[str, str]]
) -> dict[tuple[str, str], perennial.Model]:
    """Return the newest model of each case: all are published first, so that fits go on while others are asked for."""
    names = {}
    for kind, mapped in cases:
        case = (KINDS | SPECIAL)[kind]
        x = records(mapped, 1)
        names_of = named(case.stream, len(x[0]))
        stream = service.stream(features=len(x[0]), feature_map=MAPS[mapped], **PRIVACY, **case.stream, **names_of)
        mechanism = case.mechanism or BATCH
        names[kind, mapped] = service.publish(stream, mechanism, **PRIVACY, learner=case.learner)
        client.stream(stream).append(x, label=labels(case.stream))
    for name in names.values():
        service.reaches(name, time=RECORDS)
    return {case: client.publication(name).latest() for case, name in names.items()}


def predicted(service: Service, model: perennial.Model, x: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and scores as the service predicts them."""
    url = f"/v1/publications/{model.publication}/predict?version={model.version}"
    answer = ok(service.client().post(url, json={"x": x if isinstance(x, list) else x.tolist()}))
    return np.array(answer["labels"]), np.array(answer["scores"])
