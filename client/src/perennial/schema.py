"""The part of a stream's schema that appending needs. It never changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from perennial import feature_maps
from perennial.errors import Unsupported
from perennial.names import UNNAMED, Names

MOST_MAPPED = 2**25  # numbers of one batch that the service takes, once the stream's feature map has mapped it


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The names of a stream's columns and classes, and the most records that any batch of it may hold."""

    names: Names = UNNAMED
    most_records: int = MOST_MAPPED

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Schema:
        """Return what the service's JSON says; of a feature map of a later version no limit is known."""
        mapped = 1
        with suppress(Unsupported):
            mapped = feature_maps.build(described.get("feature_map"), described.get("features") or 1).features
        return cls(names=Names.of(described), most_records=max(1, MOST_MAPPED // mapped))
