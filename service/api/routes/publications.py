"""`/v1/publications` and `/v1/plan`: what is published, from which stream, and what it costs."""

import asyncio
import time
from dataclasses import replace
from typing import Any, Literal, NoReturn

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from service.api.auth.access import publication_or_404, stream_or_404
from service.api.auth.scopes import Admin, KeyFirst, Reader
from service.api.http.problems import Problem, documented, invalid
from service.api.schemas import Before, Items, Limit, Name, Timestamp, is_name
from service.api.services import Shared
from service.figures.drift_alarms import BLOCKS, drift_alarms
from service.figures.recent import recent
from service.figures.reported_figures import all_figures
from service.learning.linear import ReleasedModel
from service.ledger import open_entry, open_ledger
from service.ledger.errors import BudgetExceeded, TooManyDraws
from service.mechanisms.admission import admit, too_many_draws
from service.mechanisms.configuration import AskedPublication, Privacy, PublicationConfiguration, Refused
from service.mechanisms.measured import measured
from service.mechanisms.mechanism import Mechanism
from service.mechanisms.notes import PURE_IN_RHO, notes
from service.mechanisms.registry import MECHANISMS
from service.mechanisms.timing import largest_cost, timing
from service.mechanisms.transfer import begun_at, named_origin
from service.privacy.accounting.budget import cap
from service.privacy.accounting.composition import PrivacyLoss, Range
from service.publishing import confirmation, evaluated
from service.store import evaluations, labels, publications, releases, segments, streams
from service.store.due_fits import DueFit, due_fits
from service.store.keys import Key
from service.store.publications import NewPublication

SECONDS_TO_CONFIRM = 10.0  # that a stop waits at most until it is shown
SECONDS_BETWEEN_LOOKS = 0.05

router = APIRouter(route_class=KeyFirst, prefix="/v1", tags=["publications"])


class PlanRequest(AskedPublication):
    name: Name | None = None
    stream: Name
    start: int | None = Field(
        None, ge=0, lt=2**62, strict=True, description="First record it may read; default: the first not yet numbered"
    )


class PublicationRequest(PlanRequest):
    name: Name


class LabelProgress(BaseModel):
    """The batch that is being gathered, or waits for its last labels; for keys with the scope `label` alone."""

    waiting: int = Field(description="How many labels are waited for, those of empty slots included")
    answered: int


class FitProgress(BaseModel):
    """Nothing here depends on when a fit begins or ends: that could tell of its records, or of other streams'."""

    state: Literal["due"] = Field(description="Always `due`, until the release appears")
    since: Timestamp = Field(description="When all was there that the fit needs, in whole minutes")
    reason: str | None = Field(description="Why no worker can take it, shown from a tick on; null: one can")


class PublicationInfo(BaseModel):
    id: int
    name: str
    stream: str
    start: int
    mechanism: dict[str, Any]
    learner: dict[str, Any] | None = Field(description="null where no model is fitted")
    privacy: dict[str, Any]
    features: dict[str, Any] | None = Field(None, description="The publication that makes its features, if any")
    plan: dict[str, Any] = Field(description="As POST /v1/plan answers, without `measured`, `timing` and `notes`")
    publish_delay: float = Field(description="Releases appear at multiples of so many seconds of Unix time; 0: at once")
    state: str = Field(description="`running`, `stopped` or `halted`, as far as is confirmed")
    reason: str | None = Field(description="Why it halted")
    latest: int | None = Field(description="The newest version with role `model`")
    due: int | None = Field(
        description="It goes on, mostly with a release, as soon as so many records are numbered; null: never"
    )
    fit: FitProgress | None = Field(
        description="The next fit, once all its records are numbered, until its release appears; else null"
    )
    labels: LabelProgress | None = Field(description="null where people are not asked for labels, or not by this key")
    evaluation: dict[str, Any] | None = Field(
        description="How good it is, by the newest release of a publication of kind `evaluation` that counts it, which "
        "`publication` and `release` name; null: there is none. `drift`: its newest block is worse than those before; "
        "`worse`: its newest version is worse than the version before; `recent`: figures of the newest nine blocks "
        "together; `lift_over_previous`: how far the newest version's accuracy is above that of the version before"
    )
    created_at: Timestamp


@router.post("/plan", responses=documented("invalid-request", "not-found", "too-large", "unsupported-media-type"))
async def make_plan(request: PlanRequest, key: Reader, shared: Shared) -> dict[str, Any]:
    """Computes what a publication would cost and how noisy each release would be. Nothing is reserved.

    `measured` tells how accurate such models were on streams that drift; null where records come without classes.
    `timing` tells when releases appear, how many seconds and bytes of memory a fit of the size in `fits` may take at
    first, and warns where fits may take too long for their tick. `notes` are sentences: whether the stream's whole
    budget is too small, what it means that delta was left out, how `norm_bound` fits public ranges, and how noise
    compares with the most that records can do.
    """

    def look(connection: Connection) -> dict[str, Any]:
        stream = stream_or_404(connection, key, request.stream)
        configuration = _configuration(connection, key, stream, request)
        accuracies = measured(stream.parsed_schema, configuration)
        start = stream.records if request.start is None else request.start
        mechanism = _build(connection, stream, configuration, start)
        _source(connection, stream, request)
        planned = mechanism.plan()
        queued = sum(largest_cost(size).seconds for size in publications.running_fit_sizes(connection, key.streams))
        size = mechanism.obligations().fit
        tick = timing(size, request.delay, queued, in_blocks=mechanism.reads_blocks(size.records))
        sentences = notes(planned, configuration, stream.parsed_schema, stream.budget)
        return planned | {"measured": accuracies, "timing": tick, "notes": sentences}

    return await shared.run(look)


@router.post(
    "/publications",
    status_code=201,
    responses=documented(
        "invalid-request", "not-found", "name-taken", "budget-exceeded", "too-large", "unsupported-media-type"
    ),
)
async def make_publication(
    request: PublicationRequest, admin: Admin, shared: Shared, response: Response
) -> PublicationInfo:
    """Starts a publication and reserves its whole lifetime cost on every record it may ever read."""

    def make(connection: Connection) -> PublicationInfo:
        ledger = open_ledger(connection, stream_or_404(connection, admin, request.stream).id)
        stream = ledger.stream
        configuration = _configuration(connection, admin, stream, request)
        start = stream.records if request.start is None else request.start
        mechanism = _build(connection, stream, configuration, start)
        if start < stream.records and start < (first_stored := segments.kept_from(connection, stream.id)):
            gone = f"Records before {first_stored} are no longer kept; start there or later."
            raise invalid("start", f"must be at least {first_stored}", gone)
        new = NewPublication(
            name=request.name,
            start=start,
            configuration=configuration.stored(),
            plan=mechanism.plan(),
            obligations=replace(
                mechanism.obligations(), draws=mechanism.draws_of_a_unit if stream.budget.in_rho else None
            ),
            kind=mechanism.currency,
            epsilon=configuration.privacy.epsilon,
            delta=configuration.privacy.delta,
            due=start + mechanism.next_time(0),
            publish_delay=request.delay,
            features_from=_source(connection, stream, request),
        )
        try:
            made = ledger.admit(new, visible=admin.streams)
        except BudgetExceeded as refused:
            raise _over_budget(stream, configuration.privacy, refused.worst) from None
        except TooManyDraws:
            _refuse("privacy", too_many_draws(mechanism, stream.budget))
        return _infos(connection, admin, [made])[0]

    info = await shared.run(make)
    response.headers["Location"] = f"/v1/publications/{request.name}"
    return info


@router.get("/publications", responses=documented("invalid-request"))
async def list_publications(
    key: Reader,
    shared: Shared,
    limit: Limit = 100,
    before: Before = None,
) -> Items[PublicationInfo]:
    """Lists the publications this key may see, newest first."""

    def look(connection: Connection) -> list[PublicationInfo]:
        return _infos(connection, key, publications.page(connection, limit=limit, before=before, only=key.streams))

    return Items(items=await shared.run(look))


@router.get("/publications/{publication}", responses=documented("not-found"))
async def get_publication(publication: str, key: Reader, shared: Shared) -> PublicationInfo:
    """One publication: its configuration, plan and state."""

    def look(connection: Connection) -> PublicationInfo:
        return _infos(connection, key, [publication_or_404(connection, key, publication)])[0]

    return await shared.run(look)


@router.delete("/publications/{publication}", responses=documented("not-found"))
async def stop_publication(publication: str, admin: Admin, shared: Shared) -> PublicationInfo:
    """Stops it for ever. Its releases stay; what is spent stays spent, the rest of its reservation is given back.

    `state` is `running` until all that it charged is confirmed, mostly for a few milliseconds, for which this waits.
    """

    def stop(connection: Connection) -> int:
        row = publication_or_404(connection, admin, publication)
        open_entry(connection, row).end("stopped")
        confirmation.ask(connection, row.stream_id)
        return row.id

    def look(connection: Connection, identity: int) -> tuple[PublicationInfo, bool]:
        row, confirmed, _ = publications.see(connection, identity)
        return _infos(connection, admin, [row])[0], confirmed

    identity, deadline = await shared.run(stop), time.monotonic() + SECONDS_TO_CONFIRM
    info, confirmed = await shared.run(look, identity)
    while not confirmed and time.monotonic() < deadline:
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        info, confirmed = await shared.run(look, identity)
    return info


def _configuration(
    connection: Connection, key: Key, stream: streams.Stream, request: PlanRequest
) -> PublicationConfiguration:
    try:
        configuration = request.configuration(stream.budget)
        named = named_origin(configuration)
        if named is None:
            return configuration
        release = _release(connection, key, named)
        return begun_at(stream.parsed_schema, configuration, release.model, release.parameters)
    except Refused as refused:
        _refuse(refused.path, refused.message)


def _release(connection: Connection, key: Key, named: ReleasedModel) -> releases.Release:
    """Return a release that this key may see. Raises Refused."""
    name = named.publication
    source = publications.find(connection, name, visible=key.streams) if is_name(name) else None
    release = None if source is None else releases.find(connection, source.id, named.version)
    if release is None:
        raise Refused("learner.origin", "there is no such release, or this key may not see it")
    return release


def _build(
    connection: Connection, stream: streams.Stream, configuration: PublicationConfiguration, start: int
) -> Mechanism:
    try:
        evaluated.check(connection, stream, configuration.mechanism)
        return admit(stream.parsed_schema, configuration, start, stream.budget)
    except Refused as refused:
        _refuse(refused.path, refused.message)


def _source(connection: Connection, stream: streams.Stream, request: PlanRequest) -> int | None:
    """Return the id of the publication that makes the features asked for; None: none are."""
    if request.features is None:
        return None
    name = request.features.publication
    source = publications.find(connection, name, visible=frozenset({stream.name}))
    if source is None:
        _refuse("features.from", f"stream {stream.name} has no publication {name}")
    configuration = PublicationConfiguration.model_validate(source.configuration)
    if not MECHANISMS.of(configuration.mechanism).releases_map:
        _refuse("features.from", f"publication {name} releases no feature map")
    if source.visible_state != "running" and not source.version:
        _refuse("features.from", f"publication {name} has ended before it released its feature map")
    return source.id


def _refuse(path: str, reason: str) -> NoReturn:
    raise invalid(path, reason)


def _over_budget(stream: streams.Stream, privacy: Privacy, worst: Range) -> Problem:
    """Explain which record can't hold the cap of a publication beside all that is reserved already."""
    budget, units = stream.budget, stream.parsed_schema.unit is not None
    cost = cap(stream.accounting, privacy.epsilon, privacy.delta, units=units)
    amounts = {
        "budget": budget.shown(budget.limit),
        "spent": budget.shown(worst.spent),
        "reserved": budget.shown(worst.reserved),
        "asked": budget.shown(cost, PrivacyLoss.of(privacy.epsilon, privacy.delta)),
        "left": budget.shown_down(worst.reserved.left_of(budget.limit)),
    }
    explain = _in_rho if budget.in_rho else _in_epsilon_and_delta
    detail = f"On record {worst.start}, {explain(amounts, privacy)} {_WAYS_OUT}"
    return Problem("budget-exceeded", detail, headers=None, record=worst.start, **amounts)


_WAYS_OUT = "Ask for at most what is left, stop a publication, or start later."


def _in_epsilon_and_delta(amounts: dict[str, dict[str, float]], privacy: Privacy) -> str:
    reserved, budget = amounts["reserved"], amounts["budget"]
    return (
        f"epsilon {reserved['epsilon']} and delta {reserved['delta']} are reserved of {budget['epsilon']} and "
        f"{budget['delta']}; this asks for {float(privacy.epsilon)} and {float(privacy.delta)}."
    )


def _in_rho(amounts: dict[str, dict[str, float]], privacy: Privacy) -> str:
    reserved, budget, cost, left = (amounts[name] for name in ("reserved", "budget", "asked", "left"))
    parts = (
        f"rho {reserved['rho']:.6g} is reserved of {budget['rho']:.6g}; this asks for {cost['rho']:.6g}, and "
        f"{left['rho']:.6g} is left, which is epsilon {left['epsilon']:.6g} at delta {left['delta']:g}."
    )
    return parts if privacy.delta else f"{parts} {PURE_IN_RHO}"


def _infos(connection: Connection, key: Key, rows: list[publications.Publication]) -> list[PublicationInfo]:
    """Return the publications as this key may see them.

    The number of labels can tell of a record, so only keys that may see records get it.
    """
    may_label = not key.scopes.isdisjoint({"label", "admin"})
    progress = labels.progress(
        connection, [publication.id for publication in rows if may_label and publication.asks_people]
    )
    due = due_fits(connection, [publication.id for publication in rows])
    return [
        _info(publication, progress.get(publication.id), due.get(publication.id), _evaluation(connection, publication))
        for publication in rows
    ]


def _evaluation(connection: Connection, publication: publications.Publication) -> dict[str, Any] | None:
    """Return the newest figures of a publication, with where they come from."""
    newest = evaluations.newest_of(connection, publication.stream_id, publication.name, limit=BLOCKS)
    if newest is None:
        return None
    name, blocks = newest
    counted = [(block.model, block.noise, block.counts) for block in reversed(blocks) if block.counts is not None]
    figures: dict[str, Any] = all_figures(*counted[-1])[publication.name]
    where = {"publication": name, "release": blocks[0].version, "time": blocks[0].time}
    return figures | where | drift_alarms(counted, publication.name) | recent(counted, publication.name)


def _info(
    publication: publications.Publication,
    progress: labels.Progress | None,
    fit: DueFit | None,
    evaluation: dict[str, Any] | None,
) -> PublicationInfo:
    state, reason = publication.visible_state, publication.visible_reason
    if state == "running" and publication.distrusted is not None:
        state, reason = "halted", f"the ledger of its stream does not verify: {publication.distrusted}"
    return PublicationInfo(
        **{name: value for name, value in publication.configuration.items() if name != "publish_delay"},
        state=state,
        reason=reason,
        due=publication.visible_due if state == "running" else None,
        fit=fit and FitProgress(state="due", **vars(fit)),
        labels=progress and LabelProgress(waiting=progress.waiting, answered=progress.answered),
        **{name: getattr(publication, name) for name in ("id", "name", "stream", "start", "plan", "created_at")},
        latest=publication.visible_latest,
        publish_delay=float(publication.publish_delay),
        evaluation=evaluation,
    )
