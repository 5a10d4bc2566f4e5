"""`/v1/explorer`: mechanisms tried out on public or evaluation data, in the background. No stream is touched."""

import csv
import io
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from service.api.auth.scopes import KeyFirst, Reader
from service.api.http.problems import Problem, documented, invalid, media_type, unread_format
from service.api.schemas import Before, Id, Items, Limit, Timestamp
from service.api.services import Services, Shared
from service.explorer import datasets
from service.explorer.comparison import Cell, Comparison, cells, mechanism
from service.explorer.datasets import SAMPLES, Dataset, UnreadableDataset
from service.explorer.scores import SCORES
from service.inputs.fields import OneLine
from service.mechanisms.configuration import Refused
from service.mechanisms.measured import OFFERS
from service.store import explorations
from service.store.explorations import DatasetInfo, Exploration, TooMany
from service.store.keys import Key

router = APIRouter(route_class=KeyFirst, prefix="/v1/explorer", tags=["explorer"])

MOST_UNDER_WAY = 20
NOT_PRIVATE = "These numbers are not private: on private data they would themselves be a leak."
_READERS = {"text/csv": datasets.read_csv, "application/x-npz": datasets.read_npz}


class SampleInfo(BaseModel):
    name: str
    about: str


class DatasetShown(BaseModel):
    """A data set that was uploaded. It is public or made for evaluation; only the key that sent it sees it."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    name: str
    records: int
    features: int
    classes: int
    created_at: Timestamp


class OfferShown(BaseModel):
    """A mechanism and a learner to compare others with, as the dashboard's page offers them."""

    name: str
    title: str
    mechanism: dict[str, Any] = Field(description="Its settings but `sizes`")
    sizes: dict[str, int] = Field(description="Settings that are so many times the number of records a release")
    learner: dict[str, Any]
    delta: float


class Datasets(BaseModel):
    samples: list[SampleInfo]
    items: list[DatasetShown]
    offers: list[OfferShown]


class Found(BaseModel):
    """A run of a line at an ε; null: the same loss fitted without noise to the records that its releases stand for."""

    line: int
    epsilon: float | None
    run: int
    curve: list[tuple[int, float]] = Field(description="Records, and accuracy of the latest release on those held out")
    scores: dict[str, float] | None = Field(
        description="Scores of the last release; with more classes than two as means over them"
    )
    problem: str | None = Field(None, description="Why it could not go on")


class ExplorationInfo(BaseModel):
    id: int
    comparison: dict[str, Any]
    state: str = Field(description="`waiting`, `running`, `done`, `failed` or `cancelled`")
    reason: str | None = Field(description="Why it failed")
    cells: int = Field(description="How many runs it is made of")
    done: int
    progress: float = Field(description="The part that is done, from 0 to 1")
    created_at: Timestamp
    ended_at: Timestamp | None


class ExplorationFound(ExplorationInfo):
    note: str
    found: list[Found]


@router.get("/datasets", responses=documented())
async def list_datasets(key: Reader, shared: Shared) -> Datasets:
    """The samples there are, what this key has uploaded, newest first, and mechanisms to compare."""
    stored = await shared.run(explorations.datasets_of, key.id)
    return Datasets(
        samples=[SampleInfo(name=name, about=text) for name, (_, text) in SAMPLES.items()],
        items=[DatasetShown.model_validate(dataset) for dataset in stored],
        offers=_offers(),
    )


@router.post(
    "/datasets",
    status_code=201,
    responses=documented(
        "invalid-request",
        "invalid-data-set",
        "too-many-kept",
        "too-large",
        "unsupported-media-type",
        "too-much-at-once",
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "text/csv": {"schema": {"type": "string", "description": "A record a row, one column of classes"}},
                "application/x-npz": {
                    "schema": {"type": "string", "format": "binary", "description": "Arrays x and y"}
                },
            },
        }
    },
)
async def add_dataset(
    request: Request,
    key: Reader,
    shared: Shared,
    name: Annotated[OneLine, Query(description="For people: one line")] = "data",
    label: Annotated[
        str | None,
        Query(max_length=80, description="CSV: the column of classes; default y, label, class, target or last"),
    ] = None,
) -> DatasetShown:
    """Keeps a data set that is public or made for evaluation, to try things out on."""
    _there_is_one(shared)
    read = _READERS.get(media_type(request))
    if read is None:
        raise unread_format(*_READERS)

    def unpack(body: bytes) -> tuple[Dataset, bytes]:
        data = read(body) if label is None or read is datasets.read_npz else datasets.read_csv(body, label)
        return data, data.packed()

    try:
        with shared.in_flight.body(key.id) as held:
            body = await shared.body(request, held)
            async with shared.data_sets:
                await shared.keys.check_again(request)
                data, packed = await run_in_threadpool(unpack, body)
        stored = await shared.run(explorations.add_dataset, key.id, name, data.shape, packed)
    except UnreadableDataset as problem:
        raise Problem("invalid-data-set", f"This can't be used: {problem}.") from None
    except TooMany:
        raise Problem("too-many-kept", "This key keeps as many data sets as it may; delete one first.") from None
    return DatasetShown.model_validate(stored)


@router.delete("/datasets/{dataset}", status_code=204, responses=documented("invalid-request", "not-found"))
async def drop_dataset(dataset: Id, key: Reader, shared: Shared) -> None:
    """Deletes a data set. Results of explorations with it stay."""

    def drop(connection: Connection) -> None:
        explorations.drop_dataset(connection, _dataset(connection, dataset, key).id)

    await shared.run(drop)


@router.post(
    "/explorations",
    status_code=202,
    responses=documented("invalid-request", "not-found", "too-many-kept", "too-large", "unsupported-media-type"),
)
async def explore(request: Comparison, key: Reader, shared: Shared, response: Response) -> ExplorationInfo:
    """Compares mechanisms on a data set, with noise and without, in the background and behind all publications."""
    _there_is_one(shared)

    def check(shape: dict[str, int]) -> None:
        for line in range(len(request.lines)):
            for epsilon in request.epsilons:
                mechanism(request, line, float(epsilon), shape)

    def add(connection: Connection) -> Exploration:
        wanted = request.model_dump(mode="json")
        return explorations.add(connection, key.id, wanted, len(cells(request)), most_waiting=MOST_UNDER_WAY)

    try:
        if isinstance(request.dataset, str):
            shape = (await run_in_threadpool(_sample, request.dataset)).shape
        else:
            dataset = await shared.run(_dataset, request.dataset, key)
            shape = {name: getattr(dataset, name) for name in ("records", "features", "classes")}
        await run_in_threadpool(check, shape)
        made = await shared.run(add)
    except Refused as refused:
        raise invalid(refused.path, refused.message, str(refused)) from None
    except TooMany:
        raise Problem("too-many-kept", "Too many comparisons wait; cancel one, or ask again later.") from None
    response.headers["Location"] = f"/v1/explorer/explorations/{made.id}"
    return _info(made)


@router.get("/explorations", responses=documented("invalid-request"))
async def list_explorations(
    key: Reader,
    shared: Shared,
    limit: Limit = 100,
    before: Before = None,
) -> Items[ExplorationInfo]:
    """Lists the explorations of this key, newest first; the last fifty that have ended stay."""
    page = await shared.run(explorations.page, key.id, limit=limit, before=before)
    return Items(items=[_info(exploration) for exploration in page])


@router.get("/explorations/{exploration}", responses=documented("invalid-request", "not-found"))
async def get_exploration(exploration: Id, key: Reader, shared: Shared) -> ExplorationFound:
    """How far it is, and what was found so far."""
    made, findings = await shared.run(_findings, exploration, key)
    return ExplorationFound(**_info(made).model_dump(), note=NOT_PRIVATE, found=findings)


@router.get(
    "/explorations/{exploration}/table",
    responses=documented("invalid-request", "not-found")
    | {200: {"description": "CSV", "content": {"text/csv": {"schema": {"type": "string"}}}}},
    response_class=Response,
)
async def get_table(exploration: Id, key: Reader, shared: Shared) -> Response:
    """Writes the results so far as CSV: a row for each release that was judged, scores in the last one of each run."""
    made, findings = await shared.run(_findings, exploration, key)
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(["line", "epsilon", "delta", "run", "records", *SCORES])
    for finding in findings:
        line = made.comparison["lines"][finding.line]
        start = [line["name"], "without noise" if finding.epsilon is None else finding.epsilon]
        start += ["" if finding.epsilon is None else line["delta"], finding.run]
        for number, (records, accuracy) in enumerate(finding.curve, 1):
            last = finding.scores if number == len(finding.curve) else None
            table.writerow([*start, records, *((last or {"accuracy": accuracy}).get(name, "") for name in SCORES)])
    return Response(
        out.getvalue(),
        media_type="text/csv",
        headers={"Content-Disposition": f'attachment; filename="exploration-{made.id}.csv"'},
    )


@router.delete("/explorations/{exploration}", responses=documented("invalid-request", "not-found"))
async def cancel(exploration: Id, key: Reader, shared: Shared) -> ExplorationInfo:
    """Cancels it if it has not ended; what was found so far stays."""

    def end(connection: Connection) -> Exploration:
        explorations.cancel(connection, _exploration(connection, exploration, key).id)
        return _exploration(connection, exploration, key)

    return _info(await shared.run(end))


def _there_is_one(shared: Services) -> None:
    if not shared.settings.explorations:
        raise Problem("not-found", "This service runs no explorer (PERENNIAL_EXPLORATIONS is 0).")


def _sample(name: str) -> Dataset:
    if name not in SAMPLES:
        raise Refused("dataset", f"there is no such sample; samples are {', '.join(SAMPLES)}")
    return datasets.sample(name)


def _dataset(connection: Connection, identity: int, key: Key) -> DatasetInfo:
    dataset = explorations.find_dataset(connection, identity, key.id) if abs(identity) < 2**63 else None
    if dataset is None:
        raise Problem("not-found", "There is no such data set of this key; GET /v1/explorer/datasets lists them.")
    return dataset


def _offers() -> list[OfferShown]:
    return [
        OfferShown(
            name=offer.name,
            title=offer.title,
            mechanism=dict(offer.mechanism),
            sizes=dict(offer.sizes),
            learner={"kind": offer.learner},
            delta=offer.delta,
        )
        for offer in OFFERS
    ]


def _exploration(connection: Connection, identity: int, key: Key) -> Exploration:
    exploration = explorations.find(connection, identity, key.id) if abs(identity) < 2**63 else None
    if exploration is None:
        raise Problem(
            "not-found", "There is no such exploration of this key; GET /v1/explorer/explorations lists them."
        )
    return exploration


def _findings(connection: Connection, identity: int, key: Key) -> tuple[Exploration, list[Found]]:
    made = _exploration(connection, identity, key)
    known = cells(Comparison.model_validate(made.comparison))
    by_number = explorations.findings_by_cell(connection, identity)
    return made, [_of_cell(known[number], what) for number, what in by_number.items()]


def _of_cell(cell: Cell, what: dict[str, Any]) -> Found:
    return Found(line=cell.line, epsilon=cell.epsilon, run=cell.run, **what)


def _info(exploration: Exploration) -> ExplorationInfo:
    running = exploration.progress if exploration.state == "running" else 0.0
    fields = {name: getattr(exploration, name) for name in ExplorationInfo.model_fields}
    return ExplorationInfo(**fields | {"progress": min(1.0, (exploration.done + running) / exploration.cells)})
