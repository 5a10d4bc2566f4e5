"""Responses whose headers are put together once for many of them; `connections._send_whole` says what that saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import Response

from service.api.http.connections import SEND_WHOLE
from service.api.http.headers import as_lines, completed, of_one_answer

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from service.api.http.headers import Header


PREBUILT = "perennial.prebuilt"  # type of the message that is a whole `PrebuiltResponse`


class Head(NamedTuple):
    """The headers that many responses share; `lines`: the same as they are sent."""

    headers: list[Header]
    lines: bytes


def head(response: Response) -> Head:
    """Return the head of all responses that have the headers of this one. ValueError: a header has a line break."""
    headers = completed(response.raw_headers)
    lines = [name + b": " + value for name, value in headers]
    if any(end in line for line in lines for end in (b"\r", b"\n", b"\0")):
        raise ValueError("a header with a line break in it")
    return Head(headers, b"".join(line + b"\r\n" for line in lines))


class PrebuiltResponse(Response):
    """A response that is sent as one message. Only for direct routes, since the framework does not know the message."""

    def __init__(self, status: int, head: Head, body: bytes) -> None:
        self.status_code, self._head, self._body = status, head, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send it."""
        await send({"type": PREBUILT, "status": self.status_code, "head": self._head, "body": self._body})


async def send_prebuilt(message: Message, request: str, scope: Scope, send: Send) -> None:
    """Send a prebuilt response to the request of this id: by the connection itself where it can (`_send_whole`)."""
    status, head, body, own = message["status"], message["head"], message["body"], of_one_answer(request)
    send_whole = scope.get(SEND_WHOLE)
    if send_whole is not None:
        await send_whole(status, head.lines + as_lines(own), body)
        return
    await send({"type": "http.response.start", "status": status, "headers": [*head.headers, *own]})
    await send({"type": "http.response.body", "body": body})
