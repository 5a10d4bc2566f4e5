"""Keyword arguments of the clients as the JSON that the service takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def stream(
    name: str,
    *,
    epsilon: float,
    delta: float = 0.0,
    features: int | None = None,
    classes: int | None = None,
    bound: float | None = None,
    task: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the JSON of a new stream."""
    tasks = [
        {"kind": "classification", "classes": classes} if classes is not None else None,
        {"kind": "regression", "bound": bound} if bound is not None else None,
        task,
    ]
    given = [each for each in tasks if each is not None]
    if len(given) != 1:
        raise ValueError("give classes for a classification, bound for a regression, or another task as `task`")
    shape = {} if features is None else {"features": features}
    return {"name": name, "task": dict(given[0]), "budget": {"epsilon": epsilon, "delta": delta}} | shape | more


def publication(
    stream: str,
    *,
    mechanism: Mapping[str, Any],
    learner: Mapping[str, Any] | None = None,
    epsilon: float,
    delta: float = 0.0,
    name: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the JSON of a new publication, or of a plan for one."""
    asked: dict[str, Any] = {"stream": stream, "mechanism": dict(mechanism)}
    if learner is not None:
        asked["learner"] = dict(learner)
    if name is not None:
        asked["name"] = name
    return asked | {"privacy": {"epsilon": epsilon, "delta": delta}} | more
