"""The files of records are safetensors, whoever writes them."""

import numpy as np
import pytest
from safetensors.numpy import load

from service.store.segment_files import pack, unpack

X = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    "columns",
    [
        {"x": X, "y": np.arange(4, dtype=np.int32)},
        {"x": X[::2], "y": X[:2, 1]},  # of which neither lies in one piece
        {"y": np.arange(3, dtype=np.int32)},
        {"x": X[:0], "y": X[:0, 0]},
        {"x": np.frombuffer(b"-" + X.tobytes(), np.float32, X.size, 1).reshape(X.shape)},
    ],
)
def test_safetensors_reads_what_is_packed(columns):
    packed = pack(columns)
    assert int.from_bytes(packed[:8], "little") % 8 == 0
    for read in (load, unpack):
        found = read(packed)
        assert found.keys() == columns.keys()
        for name, column in columns.items():
            assert found[name].dtype == column.dtype
            assert np.array_equal(found[name], column)


def test_the_same_columns_are_the_same_bytes():
    assert pack({"x": X}) == pack({"x": X.copy()})
    assert pack({"x": X}) != pack({"x": X.reshape(3, 4)})
