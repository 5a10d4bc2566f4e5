"""The settings of a publication: a mechanism, a learner and a budget, checked before anything is built from them.

A refusal gives the name of the field and a value that would do, never a record's content (there is none here).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Delta, Epsilon, PublishDelay, Shape
from service.inputs.refused import Refused
from service.inputs.registry import FamilySettings
from service.learning.linear import LinearLearner
from service.learning.registry import LearnerSettings
from service.mechanisms.family import MechanismFamily
from service.mechanisms.features import FeaturesFrom
from service.mechanisms.privacy import Privacy, RhoPrivacy
from service.mechanisms.registry import MECHANISMS, MechanismSettings
from service.privacy.accounting.budget import Accounting, Budget, epsilon_within

__all__ = ["Privacy", "PublicationConfiguration", "Refused", "RhoPrivacy"]


class StreamBudget(Shape):
    """(epsilon, delta), and how publications add up: as (epsilon, delta), or as the rho that implies it."""

    epsilon: Epsilon
    delta: Delta = Field(Decimal(0), json_schema_extra={"default": 0})
    accounting: Literal["basic", "zcdp"] = Field(
        "basic",
        description="`zcdp`: publications add up in rho. k Gaussian ones that share the budget have up to sqrt(k) "
        "times less noise than with `basic`, and pure ones hardly fit; delta must be above 0",
    )

    @property
    def budget(self) -> Budget:
        """Return the budget of a stream."""
        return Budget(epsilon=self.epsilon, delta=self.delta, accounting=Accounting(self.accounting))

    @model_validator(mode="after")
    def _holds_something(self) -> Self:
        if self.budget.in_rho and self.delta < LEAST_DELTA:
            raise PydanticCustomError(
                "delta_too_small",
                "delta must be at least {least} where accounting is zcdp",
                {"least": f"{LEAST_DELTA:g}"},
            )
        return self


def _kind_of_privacy(privacy: object) -> str:
    by_rho = isinstance(privacy, RhoPrivacy) or (
        isinstance(privacy, dict) and "rho" in privacy and "epsilon" not in privacy
    )
    return RhoPrivacy.__name__ if by_rho else Privacy.__name__


AskedPrivacy = Annotated[
    Annotated[Privacy, Tag(Privacy.__name__)] | Annotated[RhoPrivacy, Tag(RhoPrivacy.__name__)],
    Discriminator(_kind_of_privacy),
]
PrivacyKind = TypeVar("PrivacyKind", Privacy, AskedPrivacy)

LEAST_DELTA = Decimal("1e-18")  # the least delta of a budget held in rho, of which inexact draws may take 2^-60


def _releases_map(family: MechanismFamily[Any]) -> bool:
    return family.releases_map


DEFAULT_DELAY = Decimal(1)  # seconds


class PublicationSettings(Shape, Generic[PrivacyKind]):
    """A mechanism, a learner, a budget, and when releases appear."""

    mechanism: MechanismSettings
    learner: Annotated[
        LearnerSettings | None, Field(validate_default=True, description="null for mechanisms that fit no model")
    ] = None
    privacy: PrivacyKind
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
        """Return T in seconds; 0: releases appear as soon as their fit is ready."""
        if self.publish_delay is not None:
            return self.publish_delay
        return DEFAULT_DELAY if self.has_ticks else Decimal(0)

    @property
    def has_ticks(self) -> bool:
        """Return whether its steps are due by public numbers of records, so that there is a time to count from."""
        return MECHANISMS.of(self.mechanism).has_ticks

    @field_validator("learner")
    @classmethod
    def _where_there_is_something_to_learn(
        cls, value: FamilySettings | None, info: ValidationInfo
    ) -> FamilySettings | None:
        mechanism = info.data.get("mechanism")
        if mechanism is None:  # the mechanism is invalid, which has an error of its own
            return value
        if value is None and MECHANISMS.of(mechanism).takes_learner:
            raise PydanticCustomError("missing", "Field required")
        return value


class PublicationConfiguration(PublicationSettings[Privacy]):
    """A mechanism, a learner, a budget, and when releases appear."""

    def begun(self) -> Self:
        """Return the configuration with today's defaults filled in, for a publication that begins now."""
        parts: dict[str, Any] = {}
        if (begun := getattr(self.mechanism, "begun", None)) is not None:
            parts["mechanism"] = begun()
        if isinstance(self.learner, LinearLearner):
            parts["learner"] = self.learner.begun(of_fits=MECHANISMS.of(self.mechanism).takes_any_learner)
        return self.model_copy(update=parts)

    def stored(self) -> dict[str, Any]:
        """Return the configuration as the JSON to store, without fields that were not set; its digest is promised."""
        unset = {name for name in ("publish_delay", "features") if getattr(self, name) is None}
        return self.model_dump(mode="json", exclude=unset)


class AskedPublication(PublicationSettings[AskedPrivacy]):
    """The settings of a publication in a request, with an epsilon and a delta, or with a rho."""

    def configuration(self, budget: Budget) -> PublicationConfiguration:
        """Return the configuration of the requested publication on a stream with that budget.

        Raises Refused where the budget can hold no such publication, whatever else is published.
        """
        names = {name for name in PublicationSettings.model_fields if name in self.model_fields_set} - {"privacy"}
        settings = {name: getattr(self, name) for name in names}
        return PublicationConfiguration(privacy=_promised(self.privacy, budget), **settings).begun()


def _promised(privacy: Privacy | RhoPrivacy, budget: Budget) -> Privacy:
    """Return what a publication promises."""
    if isinstance(privacy, RhoPrivacy):
        if not budget.in_rho:
            raise Refused("privacy.rho", "the stream's budget is of epsilon and delta: give these, and no rho")
        epsilon = epsilon_within(privacy.rho, budget.delta)
        if not epsilon:
            raise Refused("privacy.rho", "is less than an epsilon of 1e-9 takes: give a larger one")
        return Privacy(epsilon=epsilon, delta=budget.delta, rho=privacy.rho)
    if privacy.rho is not None:
        raise Refused("privacy.rho", "give either a rho, or an epsilon and a delta")
    if privacy.delta > 0 and budget.delta == 0:
        raise Refused("privacy.delta", "the stream's budget has delta 0, so only publications with delta 0 fit")
    if budget.in_rho and (privacy.epsilon, privacy.delta) == (budget.epsilon, budget.delta):
        # the whole budget, less what inexact draws may add
        whole = epsilon_within(float(budget.limit.rho), budget.delta)
        return privacy.model_copy(update={"epsilon": whole or privacy.epsilon})
    return privacy
