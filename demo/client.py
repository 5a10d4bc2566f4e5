"""HTTP with the patience that the service asks for."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self

import httpx

from demo.service import DemoError

if TYPE_CHECKING:
    from types import TracebackType

_PATIENCE_SECONDS = 60.0


class Client:
    """One key's way to the service. `429` and `503` are tried again when `Retry-After` says."""

    def __init__(self, address: str, key: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._http = httpx.AsyncClient(
            base_url=address,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(15.0, read=75.0),  # a long poll may take a minute
            trust_env=False,  # no proxy between the demo and its own service
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def get(self, path: str, **headers: str) -> Any:
        """Return the JSON of an answer that must be 200."""
        return (await self.request("GET", path, headers=headers)).json()

    async def post(self, path: str, body: Any, **headers: str) -> Any:
        """Return the JSON of an answer that must say that it worked."""
        return (await self.request("POST", path, body=body, headers=headers)).json()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: dict[str, str] | None = None,
        also: tuple[int, ...] = (),
    ) -> httpx.Response:
        """Return an answer of 2xx, or with one of the statuses in `also`; raise DemoError for any other.

        A request that can be repeated without harm is also repeated when the connection broke: a GET, or one with an
        Idempotency-Key.
        """
        headers = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        repeatable = method == "GET" or "Idempotency-Key" in headers
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                answer = await self._http.request(method, path, json=body, headers=headers)
            except httpx.TransportError as error:
                if not repeatable or time.monotonic() > deadline:
                    raise DemoError(f"{method} {path}: no answer ({error or type(error).__name__})") from error
                pause = 0.5
            else:
                if answer.is_success or answer.status_code in also:
                    return answer
                if not _again(answer) or time.monotonic() > deadline:
                    raise DemoError(f"{method} {path}: {answer.status_code} {answer.text}")
                pause = float(answer.headers.get("Retry-After", "0.5"))
            await asyncio.sleep(pause)


def _again(answer: httpx.Response) -> bool:
    """Return whether to ask again: it is busy or away, or our own first attempt at the same thing still runs."""
    return answer.status_code in (429, 503) or (answer.status_code == 409 and "idempotency-running" in answer.text)
