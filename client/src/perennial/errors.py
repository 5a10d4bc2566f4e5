"""Exceptions: what went wrong, and what to do. No message repeats records, labels or keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_URN = "urn:perennial:problem:"
_NOT_FINITE = "is missing or not finite as a 32-bit float. Fill or drop such rows."


class PerennialError(Exception):
    """The base class of all exceptions of this package."""


class InvalidArgument(PerennialError, ValueError):
    """An argument of a call is invalid, such as an address without a host, or a key with a line break."""


class InvalidData(PerennialError, ValueError):
    """The data that a call was given can't be records of the stream, or features of the model."""


class InvalidRow(InvalidData):
    """A row that is missing, not finite, or not as the others. row: its number, from 0 for the first of the call."""

    def __init__(self, place: str, row: int, reason: str = _NOT_FINITE) -> None:
        super().__init__(place, row, reason)
        self.place, self.row, self.reason = place, row, reason

    def __str__(self) -> str:
        return f"{self.place}: row {self.row}, counted from 0, {self.reason}"

    def after(self, rows: int) -> InvalidRow:
        """Return the error with `rows` added to its row number."""
        return InvalidRow(self.place, rows + self.row, self.reason)


class Unreachable(PerennialError):
    """The server did not answer, or answered in a way that no Perennial server does."""


class UnknownServer(PerennialError):
    """The server answers, but speaks a version of the interface that this package does not know."""


class Unsupported(PerennialError):
    """The release, or the target format, does not support the call."""


class NotYet(PerennialError):
    """The release does not exist yet."""


class Halted(PerennialError):
    """The publication has halted, so no release will follow. The message holds the server's reason."""


class Uncertain(PerennialError):
    """It is unknown whether the service stored some records, so they are neither sent again nor skipped."""


class LocalServiceFailed(PerennialError):
    """The service on this machine could not be started, or ended before it was ready."""


class Problem(PerennialError):
    """An error document of the server (RFC 9457).

    slug: the stable name of the error, such as `budget-exceeded`. status: of HTTP. detail: what is wrong and what to
    do, as the server says it. members: further members of the document, such as `errors` or `left`.
    """

    def __init__(self, *, slug: str, status: int, title: str, detail: str, members: Mapping[str, Any]) -> None:
        super().__init__(slug, status, title, detail, members)
        self.slug, self.status, self.title, self.detail = slug, status, title, detail
        self.members = dict(members)

    @property
    def advice(self) -> str:
        """Return what the user can do about the problem, as a sentence."""
        return _ADVICE.get(self.slug, "")

    def __str__(self) -> str:
        return " ".join(
            part for part in (f"{self.title} ({self.slug}, {self.status}).", self.detail, self.advice) if part
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.slug, self.status, self.title, self.detail, self.members)


class NotFound(Problem):
    """There is no such stream, publication or release, or the key may not see it."""


class NotAllowed(Problem):
    """The key is unknown, revoked, or lacks a scope."""


class InvalidRecords(Problem):
    """The server refused a batch whole. `members["errors"]` has row numbers, counted within the batch, and reasons."""


class BudgetExceeded(Problem):
    """The stream's budget can't hold the publication. `members` has `spent`, `reserved`, `asked` and `left`."""


class Busy(Problem):
    """The server was busy, or a part of it unavailable, for the whole of the client's patience."""


_CLASSES: dict[str, type[Problem]] = {
    "not-found": NotFound,
    "unauthenticated": NotAllowed,
    "forbidden": NotAllowed,
    "invalid-records": InvalidRecords,
    "budget-exceeded": BudgetExceeded,
    "backlog-full": Busy,
    "idempotency-full": Busy,
    "too-many-requests": Busy,
    "too-much-at-once": Busy,
    "log-unavailable": Busy,
    "database-unavailable": Busy,
    "segments-unavailable": Busy,
    "too-many-connections": Busy,
    "stopping": Busy,
    "idempotency-running": Busy,
}

_ADVICE = {
    "unauthenticated": "Give connect() a key that the server knows and that is not revoked.",
    "forbidden": "Use a key with that scope, or ask an administrator to do this.",
    "idempotency-conflict": "Use another `key`, or append exactly the same data in batches of the same size.",
    "backlog-full": "Append again later, with the same `key`: nothing is stored twice.",
    "idempotency-full": "Append more records at once: each batch uses one key.",
    "too-large": "Choose a smaller `batch`.",
    "no-predictions": "Predict with a release of the publication that is a model of labels.",
}


def problem_of(status: int, content_type: str, body: bytes) -> PerennialError:
    """Return the exception for an answer that is an error."""
    document = _document(body) if content_type.startswith("application/problem+json") else None
    if document is None:
        return Unreachable(
            f"The answer is {status} without an error document of Perennial: check that the URL is a Perennial server, "
            "and that no proxy answers in its place."
        )
    kind = str(document.pop("type", ""))
    if not kind.startswith(_URN):
        return UnknownServer(f"The server answered {status} with a kind of error that is not Perennial's.")
    slug = kind.removeprefix(_URN)
    title, detail = str(document.pop("title", "")), str(document.pop("detail", ""))
    document.pop("status", None)
    return _CLASSES.get(slug, Problem)(slug=slug, status=status, title=title, detail=detail, members=document)


def _document(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _restored(slug: str, status: int, title: str, detail: str, members: Mapping[str, Any]) -> Problem:
    return _CLASSES.get(slug, Problem)(slug=slug, status=status, title=title, detail=detail, members=members)
