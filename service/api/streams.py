"""`/v1/streams`: what is collected, under which budget, and what of it is spent."""

from secrets import token_hex
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy import Connection

from service.api.problems import documented
from service.api.schemas import Before, Charge, Items, Ledger, LedgerRange, Loss, Name, Timestamp
from service.api.services import Admin, Reader, Shared, no_stream, stream_or_404, visible
from service.mechanisms.configuration import Privacy, StreamSchema, Task
from service.privacy import account
from service.store import ledger, publications, streams
from service.store.keys import Key

router = APIRouter(prefix="/v1/streams", tags=["streams"])


class StreamRequest(StreamSchema):
    name: Name
    retention: Literal["keep", "needed"] = Field(
        "keep", description="`needed` drops records that no running publication can want again"
    )
    budget: Privacy = Field(description="What all publications together may cost any one record, for ever")


class StreamInfo(StreamSchema):
    id: int
    name: str
    task: Task
    records: int = Field(description="How many are numbered so far")
    retention: str
    budget: Loss
    reserved: Loss = Field(description="The worst record's, over what runs and what has run")
    spent: Loss = Field(description="The worst record's")
    publications: list[str]
    halted: str | None = Field(description="Why nothing more is numbered; null: all is well")
    created_at: Timestamp


@router.post(
    "",
    status_code=201,
    responses=documented("invalid-request", "name-taken", "too-large", "unsupported-media-type", "log-unavailable"),
)
async def make_stream(request: StreamRequest, admin: Admin, shared: Shared, response: Response) -> StreamInfo:
    """Makes a stream: its schema and its lifetime privacy budget, both fixed for ever."""
    if not visible(admin, request.name):
        raise no_stream()
    log = token_hex(16)
    # The log first: a log that no stream names is harmless, a stream without a log is not.
    await shared.appender.create(log)
    schema = request.model_dump(mode="json", include=set(StreamSchema.model_fields))

    def make(connection: Connection) -> StreamInfo:
        return _info(
            connection,
            streams.create(
                connection,
                name=request.name,
                log=log,
                schema=schema,
                retention=request.retention,
                epsilon=request.budget.epsilon,
                delta=request.budget.delta,
            ),
        )

    info = await shared.run(make)
    response.headers["Location"] = f"/v1/streams/{request.name}"
    return info


@router.get("", responses=documented("invalid-request"))
async def list_streams(
    key: Reader,
    shared: Shared,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Before = None,
) -> Items[StreamInfo]:
    """Lists the streams this key may see, newest first."""

    def look(connection: Connection) -> Items[StreamInfo]:
        found = streams.page(connection, limit=limit, before=before, only=key.streams)
        return Items(items=[_info(connection, stream) for stream in found])

    return await shared.run(look)


@router.get("/{stream}", responses=documented("not-found"))
async def get_stream(stream: str, key: Reader, shared: Shared) -> StreamInfo:
    """One stream."""

    def look(connection: Connection) -> StreamInfo:
        return _info(connection, stream_or_404(connection, key, stream))

    return await shared.run(look)


@router.get("/{stream}/ledger", responses=documented("not-found"))
async def get_ledger(stream: str, key: Reader, shared: Shared) -> Ledger:
    """What every record has spent, and what is reserved on the worst one."""

    def look(connection: Connection) -> Ledger:
        found = stream_or_404(connection, key, stream)
        ranges = account.add_up(ledger.accounts(connection, found.id))
        numbered = [
            LedgerRange(
                start=each.start,
                end=found.records if each.end is None else min(each.end, found.records),
                **each.spent.shown(),
                declassified=False,
            )
            for each in ranges
            if each.start < found.records
        ]
        return Ledger(ranges=_merged(numbered), **_totals(found, ranges))

    return await shared.run(look)


@router.get("/{stream}/ledger/charges", responses=documented("invalid-request", "not-found"))
async def list_charges(
    stream: str,
    key: Reader,
    shared: Shared,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Before = None,
) -> Items[Charge]:
    """The append-only list of charges, newest first, chained by hashes."""

    def look(connection: Connection, key: Key) -> Items[Charge]:
        found = stream_or_404(connection, key, stream)
        rows = ledger.page(connection, found.id, limit=limit, before=before)
        return Items(items=[Charge(**row) for row in rows])

    return await shared.run(look, key)


def _info(connection: Connection, stream: streams.Stream) -> StreamInfo:
    ranges = account.add_up(ledger.accounts(connection, stream.id))
    return StreamInfo(
        **stream.schema,
        id=stream.id,
        name=stream.name,
        records=stream.records,
        retention=stream.retention,
        publications=[each.name for each in publications.of_stream(connection, stream.id)],
        halted=stream.halted,
        created_at=stream.created_at,
        **_totals(stream, ranges),
    )


def _totals(stream: streams.Stream, ranges: list[account.Range]) -> dict[str, Any]:
    return {
        "budget": {"epsilon": float(stream.epsilon), "delta": float(stream.delta)},
        "reserved": account.worst(each.reserved for each in ranges).shown(),
        "spent": account.worst(each.spent for each in ranges).shown(),
    }


def _merged(ranges: list[LedgerRange]) -> list[LedgerRange]:
    """Neighbours that spent the same are one range, whatever is reserved on them."""
    merged: list[LedgerRange] = []
    for each in ranges:
        if merged and (merged[-1].epsilon, merged[-1].delta) == (each.epsilon, each.delta):
            merged[-1].end = each.end
        else:
            merged.append(each)
    return merged
