"""`/v1/keys`: who may do what."""

from typing import Annotated, Literal, Self

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from service.api.auth.scopes import Admin, KeyFirst
from service.api.http.problems import Problem, documented
from service.api.schemas import Before, Id, Items, Limit, Name, Timestamp
from service.api.services import Shared
from service.store import keys

router = APIRouter(route_class=KeyFirst, prefix="/v1/keys", tags=["keys"])


class KeyRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Name
    scopes: Annotated[list[Literal["ingest", "read", "label", "metrics", "admin"]], Field(min_length=1, max_length=5)]
    streams: Annotated[list[Name], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="Limits the key to these streams; others answer 404"
    )

    @model_validator(mode="after")
    def _metrics_tell_of_every_stream(self) -> Self:
        if "metrics" in self.scopes and self.streams is not None:
            raise PydanticCustomError(
                "metrics_of_all",
                "the scope metrics is for keys without a limit to streams, since metrics tell of every stream:"
                " leave out streams, or metrics",
            )
        return self


class KeyInfo(BaseModel):
    id: int
    name: str
    scopes: list[str]
    streams: list[str] | None
    created_at: Timestamp
    revoked_at: Timestamp | None


class NewKey(KeyInfo):
    key: str = Field(description="The key itself. Shown this once; only its hash is stored.")


@router.post(
    "", status_code=201, responses=documented("invalid-request", "name-taken", "too-large", "unsupported-media-type")
)
async def make_key(request: KeyRequest, admin: Admin, shared: Shared, response: Response) -> NewKey:
    """Makes a key and shows it this once."""
    _unlimited(admin)
    key, secret = await shared.run(
        keys.make, name=request.name, scopes=sorted(set(request.scopes)), streams=request.streams
    )
    response.headers["Location"] = f"/v1/keys/{key.id}"
    response.headers["Cache-Control"] = "no-store"
    return NewKey(**_info(key).model_dump(), key=secret)


@router.get("", responses=documented("invalid-request"))
async def list_keys(
    admin: Admin,
    shared: Shared,
    limit: Limit = 100,
    before: Before = None,
) -> Items[KeyInfo]:
    """Lists the keys, revoked ones too, newest first. Never the keys themselves."""
    _unlimited(admin)
    return Items(items=[_info(key) for key in await shared.run(keys.page, limit=limit, before=before)])


@router.delete("/{key}", status_code=204, responses=documented("invalid-request", "not-found", "last-admin-key"))
async def revoke_key(key: Id, admin: Admin, shared: Shared) -> Response:
    """Revokes a key, at once and for ever."""
    _unlimited(admin)
    try:
        known = 0 < key < 2**63 and await shared.run(keys.revoke, key)
    except keys.LastAdminKey:
        raise Problem("last-admin-key", "Make another admin key first; without one nobody could make keys.") from None
    if not known:
        raise Problem("not-found", "There is no key with this id; GET /v1/keys lists them.")
    shared.keys.look_again()
    return Response(status_code=204)


def _unlimited(admin: keys.Key) -> None:
    """A key limited to some streams must not make one that is not."""
    if admin.streams is not None:
        raise Problem("forbidden", "Only an admin key that is not limited to streams may manage keys.")


def _info(key: keys.Key) -> KeyInfo:
    return KeyInfo(
        id=key.id,
        name=key.name,
        scopes=sorted(key.scopes),
        streams=None if key.streams is None else sorted(key.streams),
        created_at=key.created_at,
        revoked_at=key.revoked_at,
    )
