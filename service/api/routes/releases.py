"""`/v1/publications/{publication}/releases` and `/predict`: the way out. Only what is committed is served."""

from typing import Annotated, Any, cast

import numpy as np
from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from sqlalchemy import Connection

from service.api.auth.access import authorize, publication_or_404
from service.api.auth.scopes import KeyFirst, Reader
from service.api.http.bodies import refusal, require_json
from service.api.http.prebuilt_responses import PrebuiltResponse
from service.api.http.problems import Problem, documented
from service.api.http.representations import (
    JSON,
    SAFETENSORS,
    VARY,
    Representation,
    choose,
    head_of,
    unchanged,
)
from service.api.long_polls import await_newer, known_version, newest_of, wait_seconds
from service.api.prediction_noise import PredictionNoise, noise_of
from service.api.release_body import shown
from service.api.schemas import IN_DIGITS, X_COLUMN, Items, Limit, Release, ReleaseInfo, Timestamp, as_json
from service.api.services import Services, Shared, services_of
from service.mechanisms.linear import predict
from service.store import releases
from service.store.due_fits import DueFit, due_fits
from service.store.keys import Key
from service.store.newest import Newest
from service.store.publications import Publication
from service.streams import batches
from service.streams.layout import RecordLayout

router = APIRouter(route_class=KeyFirst, prefix="/v1/publications/{publication}", tags=["releases"])

MOST_STRETCHES = 512
Version = Annotated[int, Path(ge=1, lt=2**31), IN_DIGITS]
_version: TypeAdapter[int] = TypeAdapter(Version)


class Stretch(BaseModel):
    """Versions `first` to `last`, as one. Charges are ε, or ρ where noise is Gaussian."""

    model_config = ConfigDict(from_attributes=True)

    first: int
    last: int
    models: int = Field(description="How many of them have the role `model`")
    time: int = Field(description="The newest's")
    published_at: Timestamp = Field(description="The newest's")
    least_noise: float | None = Field(description="The least scale of their noise")
    most_noise: float | None
    least_charge: float | None
    most_charge: float | None
    on_record: float = Field(description="Their charges, in all, to the record that the publication has charged most")


class Prediction(BaseModel):
    version: int
    labels: list[int] | list[float] = Field(description="Classes; of a regression the predicted y, clipped to ±bound")
    scores: list[list[float]] = Field(
        description="One row per record: the probability of each class (of `huber_hinge`: its margin); of a regression "
        "the predicted y as it is"
    )
    label_names: list[str] | None = Field(None, description="`labels` by name; absent where classes have no names")
    class_names: list[str] | None = Field(None, description="Names of the columns of `scores`; absent likewise")
    noise: PredictionNoise | None = Field(
        None, description="With `noise=true`: what noise may have done; null where nothing is known of that"
    )


@router.get("/releases", responses=documented("invalid-request", "not-found"))
async def list_releases(
    publication: str,
    key: Reader,
    shared: Shared,
    limit: Limit = 100,
    before: Annotated[
        int | None, Query(ge=1, lt=2**31, description="version of the last release of the page before"), IN_DIGITS
    ] = None,
) -> Items[ReleaseInfo]:
    """Lists every version, newest first, without the parameters' values."""

    def look(connection: Connection) -> list[dict[str, Any]]:
        row = publication_or_404(connection, key, publication)
        page = releases.page(connection, row.id, limit=limit, before=before)
        return [shown(publication, release) for release in page]

    return as_json({"items": await shared.run(look)})  # type: ignore[return-value]


@router.get("/releases/outline", responses=documented("not-found"))
async def outline_releases(publication: str, key: Reader, shared: Shared) -> Items[Stretch]:
    """All versions at a glance, oldest first: neighbours together where there are more than 512, for a chart."""

    def look(connection: Connection) -> list[releases.Stretch]:
        row = publication_or_404(connection, key, publication)
        worst = -1 if row.visible_worst_record is None else row.visible_worst_record
        return releases.outlined(connection, row.id, most=MOST_STRETCHES, record=worst)

    return Items(items=[Stretch.model_validate(stretch) for stretch in await shared.run(look)])


_NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "Still the version of If-None-Match"}}
_FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The release, or its weights as a file",
        "content": {SAFETENSORS.media_type: {"schema": {"type": "string", "format": "binary"}}},
    }
}
_Tag = Annotated[str | None, Header(description="ETag of the version you have")]


@router.get(
    "/releases/latest",
    response_model=Release,
    responses=_FILE | _NOT_MODIFIED | documented("not-found", "not-acceptable"),
)
async def get_latest_release(
    publication: str,
    request: Request,
    key: Reader,
    shared: Shared,
    if_none_match: _Tag = None,
    prefer: Annotated[str | None, Header(description="`wait=N`: wait up to N ≤ 60 seconds for a newer version")] = None,
) -> Response:
    """The newest model. `Prefer: wait=N` waits for one newer than If-None-Match's, else than the current one.

    No answer is older than what was visible when the request arrived. Where releases appear at ticks, one look at the
    database answers all requests until the next tick, for a second at most: readers may be behind for so long if the
    database's clock is set forward, or the database is put back to an older state.

    `Accept: application/vnd.safetensors` gives the weights as a file, with all else in its metadata.
    """
    representation = _acceptable(request)
    prefer, if_none_match = whole(request, "prefer", prefer), whole(request, "if-none-match", if_none_match)
    seen = await newest_of(shared, key, publication)
    wait = wait_seconds(prefer)
    known = None if wait is None else known_version(if_none_match)
    than = (seen.latest if known is None else known) or 0
    if wait is None or (seen.latest or 0) > than:  # a search that others began could have found an older one
        version = seen.latest
    else:
        version = await await_newer(shared, key, publication, representation, than=than, seconds=wait)
        await shared.keys.check_again(request)  # after that version was looked for: it may have been revoked meanwhile
    if version is None:
        raise _nothing_yet({} if wait is None else {"Preference-Applied": f"wait={wait}"})
    return await _release(shared, publication, seen, version, representation, if_none_match, wait=wait)


async def answer_latest(request: Request) -> Response:
    """Call `get_latest_release` without the framework (direct_routes.py)."""
    return await get_latest_release(
        request.path_params["publication"],
        request,
        key=await authorize(request, "read"),
        shared=services_of(request),
        if_none_match=request.headers.get("if-none-match"),
        prefer=request.headers.get("prefer"),
    )


LATEST = cast("APIRoute", router.routes[-1])


@router.get(
    "/releases/{version}",
    response_model=Release,
    responses=_FILE | _NOT_MODIFIED | documented("invalid-request", "not-found", "not-acceptable"),
)
async def get_release(
    publication: str, version: Version, request: Request, key: Reader, shared: Shared, if_none_match: _Tag = None
) -> Response:
    """One version. It never changes. `Accept: application/vnd.safetensors` gives the weights as a file."""
    representation = _acceptable(request)
    if_none_match = whole(request, "if-none-match", if_none_match)
    row: Newest | Publication | None = shared.newest_models.seen_lately(publication, key.streams)
    if row is None or version > (row.latest or 0):
        row = await newest_of(shared, key, publication)
    if version > (row.latest or 0):  # which is the newest with the role `model`
        row = await shared.run(publication_or_404, key, publication)
        if version > (row.visible_version or 0):
            raise _no_release()  # before any tag is looked at: what does not exist yet must not be cached
    return await _release(shared, publication, row, version, representation, if_none_match, by_number=True)


async def answer_version(request: Request) -> Response:
    """Call `get_release` without the framework (direct_routes.py)."""
    key = await authorize(request, "read")
    try:
        version = _version.validate_python(request.path_params["version"])
    except ValidationError as error:
        mistakes = [mistake | {"loc": ("path", "version")} for mistake in error.errors(include_url=False)]
        raise RequestValidationError(mistakes) from None
    return await get_release(
        request.path_params["publication"],
        version,
        request,
        key=key,
        shared=services_of(request),
        if_none_match=request.headers.get("if-none-match"),
    )


VERSION = cast("APIRoute", router.routes[-1])


@router.post(
    "/predict",
    responses=documented(
        "not-found", "no-predictions", "too-large", "unsupported-media-type", "invalid-records", "too-much-at-once"
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                JSON.media_type: {
                    "schema": {
                        "type": "object",
                        "required": ["x"],
                        "properties": {"x": X_COLUMN},
                        "additionalProperties": False,
                        "example": {"x": [[0.1, -1.2]]},
                    }
                }
            },
        }
    },
)
async def predict_labels(
    publication: str,
    request: Request,
    key: Reader,
    shared: Shared,
    version: Annotated[int | None, Query(ge=1, lt=2**31, description="default: the latest"), IN_DIGITS] = None,
    noise: Annotated[bool, Query(description="also what the noise of the release may have done")] = False,
) -> Prediction:
    """Labels and scores by a released model. Nothing of the request is kept."""
    require_json(request)

    def compute(connection: Connection, key: Key, body: bytes) -> dict[str, Any]:
        model_of = publication_or_404(connection, key, publication)
        wanted = version or model_of.visible_latest
        if wanted is None:
            raise _nothing_yet(fit=due_fits(connection, [model_of.id]).get(model_of.id))
        release = releases.find(connection, model_of.id, wanted)
        if release is None:
            raise _no_release()
        if release.model["kind"] != "linear":
            raise Problem(
                "no-predictions",
                "This release is no model of labels: ask `POST …/queries` about a histogram; with an encoder, a later "
                "version predicts.",
            )
        layout = RecordLayout.of_model(release.model)
        x = batches.read_json(body, layout)["x"]
        if len(x) > layout.most_records:
            raise Problem("too-large", f"At most {layout.most_records} records of this stream at once; split them.")
        described = release.model.get("encoder")
        encoder = None if described is None else releases.parameters(connection, model_of.id, described["release"])
        labels, scores = predict(release.model, release.parameters, x, encoder)
        if len(unmapped := np.flatnonzero(~np.isfinite(scores).all(axis=1))):
            raise batches.InvalidRecords(*((int(row), "x: is not finite once it is mapped") for row in unmapped))
        names = release.model.get("class_names")
        named = {} if names is None else {"label_names": [names[label] for label in labels], "class_names": names}
        beside = {"noise": noise_of(connection, model_of, release, x)} if noise else {}
        return {"version": release.version, "labels": labels.tolist(), "scores": scores} | named | beside

    try:
        with shared.in_flight.body(key.id) as held:
            body = await shared.body(request, held)
            return as_json(await shared.run(compute, key, body))  # type: ignore[return-value]
    except batches.InvalidRecords as refused:
        raise refusal(refused) from None


async def _release(
    shared: Services,
    publication: str,
    source: Newest | Publication,
    version: int,
    representation: Representation,
    if_none_match: str | None,
    **asked: Any,
) -> Response:
    """Return the answer to a request for a version; 304: the client has it. asked: how it was, as for `head_of`."""
    if unchanged(representation.tag(source.promise, version), if_none_match):
        return PrebuiltResponse(304, head_of(publication, source.promise, version, representation, None, **asked), b"")
    which = (source.promise, version, representation.name)  # ids come again where a database was put back
    body = shared.rendered.get(which)
    if body is None:
        release = await shared.run_once(("release", source.id, version), releases.find, source.id, version)
        if release is None:
            raise _no_release()
        body = shared.rendered.get(which) or representation.write(shown(publication, release))
        shared.rendered.put(which, body)
    head = head_of(publication, source.promise, version, representation, len(body), **asked)
    return PrebuiltResponse(200, head, body)


def whole(request: Request, name: str, first: str | None) -> str | None:
    """Return a header that can come in several lines as one list; `first`: its first line."""
    return first and (", ".join(request.headers.getlist(name)) or first)


def _acceptable(request: Request) -> Representation:
    representation = choose(",".join(request.headers.getlist("accept")))
    if representation is None:
        served = f"{JSON.media_type} and {SAFETENSORS.media_type}"
        raise Problem("not-acceptable", f"Releases are served as {served}.", headers={"Vary": VARY})
    return representation


def _nothing_yet(headers: dict[str, str] | None = None, fit: DueFit | None = None) -> Problem:
    if fit is None:
        why = "the plan tells when the first release is due"
    else:
        why = f"the first release is due since {fit.since:%H:%M} UTC"
        why += "" if fit.reason is None else f" and waits, because {fit.reason}"
    return Problem(
        "not-found",
        f"Nothing is published yet: {why}. Wait for it with `Prefer: wait=60` at GET …/releases/latest.",
        headers=headers,
    )


def _no_release() -> Problem:
    return Problem("not-found", "There is no such version; GET …/releases lists them.")
