"""`/v1/streams`: what is collected, under which budget, and what of it is spent."""

from collections.abc import Sequence
from secrets import token_hex
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from service.api.auth.access import no_stream, stream_or_404, visible
from service.api.auth.scopes import Admin, Ingester, KeyFirst, Reader
from service.api.http.problems import Problem, documented
from service.api.schemas import DECLASSIFIED, Before, Items, Limit, Name, Range, SlotsLoss, Timestamp, is_entry
from service.api.schemas import Budget as ShownBudget
from service.api.services import Shared
from service.ledger import summaries
from service.ledger.summaries import Summary
from service.log import Position
from service.mechanisms.building import declassified, needs
from service.mechanisms.configuration import StreamBudget
from service.store import numbering, streams
from service.store.database import ONE_VIEW
from service.streams.schema import NewStreamSchema, StreamSchema, Task

router = APIRouter(route_class=KeyFirst, prefix="/v1/streams", tags=["streams"])


class StreamRequest(NewStreamSchema):
    name: Name
    retention: Literal["keep", "needed"] = Field(
        "keep", description="`needed` drops records that no running publication can want again"
    )
    budget: StreamBudget = Field(
        description="The most that all publications together may cost any one record, for ever"
    )


class Erased(BaseModel):
    """Slots that count as empty. The bytes of `waiting` requests are still to be deleted from the segments."""

    records: int
    waiting: int
    ranges: list[Range] = Field(description=f"At most the last {summaries.MAX_RANGES}")


class Need(BaseModel):
    """A running publication and the first record that it may still read."""

    publication: str
    start: int


class Kept(BaseModel):
    """Records before `start` are dropped: no running publication could want them again, as `needed` tells."""

    start: int
    needed: list[Need] = Field(description="For a stream whose `retention` is `needed`")


class Resumption(BaseModel):
    """The stream had halted, and went on with another log. Records that had a number have it still."""

    model_config = ConfigDict(from_attributes=True)

    reason: str = Field(description="Why it had halted")
    records: int = Field(description="How many were numbered before")
    entry: str = Field(description="The last batch that was numbered before; 0-0: none")
    lost_batches: int | None = Field(description="Accepted after that, and gone; null: nobody can know how many")
    resumed_at: Timestamp


class DeadLetter(BaseModel):
    """An entry of the log that could not be numbered. Its content stays there until it is dropped."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    entry: str
    ours: bool = Field(description="It is a batch that was accepted: its records are lost")
    reason: str
    size: int = Field(description="In bytes")
    found_at: Timestamp
    dropped_at: Timestamp | None


class StreamInfo(StreamSchema):
    id: int
    name: str
    task: Task
    records: int = Field(description="How many are numbered so far")
    retention: str
    budget: ShownBudget
    reserved: SlotsLoss = Field(description="The worst record's, over what runs and what has run")
    spent: SlotsLoss = Field(description="The worst record's")
    declassified: int = Field(description=DECLASSIFIED)
    publications: list[str]
    erased: Erased
    kept: Kept
    dead_letters: int = Field(description="Entries of the log that could not be numbered and are not dropped yet")
    resumptions: list[Resumption] = Field(description="Newest first; of many the last 100")
    halted: str | None = Field(description="Why nothing more is numbered; null: all is well")
    distrusted: str | None = Field(description="Why its ledger does not verify, so that nothing is published")
    created_at: Timestamp


@router.post(
    "",
    status_code=201,
    responses=documented(
        "invalid-request", "not-found", "name-taken", "too-large", "unsupported-media-type", "log-unavailable"
    ),
)
async def make_stream(request: StreamRequest, admin: Admin, shared: Shared, response: Response) -> StreamInfo:
    """Makes a stream: its schema and its lifetime privacy budget, both fixed for ever."""
    if not visible(admin, request.name):
        raise no_stream()
    log = token_hex(16)
    # The log first: a log that no stream names is harmless, a stream without a log is not.
    await shared.appender.create(log)
    schema = request.to_store()

    def make(connection: Connection) -> StreamInfo:
        made = streams.create(
            connection,
            name=request.name,
            log=log,
            schema=schema,
            retention=request.retention,
            epsilon=request.budget.epsilon,
            delta=request.budget.delta,
            accounting=request.budget.accounting,
        )
        return _infos(connection, [made])[0]

    info = await shared.run(make)
    response.headers["Location"] = f"/v1/streams/{request.name}"
    return info


@router.get("", response_model=Items[StreamInfo], responses=documented("invalid-request"))
async def list_streams(
    key: Reader,
    shared: Shared,
    limit: Limit = 100,
    before: Before = None,
) -> Response:
    """Lists the streams this key may see, newest first."""

    def look(connection: Connection) -> Response:
        connection.execute(ONE_VIEW)
        page = streams.page(connection, limit=limit, before=before, only=key.streams)
        listed = Items[StreamInfo](items=_infos(connection, page))
        return Response(listed.model_dump_json(), media_type="application/json")

    return await shared.run(look)


@router.get("/{stream}", responses=documented("not-found"))
async def get_stream(stream: str, key: Reader, shared: Shared) -> StreamInfo:
    """One stream."""

    def look(connection: Connection) -> StreamInfo:
        connection.execute(ONE_VIEW)  # else a publication that is stopped meanwhile is reserved for twice
        return _infos(connection, [stream_or_404(connection, key, stream)])[0]

    return await shared.run(look)


@router.get("/{stream}/schema", responses=documented("not-found"))
async def get_schema(stream: str, key: Ingester, shared: Shared) -> StreamSchema:  # noqa: ARG001 - it was authorized
    """Return what the records of a stream are: for those who send some, and may see nothing else of it."""
    row = await shared.schema(stream)
    if row is None:
        raise no_stream()
    return row.parsed_schema


@router.post("/{stream}/resume", responses=documented("not-found", "not-halted", "log-unavailable"))
async def resume_stream(stream: str, admin: Admin, shared: Shared) -> Resumption:
    """Makes a halted stream go on, numbering from where it stood, with the log as it now is.

    Nothing that has a number gets another. Batches that were accepted and not numbered when the log was lost are gone:
    the answer tells how many, if anybody can know; batches that the log still holds after the last numbered one are
    numbered now. A stream whose database is older than its segments halts again at once.
    """

    def look(connection: Connection) -> streams.Stream:
        return stream_or_404(connection, admin, stream)

    row = await shared.run(look)
    if row.halted is None:
        raise Problem("not-halted", "It is not halted; GET /v1/streams/{stream} tells why one is.")
    position = Position(entry=row.sealed_entry, sequence=row.sealed_sequence)
    log = await shared.appender.resume(row.log, position)

    def resume(connection: Connection) -> Resumption:
        resumed = numbering.resume(connection, row, sequence=log.sequence, lost_batches=log.lost_batches)
        if resumed is None:
            raise Problem("not-halted", "Somebody else has resumed it meanwhile.")
        return Resumption.model_validate(resumed)

    return await shared.run(resume)


@router.get("/{stream}/dead-letters", responses=documented("invalid-request", "not-found"))
async def list_dead_letters(
    stream: str,
    admin: Admin,
    shared: Shared,
    limit: Limit = 100,
    before: Before = None,
) -> Items[DeadLetter]:
    """Lists entries of the log that could not be numbered, newest first: not written by this service, or damaged."""

    def look(connection: Connection) -> Items[DeadLetter]:
        row = stream_or_404(connection, admin, stream)
        letters = numbering.page_of_dead_letters(connection, row.id, limit=limit, before=before)
        return Items(items=[DeadLetter.model_validate(letter) for letter in letters])

    return await shared.run(look)


@router.delete("/{stream}/dead-letters/{entry}", status_code=204, responses=documented("not-found", "log-unavailable"))
async def drop_dead_letter(stream: str, entry: str, admin: Admin, shared: Shared) -> None:
    """Deletes what such an entry holds. No number moves, and the list still tells that there was one."""

    def drop(connection: Connection) -> streams.Stream:
        row = stream_or_404(connection, admin, stream)
        if not is_entry(entry) or not numbering.drop_dead_letter(connection, row.id, entry):
            raise Problem("not-found", "There is no such dead letter; GET …/dead-letters lists them.")
        return row

    row = await shared.run(drop)
    row = await shared.run(streams.get, row.id)  # where its log is, after that: a move deletes what was dropped before
    await shared.appender.drop_dead(row.log, entry)


def _infos(connection: Connection, rows: Sequence[streams.Stream]) -> list[StreamInfo]:
    return [_info(summary) for summary in summaries.summaries(connection, rows, declassified=declassified)]


def _info(summary: Summary) -> StreamInfo:
    stream = summary.stream
    return StreamInfo(
        **stream.schema,
        id=stream.id,
        name=stream.name,
        records=stream.records,
        retention=stream.retention,
        publications=[publication.name for publication in summary.publications],
        erased=Erased(
            records=summary.erased.records,
            waiting=summary.erased.waiting,
            ranges=[Range(start=start, end=stop) for start, stop in summary.erased.ranges],
        ),
        kept=Kept(start=summary.kept_from, needed=_needed(summary)),
        dead_letters=summary.dead_letters,
        resumptions=[Resumption.model_validate(resumption) for resumption in summary.resumptions],
        halted=stream.halted,
        distrusted=stream.distrusted,
        created_at=stream.created_at,
        declassified=summary.declassified,
        **summary.sums,
    )


def _needed(summary: Summary) -> list[Need]:
    schema = summary.stream.schema
    return [
        Need(
            publication=publication.name,
            start=publication.start
            + needs(schema, publication.configuration, publication.start, publication.visible_position),
        )
        for publication in summary.publications
        if publication.configuration is not None
        and publication.visible_state == "running"
        and summary.stream.retention == "needed"
    ]
