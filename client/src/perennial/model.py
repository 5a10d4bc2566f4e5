"""A published model: its parameters, its description, and predictions with numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial import linear, safetensors
from perennial.data import features_of
from perennial.errors import InvalidData, Unsupported
from perennial.extras import needs
from perennial.names import Names

if TYPE_CHECKING:
    import onnx

    from perennial.estimators import PrivateClassifier, PrivateRegressor
    from perennial.linear import LinearModel

Floats: TypeAlias = NDArray[np.float64]
_WEIGHTS, _ENCODER = "weights", "encoder"


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """One release of a publication. It never changes.

    parameters: float64, as released. metadata: the release without its parameters' values, as the service's JSON has
    it: `version`, `time`, `window`, `fit`, `noise`, `charge`, `published_at`, and `model`, which says how to predict.
    encoder: the parameters of the publication's encoder, where the model reads features that an encoder makes.
    """

    parameters: Floats = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    encoder: Floats | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        kind = self.description.get("loss") or self.description.get("kind")
        return f"<Model {self.publication} version {self.version}: {kind}, parameters {self.parameters.shape}>"

    @property
    def publication(self) -> str:
        """Return the publication's name."""
        return str(self.metadata["publication"])

    @property
    def version(self) -> int:
        """Return the release's number within its publication, from 1."""
        return int(self.metadata["version"])

    @property
    def time(self) -> int:
        """Return the number of records of the stream that the model has seen."""
        return int(self.metadata["time"])

    @property
    def role(self) -> str:
        """Return `model`; or `base` or `link` of a release from which only later fits start."""
        return str(self.metadata.get("role", "model"))

    @property
    def description(self) -> Mapping[str, Any]:
        """Return the description by which the release's predictions are computed."""
        described: Mapping[str, Any] = self.metadata["model"]
        return described

    @property
    def features(self) -> int:
        """Return how many features a record has before the feature map."""
        return int(self.description["features"])

    @property
    def classes(self) -> int | None:
        """Return the number of classes; None of a regression."""
        return self.description.get("classes")

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the features, in their order; () where they have none."""
        return self.names.columns

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of classes 0, 1, …; () where they have none."""
        return self.names.classes

    @cached_property
    def names(self) -> Names:
        """Return the names of columns and classes."""
        return Names.of(self.description)

    @property
    def encoder_release(self) -> int | None:
        """Return the version of the release that holds the encoder; None where there is none."""
        described = self.description.get("encoder") if self.description.get("kind") == "linear" else None
        return None if described is None else int(described["release"])

    def predict(self, x: Any, *, names: bool = False) -> NDArray[np.generic]:
        """Return the label of each record, (m,): classes, or the predicted y clipped to ±bound.

        x: (m, features) numbers, or texts where the feature map hashes those. The columns of a data frame count by name
        where the model has names of columns, else in order. names: return names of classes, as str objects.
        Raises InvalidData where x does not fit, Unsupported where the release is no model of labels, or has no names.

        >>> model.predict([[0.1, 1013.0, 3.2]])
        array([1])
        """
        if names and not self.class_names:
            raise Unsupported("The classes of this stream have no names: it was made without class_names.")
        labels, _ = self.linear.read(self.margins(x))
        return np.array(self.class_names, dtype=object)[labels] if names else labels

    def scores(self, x: Any) -> Floats:
        """Return the scores of each record, as the service's `predict` does.

        (m, classes): probabilities, or margins of `huber_hinge`; (m, 1) for a regression: the predicted y unclipped.
        """
        _, scores = self.linear.read(self.margins(x))
        return scores

    def margins(self, x: Any) -> Floats:
        """Return the products of each record with the weights, (m, 1 or classes): log-odds of `logistic`."""
        wanted = self.linear
        rows = features_of(x, self.features, self.names)
        if len(rows) and (rows.dtype.kind == "O") != wanted.feature_map.reads_text:
            raise InvalidData(f"The model reads {'texts' if wanted.feature_map.reads_text else 'numbers'}.")
        margins = wanted.margins(rows)
        unmapped = np.flatnonzero(~np.isfinite(margins).all(axis=1))
        if len(unmapped):
            raise InvalidData(f"Row {unmapped[0]} is not finite once the feature map has mapped it.")
        return margins

    def predict_proba(self, x: Any) -> Floats:
        """Return the probability of each class, (m, classes). Raises Unsupported where the loss has none."""
        if not self.has_probabilities:
            raise Unsupported(f"The loss {self.description.get('loss')} has no probabilities: use `scores`.")
        return self.scores(x)

    @property
    def has_probabilities(self) -> bool:
        """Return whether scores are probabilities of classes."""
        return self.description.get("loss") in ("logistic", "softmax")

    @cached_property
    def linear(self) -> LinearModel:
        """Return the model in the form that predicts. Raises Unsupported where the release is no model of labels."""
        return linear.build(self.description, self.parameters, self.encoder)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file that `load` reads, and any reader of such files."""
        Path(path).write_bytes(self.to_safetensors())

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Return the model of a file that `save` wrote, or that the service served."""
        return cls.from_safetensors(Path(path).read_bytes())

    def to_safetensors(self) -> bytes:
        """Return the model as a safetensors file."""
        texts = {
            name: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            for name, value in self.metadata.items()
        }
        tensors = {_WEIGHTS: self.parameters} | ({} if self.encoder is None else {_ENCODER: self.encoder})
        return safetensors.write(tensors, texts)

    @classmethod
    def from_safetensors(cls, file: bytes) -> Model:
        """Return the model of a safetensors file as the service serves it. Raises Unsupported of any other."""
        tensors, texts = safetensors.read(file)
        if _WEIGHTS not in tensors or not {"publication", "version", "model"} <= texts.keys():
            raise Unsupported("The file is no release of a Perennial publication.")
        metadata = {name: text if name in _TEXTS else _value(text) for name, text in texts.items()}
        return cls(parameters=tensors[_WEIGHTS], metadata=metadata, encoder=tensors.get(_ENCODER))

    @classmethod
    def from_json(cls, release: Mapping[str, Any], encoder: Floats | None = None) -> Model:
        """Return the model of a release as the service's JSON has it."""
        metadata = {name: value for name, value in release.items() if name != "parameters"}
        values = np.asarray(release["parameters"]["values"], dtype=np.float64)
        return cls(parameters=values, metadata=metadata, encoder=encoder)

    def to_sklearn(self) -> PrivateClassifier | PrivateRegressor:
        """Return a fitted scikit-learn estimator. Its `fit` changes nothing. Needs scikit-learn."""
        with needs("sklearn"):
            from perennial.estimators import PrivateClassifier, PrivateRegressor
        return PrivateRegressor(self) if self.linear.loss == "squared" else PrivateClassifier(self)

    def to_onnx(self) -> onnx.ModelProto:
        """Return an ONNX model with the input `x` (float32, records × features) and the outputs `labels` and `scores`.

        Feature maps and encoders are part of it. Raises Unsupported for feature maps that hash: ONNX has no hash
        functions. Needs onnx.
        """
        with needs("onnx"):
            from perennial.onnx_graph import as_onnx
        return as_onnx(self.linear, {name: str(self.metadata[name]) for name in ("publication", "version", "time")})


_TEXTS = ("publication", "role", "published_at")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
