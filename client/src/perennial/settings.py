"""Keyword arguments of the clients as the JSON that the service takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from perennial.errors import InvalidArgument
from perennial.names import described, listed

_EXAMPLES = {
    "budget": '{"epsilon": 4, "delta": 1e-6}',
    "learner": '{"kind": "noisy_gradient_descent"}',
    "mechanism": '{"kind": "online_leader", "batch": 500}',
    "privacy": '{"epsilon": 1, "delta": 1e-6}',
    "task": '{"kind": "unlabelled"}',
}


def stream(
    name: str,
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    accounting: str | None = None,
    budget: Mapping[str, Any] | None = None,
    features: int | None = None,
    classes: int | None = None,
    bound: float | None = None,
    task: Mapping[str, Any] | None = None,
    columns: Any = None,
    label: str | None = None,
    class_names: Iterable[str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the JSON of a new stream.

    columns, label: as for `names.described`. They say `features`, and `class_names` say `classes`, unless these are
    given too.
    """
    named: dict[str, Any] = {}
    if columns is not None:
        named["columns"] = described(columns, label)
        features = len(named["columns"]) if features is None else features
    if class_names is not None:
        named["class_names"] = listed("class_names", class_names)
        if classes is None and bound is None and task is None:
            classes = len(named["class_names"])
    tasks = [
        {"kind": "classification", "classes": classes} if classes is not None else None,
        {"kind": "regression", "bound": bound} if bound is not None else None,
        task,
    ]
    given = [task for task in tasks if task is not None]
    if len(given) != 1:
        raise InvalidArgument("give classes for a classification, bound for a regression, or another task as `task`")
    shape = {} if features is None else {"features": features}
    held = _loss(epsilon, delta, budget=budget) | ({} if accounting is None else {"accounting": accounting})
    return {"name": name, "task": _object("task", given[0]), "budget": held} | shape | named | more


def publication(
    stream: str,
    *,
    mechanism: Mapping[str, Any],
    learner: Mapping[str, Any] | None = None,
    epsilon: float | None = None,
    delta: float = 0.0,
    rho: float | None = None,
    privacy: Mapping[str, Any] | None = None,
    name: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the JSON of a new publication, or of a plan for one."""
    body: dict[str, Any] = {"stream": stream, "mechanism": _object("mechanism", mechanism)}
    if learner is not None:
        body["learner"] = _object("learner", learner)
    if name is not None:
        body["name"] = name
    by_rho = None if rho is None else {"rho": rho}
    return body | {"privacy": _loss(epsilon, delta, rho=by_rho, privacy=privacy)} | more


def standardize(ranges: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """Return the feature map that brings columns from their ranges to [-1, 1].

    ranges: (lowest, highest) of each column, in the order of the features. They must be public: take them from what
    everybody knows of such a column, never from the records.
    """
    for name, (low, high) in ranges.items():
        if not -inf < low < high < inf:
            raise InvalidArgument(f"the range of {name} must be (lowest, highest), both finite")
    return {
        "kind": "standardize",
        "mean": [(low + high) / 2 for low, high in ranges.values()],
        "scale": [(high - low) / 2 for low, high in ranges.values()],
    }


def _loss(epsilon: float | None, delta: float, **settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return (ε, δ) as JSON, from numbers or as it is given whole, under one of the names in `settings`."""
    whole = {name: value for name, value in settings.items() if value is not None}
    if len(whole) + (epsilon is not None) != 1 or (whole and delta):
        names = ", or ".join(settings)
        raise InvalidArgument(f"give epsilon, and delta if it is not 0; or {names} as the service's JSON has it")
    return _object(*whole.popitem()) if whole else {"epsilon": epsilon, "delta": delta}


def _object(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a dictionary. Raises InvalidArgument where they are none, such as the text of a kind."""
    try:
        return dict(settings)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} must be a mapping, such as {_EXAMPLES[name]}") from None
