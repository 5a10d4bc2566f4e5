"""httpx and numpy are enough; what needs more names it."""

import subprocess
import sys

import numpy as np
import pytest

import perennial
from tests.client.test_estimators import model

OPTIONAL = (
    "pandas",
    "polars",
    "pyarrow",
    "sklearn",
    "onnx",
    "tqdm",
    "service",
    "obstore",
    "nats",
    "asyncio",
    "sqlite3",
)


def test_nothing_optional_is_imported_before_it_is_wanted():
    code = f"import sys, perennial.__main__; print(sorted(set({OPTIONAL}) & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize(
    ("missing", "extra", "call"),
    [
        ("pandas", "pandas", lambda _: perennial.Table([{"a": 1}]).to_frame()),
        ("sklearn.base", "sklearn", lambda made: made.to_sklearn()),
        ("onnx", "onnx", lambda made: made.to_onnx()),
    ],
)
def test_what_is_missing_is_named(monkeypatch, missing, extra, call):
    for module in ("perennial.estimators", "perennial.onnx_graph"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{missing}.*\[{extra}\]"):
        call(model("logistic", 2))


def test_numpy_alone_predicts():
    assert model("logistic", 2).predict(np.zeros((3, 2))).shape == (3,)


def test_masked_arrays_are_loaded_only_where_somebody_uses_them():
    program = "import sys, numpy; from perennial.data import blocks; list(blocks(numpy.ones((2, 1))))"
    program += "; print('numpy.ma' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
