"""A learner that refuses a fit of a publication's steps, and what was drawn until then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from service.learning.output_perturbation import OutputPerturbation
from service.mechanisms.scheduled.mechanism import Fitting

if TYPE_CHECKING:
    import pytest

REASON = "the model that it starts from is too noisy"


def refuse(monkeypatch: pytest.MonkeyPatch, fit: int, error: type[Exception]) -> list[int]:
    """Refuse every fit from that number on, counted from 0; return a list that grows with each model that is drawn.

    Only fits of steps count: a plan asks for their noise too.
    """
    step, ask, release = Fitting.step, OutputPerturbation.perturbation, OutputPerturbation.release
    inside: list[int] = []
    requests: list[int] = []
    drawn: list[int] = []

    def stepping(self: Fitting, *arguments: Any) -> Any:
        inside.append(1)
        try:
            return step(self, *arguments)
        finally:
            inside.clear()

    def refusing(self: OutputPerturbation, *arguments: Any) -> Any:
        requests.extend(inside)
        if inside and len(requests) > fit:
            raise error(REASON)
        return ask(self, *arguments)

    def drawing(self: OutputPerturbation, *arguments: Any) -> Any:
        drawn.append(1)
        return release(self, *arguments)

    monkeypatch.setattr(Fitting, "step", stepping)
    monkeypatch.setattr(OutputPerturbation, "perturbation", refusing)
    monkeypatch.setattr(OutputPerturbation, "release", drawing)
    return drawn
