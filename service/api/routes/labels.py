"""`/v1/publications/{publication}/label-requests` and `/labels`: people say what the records that it selected are.

People who label see records as they are stored: a key with the scope `label` is for people inside the trust boundary.
Each look is a line of the log: which key, which record, and never what is in it.
"""

import asyncio
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from service.api.auth.access import publication_or_404
from service.api.auth.scopes import KeyFirst, Labeller
from service.api.http.problems import Problem, documented, invalid
from service.api.long_polls import wait_seconds
from service.api.routes.releases import whole
from service.api.schemas import Timestamp, as_json
from service.api.services import Services, Shared
from service.mechanisms.registry import MECHANISMS
from service.privacy.accounting.obligations import Labelling
from service.segments.files import SegmentDamaged
from service.segments.locating import read_records
from service.segments.records import SegmentsMissing
from service.store import digests, labels, streams
from service.store.keys import Key
from service.store.labels import Leased
from service.store.publications import Publication
from service.streams.batches import wrong_class
from service.streams.names import ABSENT, Column, Names

_log = structlog.get_logger(__name__)

router = APIRouter(route_class=KeyFirst, prefix="/v1/publications/{publication}", tags=["labels"])

_NOTHING: dict[int | str, dict[str, Any]] = {204: {"description": "No record waits for a label now"}}
LOOK_AGAIN_SECONDS = 1.0  # for a lease that ran out, which nobody tells of


class LabelRequest(BaseModel):
    """A record whose label is asked for. Answer with `POST …/labels` before the lease ends, and others won't see it."""

    record: int
    x: list[float] = Field(description="As it is kept: after the stream's feature map")
    lease_expires_at: Timestamp = Field(description="Then somebody else may be asked")
    expires_at: Timestamp = Field(description="Then no answer is taken any more, and the model learns without")
    waiting: int = Field(description="How many labels are waited for, this one and those of empty slots included")
    columns: list[Column] | None = Field(
        **ABSENT,
        description="Names of the numbers in `x`; absent where there are no names, or the feature map mixes columns",
    )
    class_names: list[str] | None = Field(**ABSENT, description="Names of labels 0 and 1")


class Label(BaseModel):
    model_config = ConfigDict(extra="forbid")

    record: Annotated[int, Field(strict=True, ge=0, lt=2**62)]
    label: Annotated[int, Field(strict=True, ge=0, le=1)] | Annotated[str, Field(strict=True)] = Field(
        description="1 is the positive class; or the name of a class, where the stream has `class_names`"
    )


class Taken(BaseModel):
    record: int
    waiting: int = Field(description="How many labels are waited for, those of empty slots included")


@router.get(
    "/label-requests",
    response_model=LabelRequest,
    responses=_NOTHING | documented("not-found", "no-labels", "segments-unavailable"),
)
async def next_label_request(
    publication: str,
    request: Request,
    key: Labeller,
    shared: Shared,
    prefer: Annotated[str | None, Header(description="`wait=N`: wait up to N ≤ 60 seconds for a record")] = None,
) -> Response:
    """Return the next record to label, leased to whoever asks: nobody else gets it until the lease ends.

    A record that was erased, or came empty, is given to nobody. HEAD tells at once whether there is one, and leases it
    to nobody.
    """
    wait = wait_seconds(whole(request, "prefer", prefer))
    headers = {"Cache-Control": "no-store"} | ({} if wait is None else {"Preference-Applied": f"wait={wait}"})
    row, labelling = await shared.run(_asking, key, publication)
    if "perennial.head" in request.scope:  # nobody would see the record: it is leased to nobody
        free = await shared.run(labels.any_free, row.id, seconds=labelling.lease_seconds)
        return _head(200 if free else 204)
    deadline = asyncio.get_running_loop().time() + (wait or 0)
    async with shared.notifier.waiting(publication) as changed:
        while True:
            changed.clear()
            if await request.is_disconnected():  # nobody would look at what is leased for this
                return Response(status_code=204)
            await shared.keys.check_again(request)  # before anything is leased: it may have been revoked meanwhile
            leased = await shared.run(labels.lease, row.id, seconds=labelling.lease_seconds)
            if leased is not None:
                try:
                    x = await run_in_threadpool(_read, shared, row, leased)
                except (SegmentsMissing, SegmentDamaged):  # another API, asked next, may be able to read it
                    await shared.run(labels.give_back, row.id, leased.record)
                    raise
                if x is None:  # erased at this moment: others may wait to be labelled
                    continue
                _log.info("label_asked_for", publication=publication, record=leased.record, key=key.id)
                content = {
                    "record": leased.record,
                    "x": x,
                    "lease_expires_at": digests.timestamp(leased.until),
                    "expires_at": digests.timestamp(leased.expires_at),
                    "waiting": leased.waiting,
                }
                answer = as_json(content | _named(await shared.run(streams.get, row.stream_id)))
                answer.headers.update(headers)
                return answer
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or shared.stopping.is_set():
                return Response(status_code=204, headers=headers)
            await shared.notifier.wait(changed, min(left, LOOK_AGAIN_SECONDS))


@router.post(
    "/labels",
    responses=documented(
        "not-found", "no-labels", "label-not-awaited", "invalid-request", "too-large", "unsupported-media-type"
    ),
)
async def give_label(publication: str, given: Label, key: Labeller, shared: Shared) -> Taken:
    """Say what a record is. The first answer counts, until the record is erased. An erased record takes none."""

    def take(connection: Connection) -> Taken:
        row, _ = _asking(connection, key, publication)
        label = _label(given.label, streams.get(connection, row.stream_id).layout.names)
        if not labels.answer(connection, row.id, publication, given.record, label):
            raise Problem(
                "label-not-awaited",
                "It was answered or erased, has expired or was never asked for: take the next of "
                "`GET …/label-requests`.",
            )
        return Taken(record=given.record, waiting=labels.progress(connection, [row.id])[row.id].waiting)

    taken = await shared.run(take)
    _log.info("label_given", publication=publication, record=given.record, key=key.id)
    return taken


def _head(status: int) -> Response:
    """Return the head of an answer whose length is not known."""
    headers = {"Cache-Control": "no-store"}
    if status == 204:
        return Response(status_code=status, headers=headers)
    return StreamingResponse(iter(()), status, headers, media_type="application/json")


def _asking(connection: Connection, key: Key, publication: str) -> tuple[Publication, Labelling]:
    """Return a publication that asks people for labels, and for how long it does."""
    row = publication_or_404(connection, key, publication)
    labelling = row.owes.labelling
    if labelling is None:
        asking = " or ".join(MECHANISMS.kinds(lambda family: family.asks_people))
        raise Problem("no-labels", f"Only a publication of {asking} on an unlabelled stream asks for labels.")
    return row, labelling


def _named(stream: streams.Stream) -> dict[str, Any]:
    """Return the names of the columns and classes of a label request, as JSON."""
    schema = stream.schema
    return {
        name: schema[name]
        for name in ("columns", "class_names")
        if name in schema and (name != "columns" or stream.layout.feature_map.keeps_columns)
    }


def _label(given: int | str, names: Names) -> int:
    """Return a label as a number. Raises Problem where there is no class of that name."""
    if isinstance(given, int):
        return given
    if given not in names.class_numbers:
        reason = wrong_class(names) if names.classes else "must be a whole number, without quotes"
        raise invalid("label", reason)
    return names.class_numbers[given]


def _read(shared: Services, publication: Publication, leased: Leased) -> list[float] | None:
    """Return the record; None if its slot is without bytes, which nobody is shown."""
    with shared.database.transaction() as connection:
        stream = streams.get(connection, publication.stream_id)
    read = read_records(shared.database, shared.files, stream, 0, leased.record, leased.record + 1)
    return read.x[0].tolist() if read.filled(leased.record, leased.record + 1) else None
