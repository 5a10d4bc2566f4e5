"""Errors as `application/problem+json` (RFC 9457): a stable type, what went wrong, what to do. Never anybody's data."""

import math
import re
from collections.abc import Mapping
from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from service.inputs import strict_json, words
from service.log import LogUnavailable
from service.segments.files import SegmentDamaged
from service.segments.records import SegmentsMissing
from service.store.database import DatabaseUnavailable
from service.store.keys import NameTaken

_log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
MOST_ERRORS = 100  # that are explained: to look for the nearest name takes a while


class ProblemDetails(BaseModel):
    """RFC 9457. `type` is stable; some problems have more members than these."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:perennial:problem:invalid-request"])
    title: str = Field(examples=["The request is not valid"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["mechanism.base: must be at least 1"])


# By the last part of their type: status and title.
_PROBLEMS = {
    "malformed-request": (400, "This is not HTTP"),
    "unauthenticated": (401, "No valid key"),
    "forbidden": (403, "The key may not do this"),
    "not-found": (404, "There is no such thing, or this key may not see it"),
    "method-not-allowed": (405, "This method is not for this address"),
    "not-acceptable": (406, "None of the accepted formats is served here"),
    "request-timed-out": (408, "The request did not arrive in time"),
    "last-admin-key": (409, "The last admin key can't be revoked"),
    "not-halted": (409, "There is nothing to resume"),
    "no-queries": (409, "This publication answers no queries"),
    "no-labels": (409, "This publication asks nobody for labels"),
    "label-not-awaited": (409, "No label of this record is waited for"),
    "no-predictions": (409, "This publication's releases predict nothing"),
    "name-taken": (409, "The name was used before"),
    "too-many-kept": (409, "As much is kept, or waits, as may be"),
    "budget-exceeded": (409, "The stream's budget can't hold this"),
    "entry-forgotten": (410, "The numbers of this batch are remembered no longer"),
    "idempotency-conflict": (422, "The Idempotency-Key came with another body before"),
    "idempotency-running": (409, "The first request with this Idempotency-Key still runs"),
    "too-large": (413, "The request is too large"),
    "unsupported-media-type": (415, "This format is not read here"),
    "invalid-request": (422, "The request is not valid"),
    "invalid-data-set": (422, "The data set can't be used"),
    "invalid-records": (422, "The batch was refused whole"),
    "backlog-full": (429, "Too much waits to be numbered"),
    "idempotency-full": (429, "This key has used too many Idempotency-Keys on this stream"),
    "too-many-requests": (429, "Too many requests in too short a time"),
    "too-much-at-once": (429, "Too many bytes at the same time"),
    "head-too-large": (431, "The request's head is too large"),
    "internal-error": (500, "Something went wrong here"),
    "log-unavailable": (503, "The log is away"),
    "database-unavailable": (503, "The database is away"),
    "segments-unavailable": (503, "The records can't be read here"),
    "too-many-connections": (503, "Too many connections are open"),
    "stopping": (503, "This server is stopping"),
}


_UNREAD = (
    "The body could not be read: send JSON in UTF-8 that is not deeply nested, without numbers of thousands of digits."
)

# Methods that people miss, with the address they try: what to do instead.
_INSTEAD = (
    (
        "DELETE",
        "/v1/streams/[^/]+",
        (
            "A stream and its ledger stay for ever: stop a publication of it with DELETE /v1/publications/NAME, or "
            "erase records with DELETE /v1/streams/NAME/records?start=0&end=100."
        ),
    ),
    (
        "DELETE",
        "/v1/publications/[^/]+/releases.*",
        "A release stays for ever, since it was paid for: stop later ones with DELETE /v1/publications/NAME.",
    ),
    (
        "P(UT|ATCH)",
        "/v1/(streams|publications)/[^/]+",
        "Its settings never change, since its guarantee depends on them: make another one under a new name.",
    ),
)


class Problem(Exception):
    """Raised anywhere below a route; becomes the answer."""

    def __init__(self, slug: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(slug)
        self.slug, self.detail, self.headers, self.members = slug, detail, dict(headers or {}), members

    def response(self) -> Response:
        status, title = _PROBLEMS[self.slug]
        body = {"type": f"urn:perennial:problem:{self.slug}", "title": title, "status": status, "detail": self.detail}
        return Response(orjson.dumps(body | self.members), status, self.headers, media_type=MEDIA_TYPE)


def invalid(field: str, reason: str, detail: str | None = None) -> Problem:
    """Return what is wrong with one field of a request. detail: by default the field, and the reason."""
    return Problem("invalid-request", detail or f"{field}: {reason}", errors=[{"field": field, "reason": reason}])


def media_type(request: Request) -> str:
    """Return the media type of the body. A body without a type counts as JSON."""
    return request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()


def unread_format(*read: str) -> Problem:
    listed = " or ".join(read)
    return Problem(
        "unsupported-media-type",
        f"Send the body as {listed}, with that as its Content-Type.",
        headers={"Accept-Post": ", ".join(read)},
    )


def unread_coding(*read: str) -> Problem:
    listed = f", or with {' or '.join(read)}" if read else ""
    return Problem(
        "unsupported-media-type",
        f"Send the body without Content-Encoding{listed}.",
        headers={"Accept-Encoding": ", ".join(read or ("identity",))},
    )


def unauthenticated() -> Problem:
    """Return the refusal of a request that shows no valid key."""
    return Problem(
        "unauthenticated",
        "Send `Authorization: Bearer KEY` with a key that is known and not revoked.",
        headers={"WWW-Authenticate": "Bearer"},
    )


def too_many_requests(what: str, early: float) -> Problem:
    """Return the refusal of a request that came so many seconds too early."""
    return Problem(
        "too-many-requests",
        f"{what} Nothing was done; wait as long as Retry-After says.",
        headers={"Retry-After": str(math.ceil(early))},
    )


def documented(*slugs: str) -> dict[int | str, dict[str, Any]]:
    """The answers of a route for OpenAPI."""
    answers: dict[int | str, dict[str, Any]] = {}
    for slug in ("unauthenticated", "forbidden", "too-many-requests", "database-unavailable", *slugs):
        status, title = _PROBLEMS[slug]
        known = answers.get(status, {}).get("description")
        answers[status] = {
            "description": f"{known}; or: {title}" if known and title not in known else title,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
    return answers


def install(app: FastAPI) -> None:
    """Every error leaves the service as a problem."""

    async def answer(request: Request, error: Exception) -> Response:
        problem = problem_of(request, error)
        assert problem is not None  # noqa: S101 - it is one of those below
        return problem.response()

    def answer_invalid(request: Request, error: RequestValidationError) -> Response:  # in a thread: it may take a while
        return _invalid(request, error).response()

    app.add_exception_handler(RequestValidationError, answer_invalid)  # type: ignore[arg-type]
    for kind in (
        Problem,
        HTTPException,
        NameTaken,
        LogUnavailable,
        DatabaseUnavailable,
        SegmentsMissing,
        SegmentDamaged,
        ClientDisconnect,
    ):
        app.add_exception_handler(kind, answer)


def problem_of(request: Request, error: Exception) -> Problem | None:  # noqa: PLR0911 - a list of errors
    """Return the problem that an error of a request is to the client; None: nobody foresaw it."""
    match error:
        case Problem():
            return error
        case RequestValidationError():
            return _invalid(request, error)
        case HTTPException():
            return _http(request, error)
        case NameTaken():
            return Problem("name-taken", "Choose another name; names are never used again.")
        case LogUnavailable():
            return Problem(
                "log-unavailable",
                f"{error}. Nothing was promised; send it again with the same Idempotency-Key.",
                headers={"Retry-After": "1"},
            )
        case DatabaseUnavailable():
            return Problem("database-unavailable", "Try again later.", headers={"Retry-After": "1"})
        case SegmentsMissing() | SegmentDamaged():
            _log.error("records_unfit", reason=str(error))
            return Problem("segments-unavailable", "The log of the service says why.")
        case ClientDisconnect():
            return Problem("malformed-request", "It ended before all of it was here.")  # nobody reads this
    return None


def _invalid(request: Request, error: RequestValidationError) -> Problem:
    if any(mistake["loc"][0] == "body" for mistake in error.errors()):
        if media_type(request) != "application/json":
            return unread_format("application/json")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            return unread_coding()
    # Pydantic would repeat the input; the place and the reason are enough.
    errors = [{"field": field_name(place), "reason": reason} for place, reason in _explained(error, request)]
    detail = "; ".join(f"{mistake['field']}: {mistake['reason']}" for mistake in errors[:5])
    return Problem("invalid-request", detail, errors=errors)


def _http(request: Request, error: HTTPException) -> Problem:
    if isinstance(error.__cause__, Problem):  # raised while the framework read the body, which it calls a 400
        return error.__cause__
    if error.status_code == 400 and request.headers.get("content-encoding", "identity").lower() != "identity":
        return unread_coding()
    headers = dict(error.headers or {})
    if error.status_code == 405:  # all that the address answers to, not only the first route's
        headers["Allow"] = ", ".join(_methods(request.app, request.scope))
    slug = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}.get(error.status_code, "invalid-request")
    detail = {
        404: "There is nothing at this address; the OpenAPI document is at /openapi.json.",
        405: _other_methods(request, headers.get("Allow", "")),
        413: "Send less in one request.",
    }.get(error.status_code, _UNREAD)
    return Problem(slug, detail, headers=headers)


def _explained(error: RequestValidationError, request: Request) -> list[tuple[words.Place, str]]:
    """Return the places of all mistakes, of those in the body without `body`, and the reasons."""
    errors = error.errors()[:MOST_ERRORS]
    if errors[0]["type"] == "json_invalid":
        return [(("body",), strict_json.not_json(error.body, errors[0]["loc"][1]))]
    body = getattr(request.scope.get("route"), "body_field", None)
    model = body.field_info.annotation if body is not None else BaseModel
    inside = [{**mistake, "loc": mistake["loc"][1:]} for mistake in errors if mistake["loc"][0] == "body"]
    explained = [(place or ("body",), reason) for place, reason in words.explained(inside, model)]
    outside = [mistake for mistake in errors if mistake["loc"][0] != "body"]
    return explained + [
        (mistake["loc"], reason) for mistake in outside for _, reason in words.explained([mistake], BaseModel)
    ]


def _other_methods(request: Request, allowed: str) -> str:
    """Return which methods an address answers to, and what takes the place of one that people miss."""
    path = request.url.path.rstrip("/")
    instead = (
        text
        for method, address, text in _INSTEAD
        if re.fullmatch(method, request.method) and re.fullmatch(address, path)
    )
    return " ".join([f"This address answers to {allowed}.", *instead])


def field_name(place: tuple[int | str, ...]) -> str:
    """Return a place in the request. A name that nobody could have meant is not repeated."""
    return ".".join(str(part) if re.fullmatch(r"[A-Za-z0-9_-]{1,40}", str(part)) else "…" for part in place)


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """Return all methods that an address answers to, by any route."""
    bare = {name: scope[name] for name in ("type", "path", "root_path") if name in scope}
    methods = {
        method
        for method in ("DELETE", "GET", "PATCH", "POST", "PUT")
        if any(route.matches(bare | {"method": method})[0] is Match.FULL for route in app.routes)
    }
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))
