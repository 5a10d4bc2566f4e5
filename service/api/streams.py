"""`/v1/streams`: what is collected, under which budget, and what of it is spent."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import groupby
from operator import itemgetter
from secrets import token_hex
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy import Connection

from service.api.problems import documented
from service.api.schemas import Before, Charge, Items, Ledger, Name, Timestamp, as_json
from service.api.schemas import Loss as ShownLoss
from service.api.services import Admin, KeyFirst, Reader, Shared, no_stream, stream_or_404, visible
from service.mechanisms.configuration import Privacy, StreamSchema, Task
from service.privacy.loss import Kind, round_up
from service.store import ledger, publications, spending, streams
from service.store.keys import Key

router = APIRouter(route_class=KeyFirst, prefix="/v1/streams", tags=["streams"])

Edge = Annotated[int | None, Query(ge=0, lt=2**62, description="Only of records from `start` on, before `end`")]


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
    budget: ShownLoss
    reserved: ShownLoss = Field(description="The worst record's, over what runs and what has run")
    spent: ShownLoss = Field(description="The worst record's")
    publications: list[str]
    halted: str | None = Field(description="Why nothing more is numbered; null: all is well")
    distrusted: str | None = Field(description="What of its ledger does not verify, so that nothing is published")
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


@router.get("/{stream}/ledger", response_model=Ledger, responses=documented("invalid-request", "not-found"))
async def get_ledger(stream: str, key: Reader, shared: Shared, start: Edge = None, end: Edge = None) -> Response:
    """What every record has spent, what is reserved on the worst one, and how that adds up.

    The ranges cover [0, records), or the part of it from `start` to `end`. A stream can have more of them than anybody
    reads: then neighbours are told as one range with the most that any of its records has spent, and `exact` is false.
    Ask for a part of it to be told exactly. `spent` is the worst record's, exactly, in any case.
    """

    def look(connection: Connection) -> Response:
        found = stream_or_404(connection, key, stream)
        of_it = publications.of_stream(connection, found.id)
        worst = spending.worst(connection, found.id, of_it)
        low, high = min(start or 0, found.records), found.records if end is None else min(end, found.records)
        exact = spending.exact(connection, found.id, low, high) if low < high else []
        told = exact if exact is not None else spending.outlined(connection, found.id, low, high)
        tighter = spending.tighter(of_it, worst.reserved)
        return as_json(
            {
                **_totals(found, worst),
                "tighter": tighter.loss.shown()
                | {"how": tighter.how}
                | {name: round_up(getattr(tighter, name)) for name in ("pure", "zcdp", "gaussian")},
                "publications": [_share(each) for each in of_it],
                "exact": exact is not None,
                "ranges": list(_merged(told)),
            }
        )

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
    of_it = publications.of_stream(connection, stream.id)
    return StreamInfo(
        **stream.schema,
        id=stream.id,
        name=stream.name,
        records=stream.records,
        retention=stream.retention,
        publications=[each.name for each in of_it],
        halted=stream.halted,
        distrusted=stream.distrusted,
        created_at=stream.created_at,
        **_totals(stream, spending.worst(connection, stream.id, of_it)),
    )


def _totals(stream: streams.Stream, worst: spending.Worst) -> dict[str, Any]:
    return {
        "budget": {"epsilon": float(stream.epsilon), "delta": float(stream.delta)},
        "reserved": worst.reserved.shown(),
        "spent": worst.spent.shown(),
    }


def _share(publication: publications.Publication) -> dict[str, Any]:
    """How one publication explains itself."""
    account = spending.account_of(publication)
    amount = Fraction(publication.worst_amount)
    pure = publication.kind == Kind.PURE
    return {
        "name": publication.name,
        "running": account.running,
        "start": publication.start,
        "reserved": (account.cap if account.running else account.kept(amount)).shown(),
        "lifetime": publication.plan.get("lifetime"),
        "spent": {
            "record": publication.worst_record,
            "rho": None if pure else round_up(amount),
            **account.loss(amount).shown(),
        },
    }


def _merged(ranges: Iterable[spending.Stretch]) -> Iterator[dict[str, Any]]:
    """Neighbours that spent the same are one range, whatever is reserved on them."""
    shown = ((start, end, tuple(loss.shown().values())) for start, end, loss in ranges)
    for (epsilon, delta), alike in groupby(shown, key=itemgetter(2)):
        first, *others = alike
        yield {
            "start": first[0],
            "end": others[-1][1] if others else first[1],
            "epsilon": epsilon,
            "delta": delta,
            "declassified": False,
        }
