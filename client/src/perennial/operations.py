"""Calls of a service as exchanges: written once, run by the blocking client and by the async one."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from perennial.batches import Batch, cut, encode
from perennial.data import blocks
from perennial.errors import Halted, InvalidRecords, NotYet, Problem, UnknownServer
from perennial.exchange import (
    CALL_PATIENCE_SECONDS,
    FIRST_PAUSE_SECONDS,
    PATIENCE_SECONDS,
    Answer,
    Exchange,
    Pause,
    Request,
    ask,
)
from perennial.model import Model
from perennial.names import UNNAMED, Names
from perennial.tables import Table

if TYPE_CHECKING:
    from perennial.journal import Journal

SAFETENSORS = "application/vnd.safetensors"
LONGEST_WAIT_SECONDS = 60
ROWS_OF_A_PAGE = 1000
LONGEST_KEY = 200
MODELS_AT_ONCE = 16
NUMBERED_SECONDS = 30.0  # in which a batch that was accepted surely gets its numbers, unless a worker is away
Progress = Callable[[int], object]


@dataclass(frozen=True, kw_only=True)
class Appended:
    """The receipt of an append: the number of records, and the log's entry of each batch."""

    records: int
    entries: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The spending of a stream's records: the most of any record, and tables by publication and by range of records."""

    budget: Mapping[str, Any]
    reserved: Mapping[str, float]
    spent: Mapping[str, float]
    declassified: int
    exact: bool
    publications: Table
    ranges: Table


def check() -> Exchange[None]:
    """Raise UnknownServer unless a Perennial service answers."""
    answer = yield from ask(Request(path="/livez"), patience=2.0)
    document = answer.json()
    if not isinstance(document, dict) or document.get("status") != "alive":
        raise UnknownServer("The server is no Perennial service, or a proxy answers in its place: check the URL.")


def create_stream(settings: Mapping[str, Any]) -> Exchange[dict[str, Any]]:
    """Return the new stream as JSON."""
    return (yield from _post("/v1/streams", settings))


def publish(settings: Mapping[str, Any]) -> Exchange[dict[str, Any]]:
    """Return the new publication as JSON."""
    return (yield from _post("/v1/publications", settings))


def plan(settings: Mapping[str, Any]) -> Exchange[dict[str, Any]]:
    """Return the plan as JSON."""
    return (yield from _post("/v1/plan", settings, repeatable=True))


def information(kind: str, name: str) -> Exchange[dict[str, Any]]:
    """Return a stream or a publication as JSON."""
    return (yield from _get(_path(kind, name)))


def listed(kind: str) -> Exchange[Table]:
    """Return all streams or publications that the key may see, newest first."""
    return (yield from _pages(f"/v1/{kind}", "id"))


def stop(publication: str) -> Exchange[dict[str, Any]]:
    """Stop a publication for ever, and return it as JSON."""
    answer = yield from ask(Request(method="DELETE", path=_path("publications", publication)))
    return _object(answer)


def erase(stream: str, start: int, end: int) -> Exchange[None]:
    """Erase records [start, end)."""
    query = {"start": start, "end": end}
    yield from ask(Request(method="DELETE", path=f"{_path('streams', stream)}/records", query=query))


def numbers(stream: str, appended: Appended) -> Exchange[list[tuple[int, int]] | None]:
    """Return the ranges of numbers that the records got, batch by batch; None: some have none yet."""
    ranges: list[tuple[int, int]] = []
    for entry in appended.entries:
        answer = yield from ask(Request(path=f"{_path('streams', stream)}/entries/{quote(entry, safe='')}"), 404)
        if answer.status == 404:
            return None
        interval = _object(answer)
        ranges.append((interval["start"], interval["end"]))
    return ranges


def ledger(stream: str, start: int | None, end: int | None) -> Exchange[Ledger]:
    """Return what records have spent, of all or of those from `start` on and before `end`."""
    query = {name: value for name, value in (("start", start), ("end", end)) if value is not None}
    ledger_page = yield from _get(f"{_path('streams', stream)}/ledger", query)
    return Ledger(
        budget=ledger_page["budget"],
        reserved=ledger_page["reserved"],
        spent=ledger_page["spent"],
        declassified=ledger_page["declassified"],
        exact=ledger_page["exact"],
        publications=Table(ledger_page["publications"]),
        ranges=Table(ledger_page["ranges"]),
    )


def charges(stream: str) -> Exchange[Table]:
    """Return the append-only list of a stream's charges, newest first."""
    return (yield from _pages(f"{_path('streams', stream)}/ledger/charges", "id"))


def charges_of(publication: str) -> Exchange[Table]:
    """Return a publication's charges, newest first."""
    described = yield from information("publications", publication)
    rows = yield from charges(described["stream"])
    return Table(row for row in rows if row["publication"] == publication)


def releases(publication: str) -> Exchange[Table]:
    """Return all releases without their parameters' values, newest first."""
    return (yield from _pages(f"{_path('publications', publication)}/releases", "version"))


def release(publication: str, version: int) -> Exchange[Model]:
    """Return one release, with its encoder if it has one."""
    return (yield from _model(publication, f"{version}"))


def latest(publication: str, wait: float, newer_than: int) -> Exchange[Model]:
    """Return the newest model, once its version is greater than `newer_than`; wait for it up to `wait` seconds.

    Raises NotYet where there is none in time, NotFound where there is no such publication.
    """
    deadline = time.monotonic() + wait
    while True:
        left = max(0.0, deadline - time.monotonic())
        answer = yield from _ask_latest(publication, min(math.ceil(left), LONGEST_WAIT_SECONDS), newer_than)
        if answer.status == 200:
            model = Model.from_safetensors(answer.body)
            if model.version > newer_than:
                return (yield from _with_encoder(publication, model))
        if answer.status == 404:
            yield from information("publications", publication)  # raises NotFound where it is the publication
        if time.monotonic() >= deadline:
            break
        yield Pause(FIRST_PAUSE_SECONDS)  # a server that stops answers at once
    newer = f"newer than version {newer_than} " if newer_than else ""
    raise NotYet(f"There is no release {newer}yet: wait longer, or see in `info()` how many records are `due`.")


def following(publication: str, after: int) -> Exchange[list[Model] | None]:
    """Return the models after version `after`, oldest first: none after a minute without; None once none can follow.

    Raises Halted where the publication has halted and all its models are read.
    """
    path = _path("publications", publication)
    # The state first: a publication that has ended releases nothing after this.
    state = (yield from _get(path, patience=PATIENCE_SECONDS))["state"]
    wait = LONGEST_WAIT_SECONDS if state == "running" else 0
    answer = yield from _ask_latest(publication, wait, after)
    if answer.status == 200:
        newest = Model.from_safetensors(answer.body)
        if newest.version > after:
            return (yield from _models_between(publication, after, newest))
    if state == "running":
        yield Pause(FIRST_PAUSE_SECONDS)
        return []
    if state == "halted":
        reason = (yield from _get(path))["reason"]
        raise Halted(f"The publication {publication} has halted: {reason}")
    return None


def _models_between(publication: str, after: int, newest: Model) -> Exchange[list[Model]]:
    models: list[Model] = []
    for version in range(after + 1, newest.version):
        between = yield from release(publication, version)
        if between.role == "model":
            models.append(between)
        if len(models) == MODELS_AT_ONCE:
            return models
    return [*models, (yield from _with_encoder(publication, newest))]


def newest_version(publication: str) -> Exchange[int]:
    """Return the newest model's version; 0: there is none."""
    return (yield from information("publications", publication))["latest"] or 0


def names(stream: str) -> Exchange[Names | None]:
    """Return the names of a stream's columns and classes; None: the key, or the service, shows no schema."""
    answer = yield from ask(Request(path=f"{_path('streams', stream)}/schema"), 403, 404, patience=PATIENCE_SECONDS)
    return Names.of(_object(answer)) if answer.status == 200 else None


def append(
    stream: str,
    data: Any,
    *,
    label: Any = None,
    unit: Any = None,
    features: Iterable[str] | None = None,
    names: Names = UNNAMED,
    key: str | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
    patience: float = PATIENCE_SECONDS,
    journal: Journal | None = None,
) -> Exchange[Appended]:
    """Append all records of `data`, batch by batch, none of them twice."""
    if key is not None and not 1 <= len(key) <= LONGEST_KEY:
        raise ValueError(f"key must have 1 to {LONGEST_KEY} characters")
    if batch is not None and batch < 1:
        raise ValueError("batch must be at least 1")
    root = key or uuid.uuid4().hex
    records, entries = 0, []
    try:
        confirmed = journal is not None and (yield from _has_newest(stream, journal))
        for piece in cut(blocks(data, label, features, names, unit), batch):
            pending = [piece]
            while pending:
                entry = (
                    (yield from _post_batch(stream, pending[0], root, patience, may_split=key is None))
                    if journal is None
                    else (yield from _post_once(stream, pending[0], root, patience, journal, confirmed=confirmed))
                )
                if entry is None:
                    pending[:1] = pending[0].halves()
                    continue
                accepted = len(pending.pop(0).block)
                records += accepted
                entries += [entry] if entry else []
                if progress is not None:
                    progress(accepted)
    except Exception as error:
        error.add_note(f"{records} records in {len(entries)} batches were accepted before this.")
        raise
    return Appended(records=records, entries=tuple(entries))


def _has_newest(stream: str, journal: Journal) -> Exchange[bool]:
    """Return whether the service has the last entry that the journal says was accepted.

    Where that can't be sent again, wait a while until the entry has numbers.
    """
    newest = journal.newest()
    if newest is None:
        return False
    request = Request(path=f"{_path('streams', stream)}/entries/{quote(newest.entry or '', safe='')}")
    deadline = time.monotonic() + (0 if journal.is_remembered(newest) else NUMBERED_SECONDS)
    while (yield from ask(request, 404, patience=PATIENCE_SECONDS)).status == 404:
        if time.monotonic() >= deadline:
            return False
        yield Pause(FIRST_PAUSE_SECONDS)
    return True


def _post_once(
    stream: str, batch: Batch, root: str, patience: float, journal: Journal, *, confirmed: bool
) -> Exchange[str]:
    """Return the entry of a batch, "" if it was skipped; send it unless the journal says that it was accepted.

    confirmed: whether the service has what the journal says was accepted. If not, the service has forgotten it or has
    no numbers for it yet, and remembered keys decide.
    """
    entry = journal.accepted(batch)
    if entry is not None and (confirmed or not entry):
        return entry
    since = journal.begin(batch)
    if since is None:
        return ""
    posted = yield from _post_batch(stream, batch, root, patience, may_split=False, since=since)
    entry = posted or ""
    journal.end(batch, entry)
    return entry


def _post_batch(
    stream: str, batch: Batch, root: str, patience: float, *, may_split: bool, since: float | None = None
) -> Exchange[str | None]:
    """Return the batch's entry in the log; None: the batch is too large, is not stored, and is to be split.

    Only batches whose key nobody can use again are split: split elsewhere the next time, they would be stored twice.
    since: when the key was first used, in seconds since 1970; default now.
    """
    media_type, body = encode(batch.block)
    doubts: list[str] = []
    try:
        return (yield from post_records(stream, media_type, body, f"{root}:{batch.first}", patience, since, doubts))
    except InvalidRecords as refused:
        raise _numbered(refused, batch.first) from None
    except Problem as problem:
        if problem.slug == "too-large" and may_split and not doubts and len(batch.block) > 1:
            return None
        raise


def post_records(
    stream: str,
    media_type: str,
    body: bytes,
    key: str,
    patience: float = PATIENCE_SECONDS,
    since: float | None = None,
    doubts: list[str] | None = None,
) -> Exchange[str]:
    """Send one body of records under an idempotency key, and return its entry in the log.

    since: when the key was first used, in seconds since 1970; default now. doubts: as for `ask`.
    """
    headers = {"Content-Type": media_type, "Idempotency-Key": key}
    request = Request(method="POST", path=f"{_path('streams', stream)}/records", headers=headers, body=body)
    return str(_object((yield from ask(request, patience=patience, since=since, doubts=doubts)))["entry"])


def _numbered(refused: InvalidRecords, first: int) -> InvalidRecords:
    """Return the refusal with rows counted from the first record of the call."""
    rows = [
        error | {"row": error["row"] + first} if isinstance(error.get("row"), int) else error
        for error in refused.members.get("errors", [])
    ]
    where = f"In the batch that begins with record {first}: " if first else ""
    return InvalidRecords(
        slug=refused.slug,
        status=refused.status,
        title=refused.title,
        detail=where + refused.detail,
        members=refused.members | {"errors": rows},
    )


def _ask_latest(publication: str, wait: int, newer_than: int) -> Exchange[Answer]:
    headers = {"Accept": SAFETENSORS, "If-None-Match": f'"{newer_than}.safetensors.1"'}
    if wait:
        headers["Prefer"] = f"wait={wait}"
    path = f"{_path('publications', publication)}/releases/latest"
    return (
        yield from ask(Request(path=path, headers=headers, seconds=wait + 30.0), 304, 404, patience=PATIENCE_SECONDS)
    )


def _model(publication: str, version: str) -> Exchange[Model]:
    path = f"{_path('publications', publication)}/releases/{version}"
    request = Request(path=path, headers={"Accept": SAFETENSORS})
    answer = yield from ask(request, patience=PATIENCE_SECONDS)
    return (yield from _with_encoder(publication, Model.from_safetensors(answer.body)))


def _with_encoder(publication: str, model: Model) -> Exchange[Model]:
    if model.encoder_release is None:
        return model
    network = yield from _model(publication, f"{model.encoder_release}")
    return Model(parameters=model.parameters, metadata=model.metadata, encoder=network.parameters)


def _pages(path: str, by: str) -> Exchange[Table]:
    rows = Table()
    query: dict[str, str | int] = {"limit": ROWS_OF_A_PAGE}
    while True:
        page = (yield from _get(path, query))["items"]
        rows += page
        if len(page) < ROWS_OF_A_PAGE:
            return rows
        query["before"] = page[-1][by]


def _get(
    path: str, query: Mapping[str, str | int] | None = None, *, patience: float = CALL_PATIENCE_SECONDS
) -> Exchange[dict[str, Any]]:
    return _object((yield from ask(Request(path=path, query=query or {}), patience=patience)))


def _post(path: str, document: Mapping[str, Any], *, repeatable: bool = False) -> Exchange[dict[str, Any]]:
    body = json.dumps(document, allow_nan=False).encode()
    headers = {"Content-Type": "application/json"}
    return _object(
        (yield from ask(Request(method="POST", path=path, headers=headers, body=body, repeatable=repeatable)))
    )


def _object(answer: Answer) -> dict[str, Any]:
    document = answer.json()
    if not isinstance(document, dict):
        raise UnknownServer("The answer is not the JSON that this version of perennial-client knows: update it.")
    return document


def _path(kind: str, name: str) -> str:
    return f"/v1/{kind}/{quote(name, safe='')}"
