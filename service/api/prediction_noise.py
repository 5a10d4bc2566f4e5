"""Bounds on what the noise of a release may have done to predictions, from the law that the release states."""

from typing import Any

from numpy.typing import NDArray
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from service.figures.score_noise import score_noise
from service.store import streams
from service.store.publications import Publication
from service.store.releases import Release
from service.streams.slots import TrainingSlots


class PredictionNoise(BaseModel):
    """Bounds on what the noise of the release may have done to each prediction, from the law that the release states.

    For a record that was chosen without looking at the release: the model without noise has its score between `low` and
    `high`, each with a probability of 95 %, and where `could_flip` is false it predicts the same label, with 95 %.
    """

    low: list[list[float]]
    high: list[list[float]]
    could_flip: list[bool] | None = Field(description="null for a regression")


def noise_of(
    connection: Connection, publication: Publication, release: Release, x: NDArray[Any]
) -> dict[str, Any] | None:
    """Return what noise may have done to the predictions for x; None where nothing is known."""
    stream = streams.get(connection, publication.stream_id)
    slots = TrainingSlots(evaluation=stream.evaluation_slots).count(*release.fit)
    effect = score_noise(release.model, release.noise, release.model.get("units", slots), release.parameters, x)
    if effect is None:
        return None
    flips = None if effect.could_flip is None else effect.could_flip.tolist()
    return {"low": effect.low.tolist(), "high": effect.high.tolist(), "could_flip": flips}
