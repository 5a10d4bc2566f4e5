"""The way past the framework, for what is asked in its thousands."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette._utils import get_route_path
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send


class Shortcut:
    """Answers some routes without the framework's routing, which finds out anew what every request wants.

    That takes longer than to check a small batch, and many times as long as to find out that a model is still the
    newest. What such a route is called, and how it is documented and timed, stay the framework's; so do the answers to
    errors, which `handlers` give.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Sequence[tuple[BaseRoute, Callable[[Request], Awaitable[Response]]]],
        handlers: Mapping[Any, Callable[[Request, Any], Any]],
    ) -> None:
        self._app, self._handlers = app, handlers
        self._routes = [(cast("APIRoute", route), answer) for route, answer in routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = get_route_path(scope)
            for route, answer in self._routes:
                if scope["method"] in route.methods and (asked := route.path_regex.match(path)):  # type: ignore[operator]
                    scope["route"], scope["path_params"] = route, asked.groupdict()
                    await (await self._answered(answer, Request(scope, receive)))(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _answered(self, answer: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        try:
            return await answer(request)
        except Exception as error:
            handler = next((self._handlers[kind] for kind in type(error).__mro__[:-3] if kind in self._handlers), None)
            if handler is None:
                raise
            response: Response = handler(request, error)
            return response
