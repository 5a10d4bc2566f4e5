"""The layout of a stream's records: decided once, from its schema, for all who write or read records.

A batch has columns of the same length: `x`, a row of features per record, `y`, a label or category, and `unit`, whose
the record is. It is checked when it is posted (`batches`), then written to the log (`encode`), read from the log
(`decode`) and put into a segment (`mapped`). Texts are mapped to numbers before the log, numbers after it. Ids of units
become pseudonyms before the log: neither a log nor a segment ever holds an id.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from service.streams import feature_maps
from service.streams.codec import pack, unpack
from service.streams.names import UNNAMED, Names
from service.streams.units import PSEUDONYM_BYTES, pseudonyms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from service.streams.codec import Columns
    from service.streams.feature_maps import FeatureMap

FLOAT32, INT32, BYTE = np.dtype("<f4"), np.dtype("<i4"), np.dtype("u1")


class UnreadableBatch(Exception):
    """Raised for bytes that are not a batch of this layout."""


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """The columns of a stream's records.

    Args:
        features: numbers or texts in the `x` of a posted record; 0: records have no `x`.
        labelled: records have a `y`.
        classes: `y` is a whole number below this; None: `y` is a real number, or absent.
        feature_map: maps `x` before anything is fitted to it.
        names: of columns and classes, by which records may be posted.
        units: records have a `unit`.

    >>> import numpy as np
    >>> from service.streams.schema import StreamSchema
    >>> layout = StreamSchema.model_validate({"features": 2, "task": {"kind": "classification", "classes": 2}}).layout()
    >>> layout.column_names
    ['x', 'y']
    >>> batch = layout.encode({"x": np.array([[0.5, 1.0]], np.float32), "y": np.array([1], np.int32)})
    >>> layout.decode(batch)["x"].tolist()
    [[0.5, 1.0]]
    """

    features: int
    labelled: bool
    classes: int | None
    feature_map: FeatureMap
    names: Names = UNNAMED
    units: bool = False

    @classmethod
    def of_model(cls, model: Mapping[str, Any]) -> RecordLayout:
        """Return the layout of records that are `x` alone, as a prediction by a release's model takes them."""
        features = model["features"]
        return cls(
            features=features,
            labelled=False,
            classes=None,
            feature_map=feature_maps.build(model["feature_map"], features),
            names=Names(columns=tuple(model.get("columns", ()))),
        )

    @cached_property
    def column_names(self) -> list[str]:
        """Return the names of a posted record's columns, in alphabetical order."""
        return ["unit"] * self.units + ["x"] * (self.features > 0) + ["y"] * self.labelled

    @cached_property
    def reads_text(self) -> bool:
        """Return whether the `x` of a posted record consists of texts."""
        return self.feature_map.reads_text

    @property
    def most_records(self) -> int:
        """Return the most records of a batch, so that it fits into memory once it is mapped."""
        return self.feature_map.most_records

    @property
    def mapped_features(self) -> int:
        """Return the number of numbers in the `x` of a record in a segment; 0: records have no `x`."""
        return self.feature_map.features

    def encode(self, columns: Columns, secret: bytes | None = None) -> bytes:
        """Return a checked batch as the log holds it. secret: the stream's, if its records have units."""
        if secret is not None:
            columns = columns | {"unit": pseudonyms(secret, columns["unit"])}
        return pack(self._map(columns) if self.reads_text else columns)

    def decode(self, batch: bytes) -> Columns:
        """Return the columns of a batch in the log. Raises UnreadableBatch where it is not what `encode` returns."""
        try:
            columns = unpack(batch)
        except Exception as error:  # the bytes can be anything, and the library raises several kinds of errors
            raise UnreadableBatch from error
        given = {name: (column.dtype, column.shape[1:]) for name, column in columns.items()}
        lengths = {column.shape[:1] for column in columns.values()}
        if given != self._logged or len(lengths) != 1 or lengths <= {(), (0,)}:
            raise UnreadableBatch
        return columns

    def mapped(self, columns: Columns) -> Columns:
        """Return decoded columns as a segment holds them."""
        return columns if self.reads_text or "x" not in columns else self._map(columns)

    def _map(self, columns: Columns) -> Columns:
        return columns | {"x": self.feature_map(columns["x"])}

    @cached_property
    def _logged(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Return the type of each column of a batch in the log, and the shape of one record's part of it."""
        width = self.mapped_features if self.reads_text else self.features
        columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            "x": (FLOAT32, (width,)),
            "y": (FLOAT32 if self.classes is None else INT32, ()),
            "unit": (BYTE, (PSEUDONYM_BYTES,)),
        }
        return {name: columns[name] for name in self.column_names}
