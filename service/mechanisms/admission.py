"""Rules for a publication that begins, beside those of `building` for every publication that runs."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from service.inputs.refused import Refused
from service.learning.registry import LEARNERS
from service.mechanisms.building import build
from service.privacy.noise.sampler_distance import is_small, largest_epsilon

if TYPE_CHECKING:
    from service.mechanisms.configuration import PublicationConfiguration
    from service.mechanisms.mechanism import Mechanism
    from service.privacy.accounting.budget import Budget
    from service.streams.schema import StreamSchema


def admit(
    stream: StreamSchema, publication: PublicationConfiguration, start: int = 0, budget: Budget | None = None
) -> Mechanism:
    """Build a publication that is to begin. Raises Refused as `build` does, and where its ε asks too much of its noise.

    budget: of its stream. Where it is held in ρ, its ε too may ask too much.

    A publication that runs already is built by `build` alone: it goes on with the ε that it promised, and its plan
    states the δ that its draws add (`noise.sampler_distance`).
    """
    mechanism = build(stream, publication, start=start)
    draws = mechanism.draws_of_a_unit
    if not is_small(Fraction(publication.privacy.epsilon), draws):
        raise Refused(
            "privacy.epsilon",
            f"epsilon must be at most {largest_epsilon(draws)} here: one record moves up to {draws} draws of noise in "
            "the publication's life, each only within 2^-100 of its stated law, and at a larger epsilon that adds more "
            f"than 2^-60 to delta. Ask for a smaller epsilon, or for {_exact()}",
        )
    if budget is not None and budget.in_rho and not is_small(Fraction(budget.epsilon), draws):
        raise Refused("privacy", too_many_draws(mechanism, budget))
    return mechanism


def too_many_draws(mechanism: Mechanism, budget: Budget) -> str:
    """Return why a stream whose budget is held in ρ can't hold the draws of a publication beside those it has."""
    return (
        f"one record moves up to {mechanism.draws_of_a_unit} draws of noise in the publication's life, each only "
        "within 2^-100 of its stated law. All such draws of a stream may add 2^-60 to delta together, and with its "
        f"budget's epsilon of {float(budget.epsilon):g} they would add more: ask for {_exact()}"
    )


def _exact() -> str:
    """Return which noise has no draws that count."""
    inexact = " or ".join(LEARNERS.kinds(lambda family: not family.exact_with_delta))
    return f"Gaussian noise, which is exact: a privacy.delta above 0, with any learner but {inexact}"
