"""Releases as scikit-learn estimators: fitted already, and frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array, validate_data

from perennial.data import features_of

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from perennial.model import Floats, Model


class _Frozen(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """An estimator whose parameter is a model: it is fitted as soon as it is made, and so is every clone of it."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002, N803 - scikit-learn's names
        """Return the estimator unchanged: the service fitted the release."""
        return self

    @property
    def n_features_in_(self) -> int:
        """Return how many features a record has."""
        return self.model.features

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Self:
        return type(self)(self.model)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.string = self._reads_text
        return tags

    @property
    def _reads_text(self) -> bool:
        return self.model.linear.feature_map.reads_text

    def _checked(self, x: Any) -> Any:
        """Return X in the order of the model's columns, as scikit-learn checks it; texts as they are."""
        if self._reads_text:
            return x
        if self.model.columns and hasattr(x, "columns"):
            x = features_of(x, self.model.features, self.model.names)
        return validate_data(self, check_array(x, dtype=np.float64, estimator=self), reset=False)


class PrivateClassifier(ClassifierMixin, _Frozen):  # type: ignore[misc] # scikit-learn has no types
    """A released classifier. `predict_proba` is there where the loss has probabilities."""

    @property
    def classes_(self) -> NDArray[np.int64]:
        """Return the labels 0 … classes - 1."""
        return np.arange(self.model.classes or 0)

    def predict(self, X: Any) -> NDArray[np.generic]:  # noqa: N803
        """Return the class of each record, (m,)."""
        return self.model.predict(self._checked(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return the share of records that are predicted right. y: classes 0, 1, …, or their names."""
        classes = np.asarray(y)
        if self.model.class_names and any(isinstance(name, str) for name in classes.flat):
            classes = self.model.names.numbers(classes.ravel(), "y")
        return float(super().score(X, classes, sample_weight))

    def decision_function(self, X: Any) -> Floats:  # noqa: N803
        """Return (m,) scores that are positive for class 1 of two classes, or (m, classes) scores of more."""
        margins = self.model.margins(self._checked(X))
        if margins.shape[1] == 2:
            return np.asarray(margins[:, 1] - margins[:, 0])
        return margins[:, 0] if margins.shape[1] == 1 else margins

    @available_if(lambda self: self.model.has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """Return the probability of each class, (m, classes)."""
        return self.model.predict_proba(self._checked(X))


class PrivateRegressor(RegressorMixin, _Frozen):  # type: ignore[misc] # scikit-learn has no types
    """A released regression."""

    def predict(self, X: Any) -> NDArray[np.generic]:  # noqa: N803
        """Return the predicted y of each record, (m,), clipped to ±bound."""
        return self.model.predict(self._checked(X))
