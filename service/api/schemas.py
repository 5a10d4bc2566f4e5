"""Shapes that several routes answer with, and how they are written as JSON."""

import re
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import orjson
from fastapi import Path, Query, Response
from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, StringConstraints
from pydantic_core import PydanticCustomError

from service.store.digests import timestamp

_NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"
_is_name = re.compile(_NAME).fullmatch
Name = Annotated[str, StringConstraints(pattern=_NAME)]


def _in_digits(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"-?[0-9]+", value):
        raise PydanticCustomError("int_parsing", "must be a whole number, in digits alone")
    return value


IN_DIGITS = BeforeValidator(_in_digits)
"""For numbers in addresses: pydantic by itself would read 1_0, +10 and 10.0 as 10."""
Id = Annotated[int, Path(ge=0, lt=2**63), IN_DIGITS]
Limit = Annotated[int, Query(ge=1, le=1000), IN_DIGITS]
Before = Annotated[
    int | None, Query(ge=1, lt=2**63, description="`id` or `version` of the last item of the page before"), IN_DIGITS
]
Timestamp = Annotated[datetime, PlainSerializer(timestamp, return_type=str)]

DECLASSIFIED = "How many records are no longer protected, since they expired: what they lose is not in `spent`"

_FEATURE = {"type": ["number", "string"]}
UNIT_COLUMN = {
    "type": "array",
    "items": {"type": ["string", "integer"]},
    "description": "Whose each record is, on streams with `unit`: an id, which is not stored; absent on others",
}
X_COLUMN = {
    "type": "array",
    "items": {"anyOf": [{"type": "array", "items": _FEATURE}, {"type": "object", "additionalProperties": _FEATURE}]},
    "description": "One row of features per record (of texts where the stream's feature map hashes texts), or one "
    "object by column name where the stream has `columns`; absent on categorical streams",
}
Y_COLUMN = {
    "type": "array",
    "items": {"type": ["number", "string"]},
    "description": "One label, number or category per record, or the name of a class that the stream has; absent on "
    "unlabelled streams",
}

Item = TypeVar("Item")


def is_name(text: str) -> bool:
    return _is_name(text) is not None


def is_entry(text: str) -> bool:
    """Return whether a text could be the log's id of a batch."""
    return re.fullmatch(r"\d{1,20}-\d{1,20}", text) is not None


class Items(BaseModel, Generic[Item]):
    """A page of a list, newest first; ask for the next one with `before`."""

    items: list[Item]


class Range(BaseModel):
    """Records [start, end), by absolute number."""

    start: int
    end: int


class Loss(BaseModel):
    """(ε, δ), rounded up; where the budget is held in ρ also that ρ, which implies them."""

    epsilon: float
    delta: float
    rho: float | None = Field(
        None, exclude_if=lambda rho: rho is None, description="Only of streams with `accounting` `zcdp`"
    )


class Budget(Loss):
    """The most that all publications of a stream may cost any one record; `rho` is the largest that implies it."""

    accounting: str | None = Field(None, exclude_if=lambda accounting: accounting is None, description="`zcdp`")


class SlotsLoss(Loss):
    """(ε, δ), rounded up: the larger of both kinds of slots."""

    evaluation: Loss | None = Field(
        None,
        exclude_if=lambda loss: loss is None,
        description="(ε, δ) of evaluation slots, where the stream sets some aside",
    )


class Charge(BaseModel):
    """One fit's price for every record of [start, end). Pure: `rho` is null; Gaussian: `epsilon` and `delta` are.

    `hash` is SHA-256 over the RFC 8785 JSON of the other members; `previous_hash` is the hash of the charge before.
    """

    id: int
    start: int
    end: int
    publication: str
    version: int | None
    epsilon: float | None
    delta: float | None
    rho: float | None
    charged_at: str
    hash: str
    previous_hash: str | None


class Parameters(BaseModel):
    shape: list[int] = Field(
        description="[rows, coordinates]: one row per class, or one for two classes; with `heads` per task see `model`"
    )
    values: list[list[float]]


class Shape(BaseModel):
    shape: list[int]


class ReleaseInfo(BaseModel):
    """A release without its parameters' values."""

    publication: str
    version: int
    time: int = Field(description="Absolute record number up to which it has seen")
    role: str = Field(description="`model`, or `base` or `link`: only later fits start from it")
    window: Range = Field(description="The records the model stands for")
    fit: Range = Field(description="The records this fit read")
    parent: int | None = Field(description="The version it was kept near")
    parameters: Parameters | Shape
    model: dict[str, Any] = Field(description="All it takes to recompute a prediction outside")
    noise: dict[str, Any]
    charge: Charge
    published_at: str
    evaluation: dict[str, Any] | None = Field(
        None,
        exclude_if=lambda evaluation: evaluation is None,
        description="How good each publication is, by its name, in releases of an evaluation; one version has all, "
        "lists and events have the main ones",
    )


class Release(ReleaseInfo):
    parameters: Parameters


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Writes plain data as it is, doubles with all their digits."""
    return Response(
        orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), status, headers, media_type="application/json"
    )
