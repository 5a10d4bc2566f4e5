"""A preparation, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.inputs.refused import Refused
from service.mechanisms.family import MechanismFamily
from service.mechanisms.preparation.mechanism import Preparation
from service.mechanisms.preparation.settings import PreparationMechanism

if TYPE_CHECKING:
    from service.mechanisms.family import Asked

MOST_FEATURES = 4096


def build(settings: PreparationMechanism, asked: Asked) -> Preparation:
    """Return the publication. Raises Refused."""
    feature_map = asked.stream.mapping()
    if asked.stream.features is None:
        raise Refused("mechanism.kind", "a categorical stream has no features to prepare")
    if asked.stream.unit is not None:
        raise Refused(
            "mechanism.kind",
            "scales are learnt of records, and the budget of this stream is of units: give it a public standardize",
        )
    if feature_map.features > MOST_FEATURES:
        raise Refused(
            "mechanism.kind",
            f"scales are learnt of at most {MOST_FEATURES} features, and these records have {feature_map.features}: "
            "give the stream a feature_map to fewer features, or a public standardize",
        )
    return Preparation(records=settings.records, feature_map=feature_map, rule=settings.rule or 1, **asked.promise)


_KIND = {"kind": "preparation"}
FAMILY = MechanismFamily(
    settings=PreparationMechanism,
    source="",
    summary="scales of features, learnt privately from the first so many records, for other publications to name",
    build=build,
    examples={"preparation": _KIND | {"records": 16, "of": "scale"}},
    takes=(),
    releases_map=True,
    not_evaluated=lambda _: "its release is a map of features",
)
