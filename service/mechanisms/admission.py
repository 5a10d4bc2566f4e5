"""Rules for a publication that begins, beside those of `building` for every publication that runs."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from service.inputs.refused import Refused
from service.learners.registry import LEARNERS
from service.mechanisms.building import build
from service.privacy.noise.sampler_distance import is_small, largest_epsilon

if TYPE_CHECKING:
    from service.mechanisms.configuration import PublicationConfiguration
    from service.mechanisms.mechanism import Mechanism
    from service.streams.schema import StreamSchema


def admit(stream: StreamSchema, publication: PublicationConfiguration, start: int = 0) -> Mechanism:
    """Build a publication that is to begin. Raises Refused as `build` does, and where its ε asks too much of its noise.

    A publication that runs already is built by `build` alone: it goes on with the ε that it promised, and its plan
    states the δ that its draws add (`noise.sampler_distance`).
    """
    mechanism = build(stream, publication, start=start)
    inexact = " or ".join(LEARNERS.kinds(lambda family: not family.exact_with_delta))
    draws = mechanism.draws_of_a_unit
    if not is_small(Fraction(publication.privacy.epsilon), draws):
        raise Refused(
            "privacy.epsilon",
            f"epsilon must be at most {largest_epsilon(draws)} here: one record moves up to {draws} draws of noise in "
            "the publication's life, each only within 2^-100 of its stated law, and at a larger epsilon that adds more "
            "than 2^-60 to delta. Ask for a smaller epsilon, or for Gaussian noise, which is exact: a privacy.delta "
            f"above 0, with any learner but {inexact}",
        )
    return mechanism
