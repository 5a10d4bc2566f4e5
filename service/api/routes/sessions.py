"""`/v1/session`: a person signs in with a key, for a browser to look around with."""

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from service.api.auth.credentials import SESSION_COOKIE
from service.api.auth.scopes import Credentials, KeyFirst, Reader
from service.api.http.problems import Problem, documented
from service.api.services import Shared
from service.store import sessions
from service.store.keys import Key

router = APIRouter(route_class=KeyFirst, prefix="/v1/session", tags=["session"])


class SessionInfo(BaseModel):
    """The key of the session, and what it may see."""

    key: str = Field(description="The name of the key")
    streams: list[str] | None = Field(description="The only streams that it may see; null: every one")


@router.post("", status_code=201, responses=documented())
async def sign_in(
    request: Request, key: Reader, credentials: Credentials, shared: Shared, response: Response
) -> SessionInfo:
    """Begins a session of 12 hours, for a browser: what the scope `read` allows of what the key may, and nothing else,
    but to label, if the key has the scope `label` by name (an administrator's has not).

    Its secret is a cookie that no script can read and that no other site can make a browser send. With it, to label and
    what is not GET needs the header `X-Perennial-Page`, with any value.
    """
    if credentials is None:
        raise Problem("forbidden", "A session can't begin another; send the key itself.")
    secret = await shared.run(sessions.begin, key.id)
    response.set_cookie(
        SESSION_COOKIE,
        secret,
        max_age=int(sessions.LASTS.total_seconds()),
        httponly=True,
        samesite="strict",
        secure=request.headers.get("origin", "").startswith("https:"),  # a proxy speaks TLS; its browser tells
    )
    response.headers["Cache-Control"] = "no-store"
    return _info(key)


@router.get("", responses=documented())
async def who_is_looking(key: Reader) -> SessionInfo:
    """The key, by its name."""
    return _info(key)


@router.delete("", status_code=204, responses=documented())
async def sign_out(request: Request, key: Reader, shared: Shared, response: Response) -> None:  # noqa: ARG001
    """Ends the session that asks for it, at once and everywhere. A key is none: nothing happens to it."""
    if secret := request.cookies.get(SESSION_COOKIE):
        await shared.run(sessions.end, secret)
        shared.keys.look_again()
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")


def _info(key: Key) -> SessionInfo:
    return SessionInfo(key=key.name, streams=None if key.streams is None else sorted(key.streams))
