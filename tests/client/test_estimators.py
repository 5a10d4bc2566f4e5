"""scikit-learn's own checks, on estimators that are fitted from the start.

The checks fit data of 2, 3, 4, 5 or 10 features, so each is run with a model of as many. All pass but those below,
which want `fit` to refuse data, to warn of it, or to learn from it: here `fit` reads nothing.
"""

import pickle

import numpy as np
import pandas as pd
import pytest

from perennial import Model

WIDTHS = (2, 3, 4, 5, 10)
ABOUT_FIT = {
    "check_complex_data",
    "check_dtype_object",
    "check_estimator_sparse_tag",
    "check_estimators_empty_data_messages",
    "check_estimators_nan_inf",
    "check_fit1d",
    "check_n_features_in",
    "check_supervised_y_2d",
    "check_supervised_y_no_nan",
}
ABOUT_FIT_OF = {
    "logistic": ABOUT_FIT
    | {"check_classifiers_classes", "check_classifiers_regression_target", "check_classifiers_train"},
    "squared": ABOUT_FIT | {"check_regressors_train"},
}


def model(loss: str, features: int, *, named: bool = False) -> Model:
    names = {"columns": [f"c{number}" for number in range(features)], "class_names": ["dry", "rain"]}
    described = {
        "kind": "linear",
        "loss": loss,
        "classes": 2 if loss == "logistic" else None,
        "features": features,
        "intercept": True,
        "norm_bound": 1.5,
        "feature_map": None,
        "bound": 0.4,
    } | (names if named else {})
    parameters = np.random.default_rng(0).normal(size=(1, features + 1))
    return Model(parameters=parameters, metadata={"publication": "p", "version": 1, "time": 3, "model": described})


@pytest.mark.more
@pytest.mark.filterwarnings("ignore")  # of scikit-learn's, about what it calls itself
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("loss", ABOUT_FIT_OF)
def test_checks_of_scikit_learn(loss, named):
    from sklearn.utils.estimator_checks import check_estimator

    outcomes: dict[str, set[str]] = {}
    for features in WIDTHS:
        for check in check_estimator(model(loss, features, named=named).to_sklearn(), on_fail=None, on_skip=None):
            outcomes.setdefault(check["check_name"], set()).add(check["status"])
    failed = {name for name, results in outcomes.items() if not results & {"passed", "skipped"}}
    assert failed == ABOUT_FIT_OF[loss]
    assert len(outcomes) > 40


@pytest.mark.parametrize("loss", ABOUT_FIT_OF)
def test_estimators_work_in_pipelines_and_are_pickled(loss):
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    estimator = model(loss, 3).to_sklearn()
    x = np.random.default_rng(1).normal(size=(30, 3))
    y = estimator.predict(x)
    pipeline = make_pipeline(FunctionTransformer(), estimator)
    np.testing.assert_array_equal(pipeline.predict(x), y)
    assert cross_val_score(pipeline, x, y, cv=3).tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_array_equal(estimator.predict(pd.DataFrame(x, columns=["a", "b", "c"])), y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(estimator)).predict(x), y)
    with pytest.raises(ValueError, match="expecting 3 features"):
        estimator.predict(x[:, :2])


def test_frames_are_read_by_the_names_of_columns():
    estimator, plain = (model("logistic", 3, named=named).to_sklearn() for named in (True, False))
    x = np.random.default_rng(1).normal(size=(30, 3))
    frame = pd.DataFrame(x, columns=["c0", "c1", "c2"])
    np.testing.assert_array_equal(estimator.predict(frame[["c2", "c0", "c1"]]), plain.predict(x))
    np.testing.assert_array_equal(estimator.predict(x), plain.predict(x))
    with pytest.raises(ValueError, match='There is no column "c1"'):
        estimator.predict(frame.rename(columns={"c1": "other"}))


def test_a_score_takes_names_of_classes():
    estimator = model("logistic", 2, named=True).to_sklearn()
    x = np.random.default_rng(1).normal(size=(200, 2))
    y = np.random.default_rng(2).integers(2, size=200)
    names = np.array(["dry", "rain"])[y]
    right = estimator.score(x, y)
    assert 0 < right < 1
    series = pd.Series(names)
    for labels in (names, names.tolist(), names.astype(object), series, series.astype("category"), series.to_frame()):
        assert estimator.score(x, labels) == right
    with pytest.raises(ValueError, match="y: row 1, counted from 0, is no class"):
        estimator.score(x[:2], ["dry", "snow"])


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["dry", None], dtype=object),
        pd.Series(["dry", None], dtype="string"),
        pd.Series(["dry", float("nan")]),
        pd.Series(["dry", None], dtype="category"),
    ],
)
def test_a_score_refuses_labels_that_are_missing(labels):
    estimator = model("logistic", 2, named=True).to_sklearn()
    with pytest.raises(ValueError, match="y: row 1, counted from 0, is no class"):
        estimator.score(np.zeros((2, 2)), labels)
