"""The scope that a route needs: every route declares it with one of the dependencies at the end of this file."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.base import SecurityBase

from service.api.auth.access import authorize
from service.api.http.bodies import ConfigurationRequest
from service.store.keys import Key

_bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer prn_…`")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class Authorized(SecurityBase):
    """A dependency: the key of the request, which must have this scope (or `admin`)."""

    model, scheme_name = _bearer.model, _bearer.scheme_name

    def __init__(self, scope: str) -> None:
        self._scope = scope

    async def __call__(self, request: Request) -> Key:
        """Return the key, or raise the Problem of `authorize`."""
        return await authorize(request, self._scope)


class KeyFirst(APIRoute):
    """Checks the key before the framework reads the body, which it would otherwise do first. JSON is read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        answer = super().get_route_handler()
        calls = [dependency.call for dependency in self.dependant.dependencies]
        authorized = next((call for call in calls if isinstance(call, Authorized)), None)

        async def answer_whom_it_may(request: Request) -> Response:
            if authorized is not None:
                await authorized(request)
            return await answer(ConfigurationRequest(request.scope, request.receive))

        return answer_whom_it_may


Reader = Annotated[Key, Depends(Authorized("read"))]
Ingester = Annotated[Key, Depends(Authorized("ingest"))]
Labeller = Annotated[Key, Depends(Authorized("label"))]
Admin = Annotated[Key, Depends(Authorized("admin"))]
MetricsReader = Annotated[Key, Depends(Authorized("metrics"))]
