"""The part of a stream's schema that appending needs. It never changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perennial import feature_maps
from perennial.errors import Unsupported
from perennial.names import UNNAMED, Names

MOST_MAPPED = 2**25  # numbers of one batch that the service takes, once the stream's feature map has mapped it


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The names of a stream's columns and classes, and the most records that any batch of it may hold.

    reads_text: whether features are texts, not numbers. has_units: whether each record needs the id of its unit.
    """

    names: Names = UNNAMED
    most_records: int = MOST_MAPPED
    reads_text: bool = False
    has_units: bool = False

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Schema:
        """Return what the service's JSON says; of a feature map of a later version no limit is known."""
        names, has_units = Names.of(described), described.get("unit") is not None
        try:
            mapped = feature_maps.build(described.get("feature_map"), described.get("features") or 1)
        except Unsupported:
            return cls(names=names, has_units=has_units)
        return cls(
            names=names,
            most_records=max(1, MOST_MAPPED // mapped.features),
            reads_text=mapped.reads_text,
            has_units=has_units,
        )
