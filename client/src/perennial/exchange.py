"""Requests and answers without any input or output: what to ask, what an answer means, when to ask again.

An exchange is a generator. It yields a `Request` or a `Pause`, gets an `Answer` or a `NoAnswer` back, and returns its
result. `transport` runs exchanges, once with blocking sockets and once with asyncio; everything else is written once.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from perennial.errors import (
    Busy,
    InvalidRecords,
    PerennialError,
    Problem,
    UnknownServer,
    Unreachable,
    problem_of,
)

Result = TypeVar("Result")

PATIENCE_SECONDS = 300.0  # seconds of retries in long calls: appending, following
CALL_PATIENCE_SECONDS = 30.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 10.0
ANSWER_SECONDS = 60.0
REMEMBERED_SECONDS = 24 * 3600.0  # seconds for which the service remembers an Idempotency-Key
CLOCK_ERROR_SECONDS = 3600.0  # seconds by which a clock may be changed, or two clocks may differ

_BUSY = frozenset({408, 429, 502, 503, 504})
_NOTHING_WAS_DONE = frozenset({429})


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request. repeatable: sending it twice does what sending it once does. seconds: to wait for the answer."""

    method: str = "GET"
    path: str
    query: Mapping[str, str | int] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)
    repeatable: bool = True
    seconds: float = ANSWER_SECONDS


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """Return the answer's JSON document. Raises UnknownServer if there is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise UnknownServer("The answer is not JSON: check that the URL is a Perennial server.") from None


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """The absence of an answer. sent: whether the server may have read the request."""

    reason: str
    sent: bool


@dataclass(frozen=True)
class Pause:
    """Wait so many seconds."""

    seconds: float


def path_of(kind: str, name: str) -> str:
    """Return the path of a stream or a publication."""
    return f"/v1/{kind}/{quote(name, safe='')}"


def json_object(answer: Answer) -> dict[str, Any]:
    """Return an answer's JSON object. Raises UnknownServer if the answer is anything else."""
    document = answer.json()
    if not isinstance(document, dict):
        raise UnknownServer("The answer is not the JSON that this version of perennial-client knows: update it.")
    return document


Exchange: TypeAlias = Generator[Request | Pause, Answer | NoAnswer | None, Result]


def is_remembered(since: float) -> bool:
    """Return whether the service surely remembers an Idempotency-Key that was first used then, in seconds since 1970.

    The clock is the wall's: a computer's other clocks stop while it sleeps.
    """
    return -CLOCK_ERROR_SECONDS <= time.time() - since < REMEMBERED_SECONDS - CLOCK_ERROR_SECONDS


def ask(
    request: Request,
    *also: int,
    patience: float = CALL_PATIENCE_SECONDS,
    since: float | None = None,
    doubts: list[str] | None = None,
) -> Exchange[Answer]:
    """Return the answer, if its status is below 300 or one of `also`; raise the error that it is otherwise.

    Where the server is busy or can't be reached, ask again after a pause, for at most `patience` seconds, but never
    repeat a request that is not repeatable and may have been carried out, nor one with an Idempotency-Key on the next
    day: the service may have forgotten it.

    since: when the key was first used, in seconds since 1970; default now.
    doubts: gets a line for every attempt that the server may have carried out although no answer says so.
    """
    since = time.time() if since is None else since
    waited, pause = 0.0, FIRST_PAUSE_SECONDS
    while True:
        began = time.monotonic()
        answer = yield request
        waited += time.monotonic() - began
        error = _error(answer, also)
        if error is None:
            assert isinstance(answer, Answer)  # noqa: S101 - no error is only ever an answer's
            return answer
        if doubts is not None and _may_be_done(answer):
            doubts.append(str(error))
        next_pause = max(_retry_after(answer), random.uniform(0.5, 1.0) * pause)  # noqa: S311 - spreads clients
        if not _may_repeat(request, answer) or waited + next_pause > patience:
            raise error
        yield Pause(next_pause)
        if "Idempotency-Key" in request.headers and not is_remembered(since):
            raise error
        waited, pause = waited + next_pause, min(2 * pause, LONGEST_PAUSE_SECONDS)


def is_refusal(error: Problem | Unreachable, doubts: Sequence[str]) -> bool:
    """Return whether the service certainly stored nothing of a body, given its answer, or because it was not sent.

    doubts: as `ask` left them. A conflict says that the key was used before, perhaps for the same records.
    """
    if isinstance(error, InvalidRecords):
        return True
    return not doubts and not (isinstance(error, Problem) and error.slug == "idempotency-conflict")


def _error(answer: Answer | NoAnswer | None, also: tuple[int, ...]) -> PerennialError | None:
    if isinstance(answer, Answer):
        if answer.status < 300 or answer.status in also:
            return None
        return problem_of(answer.status, answer.headers.get("content-type", ""), answer.body)
    reason = "no answer" if answer is None else answer.reason
    return Unreachable(f"The server can't be reached: {reason}. Check the URL, and that the service runs.")


def _may_be_done(answer: Answer | NoAnswer | None) -> bool:
    if isinstance(answer, Answer):
        return answer.status >= 500 or answer.status == 409
    return answer is not None and answer.sent


def _may_repeat(request: Request, answer: Answer | NoAnswer | None) -> bool:
    if not isinstance(answer, Answer):
        return request.repeatable or (answer is not None and not answer.sent)
    if answer.status in _NOTHING_WAS_DONE:
        return True
    if not request.repeatable:
        return False
    if answer.status == 409:
        return isinstance(_error(answer, ()), Busy)
    return answer.status in _BUSY


def _retry_after(answer: Answer | NoAnswer | None) -> float:
    """Return the seconds that the server asks for; a date, which Perennial never sends, counts as none."""
    value = answer.headers.get("retry-after", "") if isinstance(answer, Answer) else ""
    return float(value) if value.isascii() and value.isdigit() else 0.0
