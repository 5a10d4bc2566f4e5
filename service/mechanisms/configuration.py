"""What a publication is asked to be: a mechanism, a learner and a budget, checked before anything is built from them.

What is refused is refused with the name of the field and what would do, never with a record's content (there is none
here).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Delta, Epsilon, PublishDelay, Shape
from service.inputs.refused import Refused
from service.inputs.registry import FamilySettings
from service.learners.registry import LearnerSettings
from service.mechanisms.family import MechanismFamily
from service.mechanisms.features import FeaturesFrom
from service.mechanisms.registry import MECHANISMS, MechanismSettings

__all__ = ["Privacy", "PublicationConfiguration", "Refused"]


class Privacy(Shape):
    """The most that one record may lose to one publication over its whole life: (epsilon, delta)."""

    epsilon: Epsilon
    delta: Delta = Field(Decimal(0), json_schema_extra={"default": 0})  # a number, where pydantic would show a text


def _releases_map(family: MechanismFamily[Any]) -> bool:
    return family.releases_map


DEFAULT_DELAY = Decimal(1)  # seconds


class PublicationConfiguration(Shape):
    """A mechanism, a learner, a budget, and when releases appear."""

    mechanism: MechanismSettings
    learner: Annotated[
        LearnerSettings | None, Field(validate_default=True, description="null for mechanisms that fit no model")
    ] = None
    privacy: Privacy
    publish_delay: PublishDelay | None = Field(
        None,
        description="T in seconds. Each release appears at a multiple of T (Unix time), at least T after the last "
        "record that it needed was numbered; 0: as soon as its fit is ready. Default: 1. "
        f"{' and '.join(f'`{kind}`' for kind in MECHANISMS.kinds(lambda family: not family.has_ticks))}, whose steps "
        "are due by queries and labels, have no ticks and take only 0",
    )

    features: FeaturesFrom | None = Field(
        None,
        description="Features that another publication of the stream releases as a map: its name, "
        f'`{{"from": NAME}}`. It is one of {", ".join(f"`{kind}`" for kind in MECHANISMS.kinds(_releases_map))}. '
        "Records go through the stream's map, then the released one, then are shortened to the map's norm, which "
        "takes the place of norm_bound. Fits wait until the map is released",
    )

    @property
    def delay(self) -> Decimal:
        """T in seconds; 0: releases appear as soon as their fit is ready."""
        if self.publish_delay is not None:
            return self.publish_delay
        return DEFAULT_DELAY if self.has_ticks else Decimal(0)

    @property
    def has_ticks(self) -> bool:
        """Whether its steps are due by public numbers of records, so that there is a time to count from."""
        return MECHANISMS.of(self.mechanism).has_ticks

    def stored(self) -> dict[str, Any]:
        """Return it as JSON to be stored, whose digest is promised: what was not set is not in it."""
        unset = {name for name in ("publish_delay", "features") if getattr(self, name) is None}
        return self.model_dump(mode="json", include=set(PublicationConfiguration.model_fields) - unset)

    @field_validator("learner")
    @classmethod
    def _where_there_is_something_to_learn(
        cls, value: FamilySettings | None, info: ValidationInfo
    ) -> FamilySettings | None:
        mechanism = info.data.get("mechanism")
        if mechanism is None:  # it is not valid, which is said by itself
            return value
        if value is None and MECHANISMS.of(mechanism).takes_learner:
            raise PydanticCustomError("missing", "Field required")
        return value
