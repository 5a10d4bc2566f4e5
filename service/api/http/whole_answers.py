"""Answers that are sent at once: what is the same in many of them is put together once.

`connections._answer` says how much that saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import Response

from service.api.http.connections import WHOLE_ANSWER
from service.api.http.headers import as_lines, completed, next_request, of_one_answer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from service.api.http.headers import Header


WHOLE = "perennial.whole"  # type of the message by which a `WholeResponse` reaches who sends it


class Head(NamedTuple):
    """The headers of an answer, but for those of one answer alone; `lines` as they are sent."""

    headers: list[Header]
    lines: bytes


def head(response: Response) -> Head:
    """Return the head of answers with the headers of this one. ValueError: a header would not be one line."""
    headers = completed(response.raw_headers)
    lines = [name + b": " + value for name, value in headers]
    if any(end in line for line in lines for end in (b"\r", b"\n", b"\0")):
        raise ValueError("a header with a line break in it")
    return Head(headers, b"".join(line + b"\r\n" for line in lines))


class WholeResponse(Response):
    """An answer that passes through the framework as one message. Only for routes that the framework does not read."""

    def __init__(self, status: int, head: Head, body: bytes) -> None:
        self.status_code, self._head, self._whole = status, head, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": WHOLE, "status": self.status_code, "head": self._head, "body": self._whole})


async def send_whole(
    scope: Scope, send: Send, status: int, head: Head, body: bytes, *, request: str | None = None
) -> None:
    """Send an answer: by the connection itself where it can (`connections.answer`).

    request: the id of the request that it answers; None: it has none yet.
    """
    own = of_one_answer(request or next_request())
    answer = scope.get(WHOLE_ANSWER)
    if answer is not None:
        await answer(status, head.lines + as_lines(own), body)
        return
    await send({"type": "http.response.start", "status": status, "headers": [*head.headers, *own]})
    await send({"type": "http.response.body", "body": body})
