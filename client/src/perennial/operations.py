"""Calls of a service as exchanges: written once, run by the blocking client and by the async one.

Appending has a module of its own.
"""

from __future__ import annotations

import json
import math
import operator
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perennial.errors import Busy, Halted, InvalidArgument, NotYet, UnknownServer, Unreachable
from perennial.exchange import (
    CALL_PATIENCE_SECONDS,
    FIRST_PAUSE_SECONDS,
    PATIENCE_SECONDS,
    Answer,
    Exchange,
    Pause,
    Request,
    ask,
    json_object,
    path_of,
)
from perennial.model import Model
from perennial.schema import Schema
from perennial.tables import Table

SAFETENSORS = "application/vnd.safetensors"
LONGEST_WAIT_SECONDS = 60
ROWS_OF_A_PAGE = 1000
MODELS_AT_ONCE = 16


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


class LongPoll:
    """The seconds of a long poll: fewer after a proxy, for example, cut one off."""

    def __init__(self) -> None:
        self.seconds = LONGEST_WAIT_SECONDS

    def shorten(self, cut_after: float) -> None:
        """Halve the seconds to ask for, after a wait was cut off; ignore waits below a second."""
        if cut_after >= 1:
            self.seconds = max(1, min(self.seconds, int(cut_after)) // 2)

    def lengthen(self) -> None:
        """Ask for a second more, since a restart of the service may have cut the earlier wait off."""
        self.seconds = min(LONGEST_WAIT_SECONDS, self.seconds + 1)


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
    return (yield from _get(path_of(kind, name)))


def listed(kind: str) -> Exchange[Table]:
    """Return all streams or publications that the key may see, newest first."""
    return (yield from _pages(f"/v1/{kind}", "id"))


def stop(publication: str) -> Exchange[dict[str, Any]]:
    """Stop a publication for ever, and return it as JSON."""
    answer = yield from ask(Request(method="DELETE", path=path_of("publications", publication)))
    return json_object(answer)


def erase(stream: str, start: int, end: int) -> Exchange[None]:
    """Erase records [start, end)."""
    query = {"start": start, "end": end}
    yield from ask(Request(method="DELETE", path=f"{path_of('streams', stream)}/records", query=query))


def ledger(stream: str, start: int | None, end: int | None) -> Exchange[Ledger]:
    """Return what records have spent, of all or of those from `start` on and before `end`."""
    query = {name: value for name, value in (("start", start), ("end", end)) if value is not None}
    ledger_page = yield from _get(f"{path_of('streams', stream)}/ledger", query)
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
    return (yield from _pages(f"{path_of('streams', stream)}/ledger/charges", "id"))


def charges_of(publication: str) -> Exchange[Table]:
    """Return a publication's charges, newest first."""
    described = yield from information("publications", publication)
    rows = yield from charges(described["stream"])
    return Table(row for row in rows if row["publication"] == publication)


def releases(publication: str) -> Exchange[Table]:
    """Return all releases without their parameters' values, newest first."""
    return (yield from _pages(f"{path_of('publications', publication)}/releases", "version"))


def release(publication: str, version: int) -> Exchange[Model]:
    """Return one release, with its encoder if it has one."""
    return (yield from _model(publication, f"{version}"))


def latest(publication: str, wait: float, newer_than: int, poll: LongPoll) -> Exchange[Model]:
    """Return the newest model, once its version is greater than `newer_than`; wait for it up to `wait` seconds.

    A service that is away is asked again for as long, and for as long as any call is patient.

    Raises NotYet where there is none in time, or where the publication is stopped; Halted where it has halted; NotFound
    where there is no such publication.
    """
    deadline = time.monotonic() + float(wait)  # numpy's floats of 32 bits would round it
    patience = min(max(float(wait), CALL_PATIENCE_SECONDS), PATIENCE_SECONDS)
    model = yield from _newest(publication, newer_than, patience)
    while model is None:
        # The state first: a publication that has ended releases nothing after this.
        patience = min(max(deadline - time.monotonic(), CALL_PATIENCE_SECONDS), PATIENCE_SECONDS)
        described = yield from _get(path_of("publications", publication), patience=patience)
        running, left = described["state"] == "running", max(0.0, deadline - time.monotonic())
        if running and not left:
            raise NotYet(
                f"There is no release {_than(newer_than)}yet: wait longer, or see in `info()` how many records are "
                "`due`."
            )
        if running:
            model = yield from _next(publication, newer_than, poll, left)
        elif (model := (yield from _newest(publication, newer_than, patience))) is None:
            _raise_halted(publication, described)
            raise NotYet(f"There is no release {_than(newer_than)}and none will follow: the publication is stopped.")
    return (yield from _with_encoder(publication, model))


def _than(version: int) -> str:
    return f"newer than version {version} " if version else ""


def _newest(publication: str, version: int, patience: float) -> Exchange[Model | None]:
    """Return the newest model, without its encoder; None: none is newer than that version."""
    answer = yield from ask(_latest_request(publication, 0, version), 304, 404, patience=patience)
    return _model_newer_than(version, answer)


def _next(publication: str, version: int, poll: LongPoll, most: float) -> Exchange[Model | None]:
    """Wait for the next model and return the newest, without its encoder; None: none came, or the wait was cut off.

    most: the most seconds to wait.
    """
    request = _latest_request(publication, math.ceil(min(most, poll.seconds)), version)
    began = time.monotonic()
    try:
        answer = yield from ask(request, 304, 404, patience=0)
    except (Unreachable, Busy):  # the next request for the state fails if the service is away
        waited = time.monotonic() - began
        poll.shorten(waited)
        yield Pause(max(FIRST_PAUSE_SECONDS, min(1 - waited, most)))
        return None
    poll.lengthen()
    if (model := _model_newer_than(version, answer)) is None:
        yield Pause(FIRST_PAUSE_SECONDS)  # a server that stops answers at once
    return model


def _model_newer_than(version: int, answer: Answer) -> Model | None:
    model = Model.from_safetensors(answer.body) if answer.status == 200 else None
    return model if model is not None and model.version > version else None


def _raise_halted(publication: str, described: Mapping[str, Any]) -> None:
    if described["state"] == "halted":
        raise Halted(f"The publication {publication} has halted: {described['reason']}")


def version_of(model: Model | int) -> int:
    """Return a model's version, or the version that is given as any whole number, numpy's too."""
    return model.version if isinstance(model, Model) else operator.index(model)


def following(publication: str, after: int, poll: LongPoll) -> Exchange[list[Model] | None]:
    """Return the models after version `after`, oldest first: none after a minute without; None once none can follow.

    Raises Halted where the publication has halted and all its models are read.
    """
    # The state first: a publication that has ended releases nothing after this.
    described = yield from _get(path_of("publications", publication), patience=PATIENCE_SECONDS)
    running = described["state"] == "running"
    newest = yield from (
        _next(publication, after, poll, math.inf) if running else _newest(publication, after, PATIENCE_SECONDS)
    )
    if newest is not None:
        return (yield from _models_between(publication, after, newest))
    if running:
        return []
    _raise_halted(publication, described)
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


def schema(stream: str) -> Exchange[Schema | None]:
    """Return what appending needs to know of a stream; None: the key, or the service, shows no schema."""
    answer = yield from ask(Request(path=f"{path_of('streams', stream)}/schema"), 403, 404, patience=PATIENCE_SECONDS)
    if answer.status == 404:  # an older service has no schemas; or there is no such stream, which this raises
        yield from ask(Request(path=path_of("streams", stream)), 403, patience=PATIENCE_SECONDS)
    return Schema.of(json_object(answer)) if answer.status == 200 else None


def _latest_request(publication: str, wait: int, newer_than: int) -> Request:
    headers = {"Accept": SAFETENSORS, "If-None-Match": f'"{newer_than}.safetensors.1"'}
    if wait:
        headers["Prefer"] = f"wait={wait}"
    return Request(path=f"{path_of('publications', publication)}/releases/latest", headers=headers, seconds=wait + 30.0)


def _model(publication: str, version: str) -> Exchange[Model]:
    path = f"{path_of('publications', publication)}/releases/{version}"
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
    return json_object((yield from ask(Request(path=path, query=query or {}), patience=patience)))


def _plain(value: Any) -> Any:
    """Return settings with numpy's numbers and arrays replaced by Python's."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} can't be sent as JSON: give numbers, texts and lists")


def _post(path: str, document: Mapping[str, Any], *, repeatable: bool = False) -> Exchange[dict[str, Any]]:
    try:
        body = json.dumps(document, allow_nan=False, default=_plain).encode()
    except ValueError:
        raise InvalidArgument("a setting is NaN or infinite: give finite numbers") from None
    headers = {"Content-Type": "application/json"}
    return json_object(
        (yield from ask(Request(method="POST", path=path, headers=headers, body=body, repeatable=repeatable)))
    )
