"""Releases: their chain, the charge that pays for each, and noise that goes on as it began."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from service.ledger.verify.counted import change_of
from service.ledger.verify.reading import read
from service.ledger.verify.samples import expires_as_promised, is_of_its_sample, is_of_its_steps
from service.ledger.verify.sensitivities import (
    is_too_flat,
    least_sensitivity,
    overstates_regularization,
    overstates_solver_accuracy,
)
from service.privacy.accounting import events
from service.privacy.accounting.composition import Slots
from service.privacy.accounting.events import (
    AddedNoise,
    NoisyCounts,
    NoisyRunningSums,
    PrivacyEvent,
    TiltedObjective,
)
from service.privacy.accounting.groups import UnitBound
from service.privacy.accounting.obligations import AtArrival, WithEachRelease
from service.privacy.accounting.unit_factors import factor_of
from service.privacy.currency import Currency
from service.store import releases
from service.store.publications import Publication
from service.store.rows import Rows
from service.store.streams import Stream
from service.streams.slots import TrainingSlots


def chain(rows: Rows, stream: Stream, publication: Publication) -> Iterator[str]:
    """Check that every release is as written, none is missing, and each has a charge of its own that pays for it."""
    previous = publication.promise
    number, latest, time, batched, of_stream = 0, None, publication.start, publication.start, 0
    run = Run()
    slots_in = _slots_in(stream, publication)
    charging = publication.owes.charging
    for number, row in enumerate(releases.walk(rows, publication.id), 1):
        where = f"publication {publication.name}, version {row['version']}"
        if row["version"] != number:
            yield f"publication {publication.name}, version {number}: it is missing"
            return
        if row["number"] <= of_stream:
            yield f"{where}: its number on the stream is not after that of the version before"
        of_stream = row["number"]
        if not releases.intact(row, publication=publication.name, previous=previous):
            yield f"{where}: its digest is not that of its content"
        previous = row["digest"]
        latest = row["version"] if row["role"] == "model" else latest
        time = row["time"]
        yield from read(where, paid_for(where, publication, row, slots_in, at_arrival=isinstance(charging, AtArrival)))
        yield from read(where, as_begun(where, run, row["noise"]))
        if isinstance(charging, AtArrival) and row["fit_start"] < batched:
            yield f"{where}: it learnt from a batch that another had learnt from"
        batched = row["fit_stop"]
    recorded = publication.version, publication.digest, publication.latest
    reached = publication.start + publication.position
    # A step that only counts records in, or a fit of no unit, moves it on without a release.
    releases_always = isinstance(charging, WithEachRelease) and publication.unit_factor is None
    late = time != reached if releases_always else time > reached
    if (number, previous, latest) != recorded or late:
        where = f"publication {publication.name}, version {publication.version}"
        yield f"{where}: it was the newest one, and is missing or another"


def _slots_in(stream: Stream, publication: Publication) -> Callable[[int, int], int]:
    """Return the count of the slots of [start, stop) that a publication reads: those set aside, or all others."""
    if publication.slots is Slots.EVALUATION and stream.evaluation_slots is not None:
        return stream.evaluation_slots.evaluation
    return TrainingSlots(evaluation=stream.evaluation_slots).count


def paid_for(
    where: str,
    publication: Publication,
    row: Mapping[str, Any],
    slots_in: Callable[[int, int], int],
    *,
    at_arrival: bool,
) -> Iterator[str]:
    """Yield what is wrong where a release has no charge of its own on the records it read, or the charge is too small.

    A publication that charges at arrival has, for each release, the last charge with which its records arrived.
    """
    version = None if at_arrival else row["version"]
    if (row["charged_publication_id"], row["charged_version"]) != (publication.id, version):
        yield f"{where}: it was published without a charge"
        return
    start = max(row["charged_start"], row["fit_start"]) if at_arrival else row["fit_start"]
    if (row["charged_start"], row["charged_stop"]) != (start, row["fit_stop"]):
        yield f"{where}: its charge is not on the records it read"
    pure = row["charged_rho"] is None
    paid = Fraction(row["charged_epsilon"] if pure else row["charged_rho"])
    unit = publication.obligations.get("unit")
    try:
        event = events.from_json(row["noise"])
        records = slots_in(row["fit_start"], row["fit_stop"])
        yield from _for_what_it_is_added_to(where, publication, row, event, records)
        currency, counted = Currency.PURE if pure else Currency.ZCDP, _counted(row, records, of_units=unit is not None)
        if isinstance(event, TiltedObjective):
            epsilon = float(paid) if pure else math.sqrt(2.0 * paid)
            yield from _of_tilted_objective(where, publication, row, event, counted, epsilon)
        if event.cost(currency, counted) > paid:
            yield f"{where}: its noise costs more than its charge"
        if unit is not None:
            bound = UnitBound(max_records=unit["max_records"], min_separation=unit["min_separation"])
            if factor_of(event, currency, bound, records) > Fraction(unit["factor"]):
                yield f"{where}: its charge counts less often than all records of a unit may cost"
    except ValueError as problem:
        yield f"{where}: {problem}"


def _for_what_it_is_added_to(
    where: str, publication: Publication, row: Mapping[str, Any], event: PrivacyEvent, records: int
) -> Iterator[str]:
    """Yield what is wrong where the noise of a release of so many slots is not for what it was added to."""
    if not expires_as_promised(event, publication.configuration):
        yield f"{where}: its noise lets other records expire than its publication says"
    if isinstance(event, NoisyCounts) and event.change != change_of(event, row["model"], row["shape"]):
        yield f"{where}: its noise is for counts that one record changes otherwise"
    if isinstance(event, AddedNoise) and event.sensitivity < least_sensitivity(event, row["model"]):
        yield f"{where}: its noise is for sums that one record moves less than it can"
    if row["noise"]["dimension"] != event.dimension(row["shape"]):
        yield f"{where}: its noise is not as long as what it is added to"
    if not is_of_its_sample(event, publication.configuration, records):
        yield f"{where}: its noise is for a sample of another size than its publication draws"
    if not is_of_its_steps(event, publication.configuration):
        yield f"{where}: its noise is of another number of steps than its publication takes"


def _of_tilted_objective(
    where: str, publication: Publication, row: Mapping[str, Any], event: TiltedObjective, records: int, epsilon: float
) -> Iterator[str]:
    """Yield what is wrong where the noise of a tilted objective of n = `records`, for a charge of ε, is not for it."""
    if is_too_flat(event, row["model"]):
        yield f"{where}: its noise is for an objective that one record bends less than it can"
    elif overstates_regularization(event, publication.configuration, records, epsilon):
        yield f"{where}: its noise is for an objective that is regularized more than its publication says"
    if overstates_solver_accuracy(event, row["model"], records):
        yield f"{where}: its noise is for a minimiser that is found better than any can be"


def _counted(row: Mapping[str, Any], records: int, *, of_units: bool) -> int:
    """Return n of a release, of so many slots: of units, that which it states. A batch of none still has its noise."""
    if not of_units or "units" not in row["model"]:
        return records
    return min(records, max(1, int(row["model"]["units"])))


@dataclass
class Run:
    """A run of steps that take back each other's noise: how it began, and how many of its steps are still to come."""

    begun: NoisyRunningSums | None = None
    left: float = 0


def as_begun(where: str, run: Run, noise: Mapping[str, Any]) -> Iterator[str]:
    """Check that noise which later steps take back goes on as its run began, when all of the run was charged."""
    event = events.from_json(noise)
    if not isinstance(event, NoisyRunningSums):
        return
    if not run.left:
        run.begun, run.left = event, event.factor.steps or math.inf
    run.left -= 1
    if event != run.begun:
        yield f"{where}: its noise is not that with which its run began"
