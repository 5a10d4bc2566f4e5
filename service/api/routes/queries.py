"""`/v1/publications/{publication}/queries`: answers to linear queries of a categorical stream."""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import structlog
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from service.api.auth.access import publication_or_404
from service.api.auth.scopes import KeyFirst, Reader
from service.api.http.bodies import refusal, require_json
from service.api.http.problems import Problem, documented
from service.api.http.representations import JSON
from service.api.schemas import as_json
from service.api.services import Shared
from service.mechanisms.histogram import LinearQuery
from service.queries.answering import Answer as Answered
from service.queries.answering import from_release
from service.segments.files import SegmentDamaged
from service.segments.records import SegmentsMissing
from service.store import releases
from service.streams.batches import InvalidRecords
from service.streams.batches.columns import UNUSUAL, count, parsed

_log = structlog.get_logger(__name__)

router = APIRouter(route_class=KeyFirst, prefix="/v1/publications/{publication}", tags=["queries"])

MOST_QUERIES = 10_000  # in one request: they are answered one after the other


class Answer(BaseModel):
    """The answer to one query: the mean weight of the records, counting erased ones as weighing nothing."""

    answer: float
    measured: bool = Field(description="The records had a say in it; false: it comes from the histogram alone")
    frozen: bool = Field(description="They have none any more: the budget is spent, or the publication has ended")
    time: int = Field(description="Absolute record number up to which it counts")
    error_bound: float | None = Field(
        description="How far off it is at most, but for the publication's failure probability "
        "(0.05 of a small_database); null: nobody knows"
    )


_WEIGHTS = {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}}
_QUERY = {
    "type": "object",
    "properties": {"weights": _WEIGHTS, "categories": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
    "example": {"categories": [0, 3]},
}


@router.post(
    "/queries",
    response_model=Answer | list[Answer],
    responses=documented(
        "not-found",
        "no-queries",
        "too-large",
        "unsupported-media-type",
        "invalid-request",
        "invalid-records",
        "too-much-at-once",
        "segments-unavailable",
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {JSON.media_type: {"schema": {"oneOf": [_QUERY, {"type": "array", "items": _QUERY}]}}},
        }
    },
)
async def answer_queries(publication: str, request: Request, key: Reader, shared: Shared) -> Any:
    """Answers one query, or a list of them one after the other.

    A query is `weights`, one in [0, 1] for each category, or `categories`: the share of records in any of those.
    Nothing of a request is kept but what a hard query changes in the histogram.
    """
    require_json(request)

    def look(connection: Connection) -> tuple[int, Callable[[list[LinearQuery]], list[Answered]]]:
        row = publication_or_404(connection, key, publication)
        if (cells := row.owes.cells) is not None:
            return cells, partial(shared.answerer.answers, row)
        release = releases.find(connection, row.id, row.visible_latest or 0)
        if release is None or release.model["kind"] != "histogram":
            raise Problem("no-queries", "Only a publication whose latest release is a histogram answers queries.")
        return release.model["cardinality"], partial(from_release, release)

    def answers(body: bytes) -> Any:
        queries, one = read_queries(body, cardinality)
        answered = [vars(answer) for answer in answering(queries)]
        return as_json(answered[0] if one else answered)

    try:
        with shared.in_flight.body(key.id) as held:
            body = await shared.body(request, held)
            cardinality, answering = await shared.run(look)
            async with shared.answering:
                await shared.keys.check_again(request)
                return await run_in_threadpool(answers, body)
    except InvalidRecords as refused:
        raise refusal(refused) from None
    except (SegmentsMissing, SegmentDamaged, OSError) as error:  # before anything was compared
        _log.error("records_unfit", publication=publication, error=type(error).__name__)
        raise Problem(
            "segments-unavailable", "The records can't be counted; the log of the service says why."
        ) from None


def read_queries(body: bytes, cardinality: int) -> tuple[list[LinearQuery], bool]:
    """The queries of a request, and whether it asked for just one, not for a list.

    Raises:
        InvalidRecords: by their places in the list.
    """
    queries, reasons, one = _read(body, cardinality)
    if reasons:
        raise InvalidRecords(*reasons)
    if len(queries) > MOST_QUERIES:
        raise Problem("too-large", f"At most {MOST_QUERIES} queries at once; split them.")
    return queries, one


def _read(body: bytes, cardinality: int) -> tuple[list[LinearQuery], list[tuple[int | None, str]], bool]:
    """The first queries, one more than may be, what is wrong with which, and whether it is one.

    Nothing is raised: an error would keep the document, and with it the parser, alive (`parsed`).
    """
    try:
        document = parsed(body)
    except UNUSUAL:
        return (
            [],
            [(None, "the body is not JSON, in UTF-8, not deeply nested, and with numbers of at most 64 bits")],
            False,
        )
    one = hasattr(document, "keys")
    if not one and not hasattr(document, "as_buffer"):
        return [], [(None, "the body must be a query, or an array of queries")], False
    items = [document] if one else document
    queries: list[LinearQuery] = []
    reasons: list[tuple[int | None, str]] = []
    nested = count(body, "[") > len(items) + (not one)  # buffers are flat: what is within an array would not show
    for row, item in enumerate(islice(items, MOST_QUERIES + 1)):
        try:
            queries.append(_query(item, cardinality, nested=nested))
        except _Wrong as wrong:
            reasons.append((row, str(wrong)))
    return queries, reasons, one


class _Wrong(Exception):
    """One query is wrong, and why."""


def _query(item: Any, cardinality: int, *, nested: bool) -> LinearQuery:
    """One query. `nested`: there may be an array within an array."""
    names = list(item.keys()) if hasattr(item, "keys") else []
    if names == ["weights"]:
        weights = _numbers(item["weights"], "d", nested=nested)
        if len(weights) != cardinality:
            raise _Wrong(f"weights: must be {cardinality}, one for each category")
        if not ((weights >= 0) & (weights <= 1)).all():
            raise _Wrong("weights: must lie within [0, 1]")
        return LinearQuery.weighing(weights)
    if names == ["categories"]:
        categories = _numbers(item["categories"], "i", nested=nested)
        if not ((categories >= 0) & (categories < cardinality)).all():
            raise _Wrong(f"categories: must lie within 0 … {cardinality - 1}")
        return LinearQuery.holding(categories)
    raise _Wrong('it must be an object with either "weights" or "categories"')


def _numbers(array: Any, kind: str, *, nested: bool) -> NDArray[Any]:
    """A flat array of floats ("d") or integers ("i")."""
    try:
        if nested and any(hasattr(member, "as_buffer") for member in array):
            raise ValueError
        return np.frombuffer(array.as_buffer(of_type=kind), dtype=np.float64 if kind == "d" else np.int64)
    except UNUSUAL:
        raise _Wrong(f"must be an array of {'numbers' if kind == 'd' else 'whole numbers'}") from None
