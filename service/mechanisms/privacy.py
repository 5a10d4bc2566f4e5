"""The privacy that a publication promises, and as somebody asks for it."""

from __future__ import annotations

from decimal import Decimal

from pydantic import Field

from service.inputs.fields import Delta, Epsilon, Rho, Shape


class Privacy(Shape):
    """The most that one record may lose to one publication over its whole life: (epsilon, delta)."""

    epsilon: Epsilon
    delta: Delta = Field(Decimal(0), json_schema_extra={"default": 0})  # a number, where pydantic would show a text
    rho: Rho | None = Field(
        None,
        exclude_if=lambda rho: rho is None,
        description="The loss that was asked for in the place of epsilon and delta, which follow from it",
    )


class RhoPrivacy(Shape):
    """The most that one record may lose to one publication for ever, on a stream whose budget is held in rho.

    The publication promises the (epsilon, delta) that it implies at the delta of the stream's budget.
    """

    rho: Rho
