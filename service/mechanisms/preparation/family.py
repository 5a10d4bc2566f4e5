"""A preparation, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.inputs.refused import Refused
from service.mechanisms.family import MechanismFamily
from service.mechanisms.preparation.mechanism import Preparation
from service.mechanisms.preparation.settings import PreparationMechanism
from service.mechanisms.preparation.whitening import MAX_FEATURES as MAX_WHITENED
from service.mechanisms.preparation.whitening import Whitening

if TYPE_CHECKING:
    from service.mechanisms.family import BuildContext
    from service.mechanisms.preparation.once import MapOfFirstRecords

MAX_FEATURES = 4096


def build(settings: PreparationMechanism, context: BuildContext) -> MapOfFirstRecords:
    """Return the publication. Raises Refused."""
    feature_map = context.stream.mapping()
    if context.stream.features is None:
        raise Refused("mechanism.kind", "a categorical stream has no features to prepare")
    if settings.rule is not None and settings.of != "scale":
        raise Refused("mechanism.rule", "is a setting of scale: leave it out")
    if feature_map.features > MAX_FEATURES:
        raise Refused(
            "mechanism.kind",
            f"scales are learnt of at most {MAX_FEATURES} features, and these records have {feature_map.features}: "
            "give the stream a feature_map to fewer features, or a public standardize",
        )
    if context.promise["training"].count(0, settings.records) < 1:
        raise Refused("mechanism.records", "all of them are evaluation slots, which it does not read: ask for more")
    if settings.of == "scale":
        return Preparation(
            records=settings.records, feature_map=feature_map, rule=settings.rule or 1, **context.promise
        )
    if feature_map.features > MAX_WHITENED:
        raise Refused(
            "mechanism.of",
            f"at most {MAX_WHITENED} features are whitened, and these records have {feature_map.features}: use scale",
        )
    return Whitening(
        records=settings.records, feature_map=feature_map, norm_bound=context.stream.norm_bound, **context.promise
    )


_KIND = {"kind": "preparation"}
FAMILY = MechanismFamily(
    settings=PreparationMechanism,
    source="",
    summary="scales of features, or a matrix that whitens them, learnt privately from the first so many records, "
    "for other publications to name",
    build=build,
    examples={
        "preparation": _KIND | {"records": 16, "of": "scale"},
        "preparation, whiten": _KIND | {"records": 16, "of": "whiten"},
    },
    takes=(),
    releases_map=True,
    takes_features=lambda settings: settings.of == "whiten",
    not_evaluated=lambda _: "its release is a map of features",
)
