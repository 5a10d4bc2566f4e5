"""`/v1/streams/{stream}/ledger`: what every record has spent, what is reserved, and the charges one by one."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from service.api.auth.access import stream_or_404
from service.api.auth.scopes import KeyFirst, Reader
from service.api.http.problems import documented
from service.api.schemas import DECLASSIFIED, IN_DIGITS, Before, Charge, Items, Limit, SlotsLoss, as_json
from service.api.schemas import Budget as ShownBudget
from service.api.schemas import Loss as ShownLoss
from service.api.services import Shared
from service.ledger import reservations, spending, summaries
from service.mechanisms.building import declassified
from service.privacy.accounting import composition
from service.privacy.accounting.budget import Budget
from service.privacy.accounting.charges_by_record import covered
from service.privacy.accounting.composition import PrivacyLoss, Slots
from service.privacy.currency import Currency, round_up
from service.store import charges, publications, streams
from service.store.database import ONE_VIEW
from service.store.keys import Key
from service.store.rows import Rows

router = APIRouter(route_class=KeyFirst, prefix="/v1/streams", tags=["streams"])

Edge = Annotated[
    int | None, Query(ge=0, lt=2**62, description="Only of records from `start` on, before `end`"), IN_DIGITS
]


class LedgerRange(BaseModel):
    """The amount that every record of [start, end) has spent.

    `declassified`: it is no longer protected at all, by anything on this stream; `epsilon` and `delta` are null then,
    since what it loses is unbounded.
    """

    start: int
    end: int
    epsilon: float | None
    delta: float | None
    rho: float | None = Field(None, description="Only of streams with `accounting` `zcdp`")
    declassified: bool
    evaluation: ShownLoss | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="(ε, δ) of evaluation slots, where the stream sets some aside; ε and δ are the larger of both",
    )


class Tighter(ShownLoss):
    """The least (ε, δ) that can be shown for any record from what is reserved; told, never used to admit.

    It holds only if nobody chose a publication, its privacy or its start by looking at releases of the stream;
    `reserved` holds in any case. At the δ of `reserved`, the least of three bounds (`how`): the sum of ε; `zcdp`, what
    the sum of ρ implies, a pure ε counted as ε²/2; `pure_plus_gaussian`, the pure ε plus what the Gaussian ρ alone
    imply. The sums are there too. With `accounting` `zcdp` it is `reserved`, and neither holds if somebody started or
    stopped a publication by looking: the budget does.
    """

    how: Literal["sum", "zcdp", "pure_plus_gaussian"]
    pure: float = Field(description="Σ ε of pure publications")
    zcdp: float = Field(description="Σ ρ of all")
    gaussian: float = Field(description="Σ ρ of Gaussian publications")


class WorstRecord(ShownLoss):
    """The record that a publication has charged most. Gaussian: `rho` is what it charged, ε what that implies."""

    record: int | None
    rho: float | None = Field(description="null of pure publications, but for streams with `accounting` `zcdp`")


class LedgerPublication(BaseModel):
    """The amount that one publication reserves on each record from `start` on, why it suffices for ever, and its state.

    Once it has ended, `reserved` is what it keeps on the worst record.
    """

    name: str
    running: bool
    start: int
    declassified: int = Field(description="How many records, from `start` on, what it released no longer protects")
    reserved: ShownLoss
    lifetime: dict[str, Any] | None = Field(
        description="The record (counted from `start`) that all its fits for ever charge most, and how that adds up"
    )
    spent: WorstRecord


class Ledger(BaseModel):
    """`spent` and `reserved` are the worst record's; the ranges cover [0, records), or the part that was asked for.

    Both are of what records are charged while they are protected: what one that is declassified loses has no bound.
    """

    budget: ShownBudget
    reserved: SlotsLoss
    spent: SlotsLoss
    declassified: int = Field(description=DECLASSIFIED)
    tighter: Tighter
    publications: list[LedgerPublication]
    exact: bool = Field(description="False: a range tells the most that any of its records has spent")
    ranges: list[LedgerRange]


@router.get("/{stream}/ledger", response_model=Ledger, responses=documented("invalid-request", "not-found"))
async def get_ledger(stream: str, key: Reader, shared: Shared, start: Edge = None, end: Edge = None) -> Response:
    """Shows what every record has spent, the most that is reserved on any record, and how that adds up.

    The ranges cover [0, records), or the part of it from `start` to `end`. A stream can have more of them than anybody
    reads: then neighbours are shown as one range with the most that any of its records has spent, and `exact` is false.
    Ask for a part of it to see it exactly. `spent` is exactly that of the record with the most, in any case; with
    units it is a bound on what any unit has spent, and ranges are of each record by itself.

    Where a publication's settings make records expire, those past its window are `declassified`: what they lose is
    unbounded, so their range has no `epsilon` and no `delta`, and beside `spent` stands how many they are. All other
    figures are of what records were charged while they were protected.
    """

    def look(connection: Connection) -> Response:
        connection.execute(ONE_VIEW)  # else a charge that is committed meanwhile is taken off what it is not in yet
        row = stream_or_404(connection, key, stream)
        of_it = publications.of_stream(connection, row.id)
        reserved, evaluated = (
            reservations.reserved(connection, row.id, of_it, slots) for slots in (None, Slots.EVALUATION)
        )
        low, high = min(start or 0, row.records), row.records if end is None else min(end, row.records)
        exact, pieces = _pieces(connection, row, low, high)
        tighter = _tighter(connection, row, of_it, reserved, evaluated)
        exposed = _exposed(row, of_it)
        return as_json(
            {
                **summaries.sums(row, of_it, reserved, evaluated),
                "declassified": covered(exposed.values()),
                "tighter": row.budget.shown(tighter.loss)
                | {"how": tighter.how}
                | {name: round_up(getattr(tighter, name)) for name in ("pure", "zcdp", "gaussian")},
                "publications": [_share(row, publication, exposed[publication.name]) for publication in of_it],
                "exact": exact,
                "ranges": list(_merged(row.budget, _with_declassified(pieces, exposed.values()))),
            }
        )

    return await shared.run(look)


@router.get("/{stream}/ledger/charges", responses=documented("invalid-request", "not-found"))
async def list_charges(
    stream: str,
    key: Reader,
    shared: Shared,
    limit: Limit = 100,
    before: Before = None,
) -> Items[Charge]:
    """The append-only list of charges, newest first, chained by hashes."""

    def look(connection: Connection, key: Key) -> Items[Charge]:
        of_stream = stream_or_404(connection, key, stream)
        rows = charges.page(connection, of_stream.id, limit=limit, before=before)
        return Items(items=[Charge(**row) for row in rows])

    return await shared.run(look, key)


def _exposed(stream: streams.Stream, of_it: Iterable[publications.Publication]) -> dict[str, tuple[int, int]]:
    """Return, by publication, the records that its releases no longer protect; mostly none."""
    return {
        publication.name: (
            publication.start,
            publication.start + declassified(stream.schema, publication.configuration, publication.visible_position),
        )
        for publication in of_it
    }


def _tighter(
    connection: Connection,
    stream: streams.Stream,
    of_it: list[publications.Publication],
    reserved: PrivacyLoss,
    evaluated: PrivacyLoss,
) -> composition.Tighter:
    if stream.evaluation_period is None:
        return reservations.tighter(stream, of_it, reserved)
    training = reservations.reserved(connection, stream.id, of_it, Slots.TRAINING)
    return reservations.tighter(stream, of_it, training, evaluated)


_Told = tuple[int, int, PrivacyLoss, PrivacyLoss | None]
"""Records [start, end), what each has spent, and what its evaluation slots have; None: there are none."""


def _pieces(connection: Connection, stream: streams.Stream, start: int, stop: int) -> tuple[bool, list[_Told]]:
    """Return whether what follows is exact, and what the records of each stretch of [start, stop) have spent."""
    if start >= stop:
        return True, []
    kinds = (None,) if stream.evaluation_period is None else (None, Slots.EVALUATION)
    of_kinds = [spending.exact(connection, stream.id, start, stop, slots) for slots in kinds]
    exact = [loss for loss in of_kinds if loss is not None]
    is_exact = len(exact) == len(kinds)
    stretches = exact if is_exact else [_outlined(connection, stream, start, stop, slots) for slots in kinds]
    if len(kinds) == 1:
        return is_exact, [(low, high, loss, None) for low, high, loss in stretches[0]]
    return is_exact, [*composition.align(stretches[0], stretches[1])]


def _outlined(
    connection: Connection, stream: streams.Stream, start: int, stop: int, slots: Slots | None
) -> list[spending.Stretch]:
    """The most that a record of each stretch has spent, which no stretch can have spent more of than the worst."""
    worst = summaries.spent_by_records(stream)
    return [
        (low, high, loss.at_most(worst))
        for low, high, loss in spending.outlined(Rows(connection), stream.id, start, stop, slots)
    ]


def _worst_record(stream: streams.Stream, publication: publications.Publication) -> int | None:
    """Return the first record that pays of those charged most: of a range only slots of the publication's kind do."""
    record, slots = publication.visible_worst_record, stream.evaluation_slots
    if record is None or slots is None:
        return record
    return slots.first_from(record, evaluation=publication.slots is Slots.EVALUATION)


def _share(stream: streams.Stream, publication: publications.Publication, exposed: tuple[int, int]) -> dict[str, Any]:
    """Return the share of one publication in the ledger."""
    budget, component = stream.budget, spending.component_of(publication)
    charged, amount = Fraction(publication.worst_amount), Fraction(publication.visible_worst_amount)
    pure = publication.kind == Currency.PURE
    return {
        "name": publication.name,
        "running": publication.visible_state == "running",
        "start": publication.start,
        "declassified": exposed[1] - exposed[0],
        "reserved": budget.shown(component.held(charged), component.held_alone(charged)),
        "lifetime": publication.plan.get("lifetime"),
        "spent": {
            "record": _worst_record(stream, publication),
            "rho": None if pure else round_up(amount * component.factor),
            **budget.shown(component.loss(amount), component.alone(amount)),
        },
    }


_Losses = tuple[PrivacyLoss, PrivacyLoss | None]


def _with_declassified(
    pieces: Iterable[_Told], exposed: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, _Losses | None]]:
    """Stretches of what records have spent, cut where some are declassified; those have no loss: it is unbounded."""
    exposed = [bounds for bounds in exposed if bounds[0] < bounds[1]]
    edges = sorted({edge for bounds in exposed for edge in bounds})
    for start, end, loss, evaluation in pieces:
        cuts = [start, *(edge for edge in edges if start < edge < end), end]
        for low, high in pairwise(cuts):
            yield low, high, None if any(first <= low < last for first, last in exposed) else (loss, evaluation)


def _merged(budget: Budget, ranges: Iterable[tuple[int, int, _Losses | None]]) -> Iterator[dict[str, Any]]:
    """Neighbours that spent the same are one range, whatever is reserved on them; so are those declassified."""
    unbounded = dict.fromkeys(budget.shown(PrivacyLoss())) | {"declassified": True}
    shown = ((start, end, unbounded if losses is None else _shown(budget, *losses)) for start, end, losses in ranges)
    for spent, alike in groupby(shown, key=itemgetter(2)):
        first, *others = alike
        yield {"start": first[0], "end": others[-1][1] if others else first[1], **spent}


def _shown(budget: Budget, loss: PrivacyLoss, evaluation: PrivacyLoss | None) -> dict[str, Any]:
    content = budget.shown(loss) | {"declassified": False}
    return content if evaluation is None else content | {"evaluation": budget.shown(evaluation)}
