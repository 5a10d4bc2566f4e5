"""Which scope a route needs: every route declares it with one of the dependencies at the end of this file."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.base import SecurityBase

from service.api.auth.credentials import secret_of
from service.api.http.bodies import ConfigurationRequest
from service.api.http.problems import Problem, too_many_requests, unauthenticated
from service.api.services import services
from service.store.keys import Key

_bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer prn_…`")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class May(SecurityBase):
    """A dependency: the key of the request, which must have this scope (or `admin`).

    It is one, not a chain of them: what each wants is found out anew for every request, at the price of a small batch.
    """

    model, scheme_name = _bearer.model, _bearer.scheme_name

    def __init__(self, needed: str) -> None:
        self._needed = needed

    async def __call__(self, request: Request) -> Key:
        key: Key | None = request.scope.get("perennial.key")
        if key is None:
            key = await self._identified(request)
        else:  # the framework asks again once the body is there, which may have taken a while
            await (await services(request)).keys.check_again(request)
        if not {self._needed, "admin"} & key.scopes:
            raise Problem("forbidden", f"This needs a key with the scope `{self._needed}`.")
        return key

    async def _identified(self, request: Request) -> Key:
        shared, shown = await services(request), secret_of(request)
        asker = request.client.host if request.client else ""
        key = await shared.keys.find(shown, asker) if shown else None
        if key is None:
            raise unauthenticated()
        if early := shared.requests.early(key.id):
            raise too_many_requests("This key asks too often.", early)
        shared.requests.count(key.id)
        request.scope["perennial.key"] = key
        if self._needed == "admin":
            request.scope["perennial.audit"] = key.id
        return key


class KeyFirst(APIRoute):
    """Checks the key before the framework reads the body, which it would otherwise do first. JSON is read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        may = next((each.call for each in self.dependant.dependencies if isinstance(each.call, May)), None)

        async def answer_whom_it_may(request: Request) -> Response:
            if may is not None:
                await may(request)
            return await answer(ConfigurationRequest(request.scope, request.receive))

        return answer_whom_it_may


INGESTER = May("ingest")
READER = May("read")
Reader = Annotated[Key, Depends(READER)]
Ingester = Annotated[Key, Depends(INGESTER)]
Labeller = Annotated[Key, Depends(May("label"))]
Admin = Annotated[Key, Depends(May("admin"))]
MetricsReader = Annotated[Key, Depends(May("metrics"))]
