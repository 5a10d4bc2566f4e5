"""`/v1/streams/{stream}/units/{unit}`: what is held of a person or device, and its erasure."""

from typing import Annotated
from urllib.parse import unquote_to_bytes

import numpy as np
from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from service.api.auth.access import stream_or_404
from service.api.auth.scopes import Admin, KeyFirst
from service.api.http.problems import Problem, documented, invalid
from service.api.schemas import Loss
from service.api.services import Services, Shared
from service.ledger import spending
from service.privacy.accounting.composition import Slots
from service.publishing import units as found_units
from service.store import keys, segments, units
from service.store.database import ONE_VIEW
from service.store.streams import Stream
from service.streams.units import NEVER, InvalidUnit, UnitState, pseudonym, set_aside

router = APIRouter(route_class=KeyFirst, prefix="/v1/streams/{stream}/units", tags=["records"])

_REFUSALS = documented("invalid-request", "not-found", "log-unavailable", "segments-unavailable")
Unit = Annotated[str, Path(description="The unit's id, percent-encoded")]


class UnitInfo(BaseModel):
    """The records that a stream holds of one unit."""

    records: list[int] = Field(description="The numbers of its records that count and are still kept, erased ones too")
    counting: int = Field(description="How many of its records count, for ever; at most `max_records`")
    erased: bool = Field(description="Its records were erased, and no later one counts")
    spent: Loss = Field(
        description="The cost of all releases so far to it; where fewer `records` are kept than count, a bound that is "
        "never below it"
    )


class ErasedUnit(BaseModel):
    """The records whose bytes are deleted; no later record of the unit counts."""

    records: list[int]


@router.get("/{unit:path}", responses=_REFUSALS)
async def get_unit(stream: str, unit: Unit, request: Request, admin: Admin, shared: Shared) -> UnitInfo:  # noqa: ARG001
    """Shows which records of a unit are held and what it has spent, for an answer to that person."""
    row, name = await _known(stream, request, admin, shared)

    def look() -> UnitInfo:
        slots = found_units.counting_slots_of(shared.database, shared.files, row, name, row.records)
        with shared.database.transaction() as connection:
            connection.execute(ONE_VIEW)
            state, erased = units.state(connection, row.id, name)
            most = row.parsed_schema.unit.max_records if row.parsed_schema.unit else 1
            counting, lost = _with_dropped(slots, state, segments.kept_from(connection, row.id))
            spent = spending.of_unit(connection, row.id, counting, most, _kind(row, name), lost)
        return UnitInfo(records=slots, counting=state.counted, erased=erased, spent=Loss(**row.budget.shown(spent)))

    return await run_in_threadpool(look)


@router.delete("/{unit:path}", status_code=202, responses=_REFUSALS)
async def erase_unit(stream: str, unit: Unit, request: Request, admin: Admin, shared: Shared) -> ErasedUnit:  # noqa: ARG001
    """Erases all records of a unit; later ones of it are taken and do not count. Its spent budget stays spent."""
    row, name = await _known(stream, request, admin, shared)
    slots = await run_in_threadpool(found_units.erase_unit, shared.database, shared.files, row, name)
    return ErasedUnit(records=slots)


def _with_dropped(held: list[int], state: UnitState, kept_from: int) -> tuple[list[int], spending.Lost]:
    """Return which slots of a unit are known to count, and what is known of the others, whose segments were dropped.

    held: read first. A slot that was numbered or dropped since then is taken to be lost, which makes no answer smaller.
    """
    counting = sorted({*held, state.last} - {NEVER})
    return counting, spending.Lost(
        slots=max(0, state.counted - len(counting)), before=min(kept_from, max(0, state.last))
    )


def _kind(stream: Stream, name: bytes) -> Slots:
    period = stream.evaluation_period
    evaluated = period is not None and set_aside(np.frombuffer(name, dtype=np.uint8)[None], period)[0]
    return Slots.EVALUATION if evaluated else Slots.TRAINING


async def _known(stream: str, request: Request, admin: keys.Key, shared: Services) -> tuple[Stream, bytes]:
    """Return the stream and the unit's pseudonym, which the audit log repeats in place of the id."""

    row = await shared.run(stream_or_404, admin, stream)
    secret = await shared.secret_of_units(row)
    if secret is None:
        raise Problem("not-found", "This stream has no units.")
    try:
        name = pseudonym(secret, _id(request))
    except InvalidUnit as wrong:
        raise invalid("path.unit", str(wrong), f"The id in the address {wrong}.") from None
    request.scope["perennial.unit"] = name.hex()
    return row, name


def _id(request: Request) -> str:
    """Return the id in the address. Its bytes are read anew: what was decoded may have lost some."""
    path = unquote_to_bytes(request.scope["raw_path"])  # /v1/streams/{stream}/units/{unit}
    try:
        return path.split(b"/", 5)[5].decode()
    except UnicodeDecodeError:
        raise InvalidUnit("must be percent-encoded UTF-8") from None
