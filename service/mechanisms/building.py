"""Build a publication from its configuration, or refuse it with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from service.inputs.refused import Refused
from service.learning.optimization.solvers import Inaccurate
from service.learning.registry import LEARNERS
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.family import BuildContext
from service.mechanisms.features import schema_of_features
from service.mechanisms.on_schedule import OnSchedule
from service.mechanisms.registry import MECHANISMS
from service.mechanisms.units import NotForUnits, UnitTerms
from service.privacy.currency import Currency, capacity
from service.privacy.noise.additive import Unaffordable
from service.streams.schema import stored_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from service.inputs.registry import FamilySettings
    from service.mechanisms.family import MechanismFamily
    from service.mechanisms.features import ReleasedMap
    from service.mechanisms.mechanism import Mechanism
    from service.privacy.accounting.groups import UnitBound
    from service.streams.schema import StreamSchema


def build(
    stream: StreamSchema, publication: PublicationConfiguration, released: ReleasedMap | None = None, start: int = 0
) -> Mechanism:
    """Return the publication that the configuration describes. Raises Refused with the field that cannot stand.

    released: the map of its `features`; None: it names none, or is planned before the map is released. start: its first
    slot, absolute; it matters only where the stream sets slots aside.
    """
    privacy, learner = publication.privacy, publication.learner
    kind, cap = capacity(privacy.epsilon, privacy.delta)
    if cap == 0:
        raise Refused("privacy.delta", "this delta leaves no budget for noise in double precision")
    family = MECHANISMS.of(publication.mechanism)
    if publication.publish_delay and not family.has_ticks:
        raise Refused("publish_delay", f"steps of {family.kind} are due at no public time: leave it out")
    if learner is not None and not family.takes_learner:
        raise Refused("learner", f"{family.kind} fits no model: leave learner out")
    if publication.features is not None:
        if not (family.takes_features(publication.mechanism) and family.has_ticks):
            raise Refused("features", f"{family.kind} takes no features of another publication: leave features out")
        if family.evaluates:
            raise Refused("features", f"{family.kind} counts what others predict: leave features out")
        stream = schema_of_features(stream, released)
    context = BuildContext(stream=stream, learner=learner, privacy=privacy, currency=kind, capacity=cap, start=start)
    try:
        return _planned(publication, context)
    except Inaccurate as problem:
        setting = family.accuracy_setting or (learner and LEARNERS.of(learner).accuracy_setting) or "mechanism"
        raise Refused(setting, str(problem)) from None
    except Unaffordable as problem:
        raise Refused("privacy.epsilon", str(problem)) from None


def _planned(publication: PublicationConfiguration, context: BuildContext) -> Mechanism:
    """Return the publication, which has a plan. Raises Refused, and Inaccurate or Unaffordable where it has none.

    With units its noise is asked for before its plan is: how often a slot's charge counts follows from it.
    """
    family, unit = MECHANISMS.of(publication.mechanism), context.stream.unit
    mechanism: Mechanism = (
        family.build(publication.mechanism, context)
        if unit is None
        else build_for_units(family, publication.mechanism, context, unit.bound)
    )
    if isinstance(mechanism, OnSchedule) and mechanism.fewest_slots() < 1:
        raise Refused("mechanism", "a fit could have evaluation slots alone: use batches of at least 2 records")
    mechanism.plan()
    return mechanism


def build_for_units(
    family: MechanismFamily[Any], settings: FamilySettings, context: BuildContext, bound: UnitBound
) -> Mechanism:
    """Return the publication whose promise holds for units. Raises Refused where that is not known to be possible."""

    def charging(factor: Fraction) -> Mechanism:
        terms = UnitTerms.rounded(bound, factor)
        built: Mechanism = family.build(
            settings, replace(context, capacity=context.capacity / terms.factor, unit=terms)
        )
        return built

    alone: Mechanism = family.build(settings, context)
    try:
        if context.currency is Currency.PURE:
            alone.check_units()
            return charging(Fraction(bound.max_records))
        return charging(alone.group_factor(bound, charging))
    except NotForUnits as why:
        raise Refused("mechanism.kind", f"on a stream with units {why}") from None


def needs(schema: Mapping[str, Any], configuration: Mapping[str, Any], start: int, position: int) -> int:
    """Return the oldest record that a publication may still read after `position`; both are counted from its start.

    schema, configuration: as they are stored, of the stream and of the publication. start: its first record.
    """
    return _stored(json.dumps(schema), json.dumps(configuration), start).needs(position)


def declassified(schema: Mapping[str, Any], configuration: Mapping[str, Any], position: int) -> int:
    """Return how many of a publication's first records its releases up to `position` have declassified.

    schema, configuration, position: as for `needs`.
    """
    if configuration.get("mechanism", {}).get("expiry", "never") == "never":  # most publications: no need to build them
        return 0
    return _stored(json.dumps(schema), json.dumps(configuration)).declassified(position)


@lru_cache(maxsize=64)
def _stored(schema: str, configuration: str, start: int = 0) -> Mechanism:
    """Return the publication of a stored schema and configuration, cached: many streams have equal settings."""
    publication = PublicationConfiguration.model_validate(json.loads(configuration))
    return build(stored_schema(json.loads(schema)), publication, start=start)
