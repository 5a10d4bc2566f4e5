"""Shapes that several routes answer with, and how they are written as JSON."""

import re
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

import orjson
from fastapi import Query, Response
from pydantic import BaseModel, Field, PlainSerializer, StringConstraints

from service.store.digests import timestamp

_NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"
Name = Annotated[str, StringConstraints(pattern=_NAME)]
Before = Annotated[
    int | None, Query(ge=1, lt=2**63, description="`id` or `version` of the last item of the page before")
]
Timestamp = Annotated[datetime, PlainSerializer(timestamp, return_type=str)]

DECLASSIFIED = "How many records are no longer protected, since they expired: what they lose is not in `spent`"

Item = TypeVar("Item")


def is_name(text: str) -> bool:
    return re.fullmatch(_NAME, text) is not None


def is_entry(text: str) -> bool:
    """Whether it could be the log's id of a batch."""
    return re.fullmatch(r"\d{1,20}-\d{1,20}", text) is not None


class Items(BaseModel, Generic[Item]):
    """A page of a list, newest first; ask for the next one with `before`."""

    items: list[Item]


class Range(BaseModel):
    """Records [start, end), by absolute number."""

    start: int
    end: int


class Loss(BaseModel):
    """(ε, δ), rounded up."""

    epsilon: float
    delta: float


class LedgerRange(BaseModel):
    """What every record of [start, end) has spent.

    `declassified`: it is no longer protected at all, by anything on this stream; `epsilon` and `delta` are null then,
    since what it loses is unbounded.
    """

    start: int
    end: int
    epsilon: float | None
    delta: float | None
    declassified: bool


class Tighter(Loss):
    """The least (ε, δ) that can be shown for any record from what is reserved; told, never used to admit.

    It holds only if nobody chose a publication, its privacy or its start by looking at releases of the stream;
    `reserved` holds in any case. At the δ of `reserved`, the least of three bounds (`how`): the sum of ε; `zcdp`, what
    the sum of ρ implies, a pure ε counted as ε²/2; `pure_plus_gaussian`, the pure ε plus what the Gaussian ρ alone
    imply. The sums are there too.
    """

    how: Literal["sum", "zcdp", "pure_plus_gaussian"]
    pure: float = Field(description="Σ ε of pure publications")
    zcdp: float = Field(description="Σ ρ of all")
    gaussian: float = Field(description="Σ ρ of Gaussian publications")


class WorstRecord(Loss):
    """The record that a publication has charged most. Gaussian: `rho` is what it charged, ε what that implies."""

    record: int | None
    rho: float | None


class LedgerPublication(BaseModel):
    """What one publication reserves on each record from `start` on, why that suffices for ever, and how far it is.

    Once it has ended, `reserved` is what it keeps on the worst record.
    """

    name: str
    running: bool
    start: int
    declassified: int = Field(description="How many records, from `start` on, what it released no longer protects")
    reserved: Loss
    lifetime: dict[str, Any] | None = Field(
        description="The record (counted from `start`) that all its fits for ever charge most, and how that adds up"
    )
    spent: WorstRecord


class Ledger(BaseModel):
    """`spent` and `reserved` are the worst record's; the ranges cover [0, records), or the part that was asked for.

    Both are of what records are charged while they are protected: what one that is declassified loses has no bound.
    """

    budget: Loss
    reserved: Loss
    spent: Loss
    declassified: int = Field(description=DECLASSIFIED)
    tighter: Tighter
    publications: list[LedgerPublication]
    exact: bool = Field(description="False: a range tells the most that any of its records has spent")
    ranges: list[LedgerRange]


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


class Release(ReleaseInfo):
    parameters: Parameters


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Writes plain data as it is, doubles with all their digits."""
    return Response(
        orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), status, headers, media_type="application/json"
    )
