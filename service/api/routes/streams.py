"""`/v1/streams`: what is collected, under which budget, and what of it is spent."""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby, pairwise
from operator import itemgetter
from secrets import token_hex
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from service.api.http.problems import Problem, documented
from service.api.schemas import DECLASSIFIED, Before, Charge, Items, Ledger, Name, Range, Timestamp, as_json, is_entry
from service.api.schemas import Loss as ShownLoss
from service.api.services import Admin, KeyFirst, Reader, Shared, no_stream, stream_or_404, visible
from service.ledger import reservations, spending, summaries
from service.ledger.summaries import Summary
from service.log import Position
from service.mechanisms.building import declassified, needs
from service.mechanisms.configuration import Privacy
from service.privacy.accounting.account import Loss
from service.privacy.accounting.profile import covered
from service.privacy.loss import Kind, round_up
from service.store import charges, numbering, publications, streams
from service.store.keys import Key
from service.streams.schema import NewStreamSchema, StreamSchema, Task

router = APIRouter(route_class=KeyFirst, prefix="/v1/streams", tags=["streams"])

Edge = Annotated[int | None, Query(ge=0, lt=2**62, description="Only of records from `start` on, before `end`")]


class StreamRequest(NewStreamSchema):
    name: Name
    retention: Literal["keep", "needed"] = Field(
        "keep", description="`needed` drops records that no running publication can want again"
    )
    budget: Privacy = Field(description="What all publications together may cost any one record, for ever")


class Erased(BaseModel):
    """What counts as an empty slot. The bytes of `waiting` requests are still to be deleted from the segments."""

    records: int
    waiting: int
    ranges: list[Range] = Field(description=f"Of many the last {summaries.MOST_RANGES}")


class Need(BaseModel):
    """A running publication and the first record that it may still read."""

    publication: str
    start: int


class Kept(BaseModel):
    """Records before `start` are dropped: no running publication could want them again, as `needed` tells."""

    start: int
    needed: list[Need] = Field(description="Of a stream that keeps what is needed")


class Resumption(BaseModel):
    """The stream had halted, and was told to go on with another log. What got a number before has it still."""

    model_config = ConfigDict(from_attributes=True)

    reason: str = Field(description="Why it had halted")
    records: int = Field(description="How many were numbered before")
    entry: str = Field(description="The last batch that was numbered before; 0-0: none")
    lost_batches: int | None = Field(description="Accepted after that, and gone; null: nobody can know how many")
    resumed_at: Timestamp


class DeadLetter(BaseModel):
    """What came in the log and could not be numbered. What it holds is kept there until it is dropped."""

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
    budget: ShownLoss
    reserved: ShownLoss = Field(description="The worst record's, over what runs and what has run")
    spent: ShownLoss = Field(description="The worst record's")
    declassified: int = Field(description=DECLASSIFIED)
    publications: list[str]
    erased: Erased
    kept: Kept
    dead_letters: int = Field(description="What could not be numbered and is not dropped yet")
    resumptions: list[Resumption] = Field(description="Newest first; of many the last 100")
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
        made = streams.create(
            connection,
            name=request.name,
            log=log,
            schema=schema,
            retention=request.retention,
            epsilon=request.budget.epsilon,
            delta=request.budget.delta,
        )
        return _infos(connection, [made])[0]

    info = await shared.run(make)
    response.headers["Location"] = f"/v1/streams/{request.name}"
    return info


@router.get("", response_model=Items[StreamInfo], responses=documented("invalid-request"))
async def list_streams(
    key: Reader,
    shared: Shared,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Before = None,
) -> Response:
    """Lists the streams this key may see, newest first."""

    def look(connection: Connection) -> Response:
        found = streams.page(connection, limit=limit, before=before, only=key.streams)
        listed = Items[StreamInfo](items=_infos(connection, found))
        return Response(listed.model_dump_json(), media_type="application/json")

    return await shared.run(look)


@router.get("/{stream}", responses=documented("not-found"))
async def get_stream(stream: str, key: Reader, shared: Shared) -> StreamInfo:
    """One stream."""

    def look(connection: Connection) -> StreamInfo:
        return _infos(connection, [stream_or_404(connection, key, stream)])[0]

    return await shared.run(look)


@router.post("/{stream}/resume", responses=documented("not-found", "not-halted", "log-unavailable"))
async def resume_stream(stream: str, admin: Admin, shared: Shared) -> Resumption:
    """Makes a halted stream go on, numbering from where it stood, with the log as it now is.

    Nothing that has a number gets another. Batches that were accepted and not numbered when the log was lost are gone:
    the answer tells how many, if anybody can know; batches that the log still holds after the last numbered one are
    numbered now. A stream whose database is older than its segments halts again at once.
    """

    def look(connection: Connection) -> streams.Stream:
        return stream_or_404(connection, admin, stream)

    found = await shared.run(look)
    if found.halted is None:
        raise Problem("not-halted", "It is not halted; GET /v1/streams/{stream} tells why one is.")
    position = Position(entry=found.sealed_entry, sequence=found.sealed_sequence)
    log = await shared.appender.resume(found.log, position)

    def resume(connection: Connection) -> Resumption:
        resumed = numbering.resume(connection, found.id, sequence=log.sequence, lost_batches=log.lost_batches)
        if resumed is None:
            raise Problem("not-halted", "Somebody else has resumed it meanwhile.")
        return Resumption.model_validate(resumed)

    return await shared.run(resume)


@router.get("/{stream}/dead-letters", responses=documented("invalid-request", "not-found"))
async def list_dead_letters(
    stream: str,
    admin: Admin,
    shared: Shared,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Before = None,
) -> Items[DeadLetter]:
    """What came in the log and could not be numbered, newest first: not written by this service, or damaged since."""

    def look(connection: Connection) -> Items[DeadLetter]:
        found = stream_or_404(connection, admin, stream)
        letters = numbering.page_of_dead_letters(connection, found.id, limit=limit, before=before)
        return Items(items=[DeadLetter.model_validate(each) for each in letters])

    return await shared.run(look)


@router.delete("/{stream}/dead-letters/{entry}", status_code=204, responses=documented("not-found", "log-unavailable"))
async def drop_dead_letter(stream: str, entry: str, admin: Admin, shared: Shared) -> None:
    """Deletes what such an entry holds. No number moves, and the list still tells that there was one."""

    def drop(connection: Connection) -> str:
        found = stream_or_404(connection, admin, stream)
        if not is_entry(entry) or not numbering.drop_dead_letter(connection, found.id, entry):
            raise Problem("not-found", "There is no such dead letter; GET …/dead-letters lists them.")
        return found.log

    await shared.appender.drop_dead(await shared.run(drop), entry)


@router.get("/{stream}/ledger", response_model=Ledger, responses=documented("invalid-request", "not-found"))
async def get_ledger(stream: str, key: Reader, shared: Shared, start: Edge = None, end: Edge = None) -> Response:
    """What every record has spent, what is reserved on the worst one, and how that adds up.

    The ranges cover [0, records), or the part of it from `start` to `end`. A stream can have more of them than anybody
    reads: then neighbours are told as one range with the most that any of its records has spent, and `exact` is false.
    Ask for a part of it to be told exactly. `spent` is the worst record's, exactly, in any case.

    Where a publication's settings make records expire, those past its window are `declassified`: what they lose is
    unbounded, so their range has no `epsilon` and no `delta`, and beside `spent` stands how many they are. All other
    figures are of what records were charged while they were protected.
    """

    def look(connection: Connection) -> Response:
        found = stream_or_404(connection, key, stream)
        of_it = publications.of_stream(connection, found.id)
        reserved = reservations.reserved(connection, found.id, of_it)
        low, high = min(start or 0, found.records), found.records if end is None else min(end, found.records)
        exact = spending.exact(connection, found.id, low, high) if low < high else []
        told = exact if exact is not None else _outlined(connection, found, low, high)
        tighter = reservations.tighter(of_it, reserved)
        exposed = _exposed(found, of_it)
        return as_json(
            {
                **summaries.sums(found, reserved),
                "declassified": covered(exposed.values()),
                "tighter": tighter.loss.shown()
                | {"how": tighter.how}
                | {name: round_up(getattr(tighter, name)) for name in ("pure", "zcdp", "gaussian")},
                "publications": [_share(each, exposed[each.name]) for each in of_it],
                "exact": exact is not None,
                "ranges": list(_merged(_with_declassified(told, exposed.values()))),
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
        rows = charges.page(connection, found.id, limit=limit, before=before)
        return Items(items=[Charge(**row) for row in rows])

    return await shared.run(look, key)


def _infos(connection: Connection, found: Sequence[streams.Stream]) -> list[StreamInfo]:
    return [_info(each) for each in summaries.summaries(connection, found, declassified=declassified)]


def _info(summary: Summary) -> StreamInfo:
    stream = summary.stream
    return StreamInfo(
        **stream.schema,
        id=stream.id,
        name=stream.name,
        records=stream.records,
        retention=stream.retention,
        publications=[each.name for each in summary.publications],
        erased=Erased(
            records=summary.erased.records,
            waiting=summary.erased.waiting,
            ranges=[Range(start=start, end=stop) for start, stop in summary.erased.ranges],
        ),
        kept=Kept(start=summary.kept_from, needed=_needed(summary)),
        dead_letters=summary.dead_letters,
        resumptions=[Resumption.model_validate(each) for each in summary.resumptions],
        halted=stream.halted,
        distrusted=stream.distrusted,
        created_at=stream.created_at,
        declassified=summary.declassified,
        **summary.sums,
    )


def _needed(summary: Summary) -> list[Need]:
    schema = summary.stream.schema
    return [
        Need(publication=each.name, start=each.start + needs(schema, each.configuration, each.visible_position))
        for each in summary.publications
        if each.configuration is not None and each.state == "running" and summary.stream.retention == "needed"
    ]


def _exposed(stream: streams.Stream, of_it: Iterable[publications.Publication]) -> dict[str, tuple[int, int]]:
    """By publication, the records that what it released no longer protects; of most, none."""
    return {
        each.name: (each.start, each.start + declassified(stream.schema, each.configuration, each.visible_position))
        for each in of_it
    }


def _outlined(connection: Connection, stream: streams.Stream, start: int, stop: int) -> list[spending.Stretch]:
    """The most that a record of each stretch has spent, which no stretch can have spent more of than the worst."""
    worst = summaries.spent(stream)
    return [
        (low, high, Loss(epsilon=min(loss.epsilon, worst.epsilon), delta=min(loss.delta, worst.delta)))
        for low, high, loss in spending.outlined(connection, stream.id, start, stop)
    ]


def _share(publication: publications.Publication, exposed: tuple[int, int]) -> dict[str, Any]:
    """How one publication explains itself."""
    account = spending.account_of(publication)
    kept, amount = Fraction(publication.worst_amount), Fraction(publication.visible_worst_amount)
    pure = publication.kind == Kind.PURE
    return {
        "name": publication.name,
        "running": account.running,
        "start": publication.start,
        "declassified": exposed[1] - exposed[0],
        "reserved": (account.cap if account.running else account.kept(kept)).shown(),
        "lifetime": publication.plan.get("lifetime"),
        "spent": {
            "record": publication.visible_worst_record,
            "rho": None if pure else round_up(amount),
            **account.loss(amount).shown(),
        },
    }


def _with_declassified(
    told: Iterable[spending.Stretch], exposed: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, Loss | None]]:
    """Stretches of what records have spent, cut where some are declassified; those have no loss: it is unbounded."""
    exposed = [each for each in exposed if each[0] < each[1]]
    edges = sorted({edge for each in exposed for edge in each})
    for start, end, loss in told:
        cuts = [start, *(edge for edge in edges if start < edge < end), end]
        for low, high in pairwise(cuts):
            yield low, high, None if any(first <= low < last for first, last in exposed) else loss


def _merged(ranges: Iterable[tuple[int, int, Loss | None]]) -> Iterator[dict[str, Any]]:
    """Neighbours that spent the same are one range, whatever is reserved on them; so are those declassified."""
    shown = ((start, end, None if loss is None else tuple(loss.shown().values())) for start, end, loss in ranges)
    for spent, alike in groupby(shown, key=itemgetter(2)):
        first, *others = alike
        epsilon, delta = spent or (None, None)
        yield {
            "start": first[0],
            "end": others[-1][1] if others else first[1],
            "epsilon": epsilon,
            "delta": delta,
            "declassified": spent is None,
        }
