"""Rows of an iterable: the first says which columns there are, and names say which values are of which."""

import sqlite3
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from perennial.batches import cut
from perennial.data import blocks
from perennial.errors import InvalidData, InvalidRow
from tests.client.test_data import COLUMNS, ROWS, X, Y


@pytest.mark.parametrize(
    "items",
    [
        [*ROWS[:2], dict(reversed(ROWS[2].items()))],
        [pd.DataFrame(COLUMNS)[:2], pd.DataFrame(COLUMNS)[2:][["b", "y", "a"]]],
        [ROWS[0], pa.table(COLUMNS).slice(1).select(["y", "b", "a"])],
        [pd.DataFrame(X[:2]).assign(y=Y[:2]), pd.DataFrame(X[2:])[[1, 0]].assign(y=Y[2:])],
    ],
)
def test_the_first_item_says_in_which_order_columns_are(items):
    pieces = list(blocks(iter(items), "y"))
    np.testing.assert_array_equal(np.concatenate([block.x for block in pieces]), X)


def test_records_by_name_are_in_the_order_of_the_first():
    (block,) = blocks(iter([{"x": {"a": 1, "y": 2}, "y": 0}, {"x": {"y": 4, "a": 3}, "y": 1}]), "y")
    assert block.x.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("items", "label", "row"),
    [
        ([{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 5, "secret": 6}], None, 2),
        ([{"a": 1, "b": 2}, {"a": 3, "b": 4, "secret": 6}], None, 1),
        ([{"a": 1, "b": 2, "y": 0}, {"a": 3, "y": 1}], "y", 1),
        ([{"x": {"a": 1, "b": 2}}, {"x": {"a": 1, "secret": 2}}], None, 1),
        ([pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(X, columns=["a", "secret"])], None, 3),
        ([{"a": 1, "b": 2}, pd.DataFrame(X, columns=["a", "secret"])], None, 1),
    ],
)
def test_items_of_other_columns_than_the_first_are_refused(items, label, row):
    with pytest.raises(InvalidRow, match=f"row {row}, counted from 0, has other columns") as refused:
        list(blocks(iter(items), label))
    assert refused.value.row == row
    assert "secret" not in str(refused.value)


def test_a_row_of_a_frame_is_counted_after_the_rows_before_it():
    with pytest.raises(InvalidRow) as refused:
        list(blocks(iter([{"a": 1.0}, {"a": 2.0}, pd.DataFrame({"a": [3.0, np.nan]})])))
    assert refused.value.row == 3


@pytest.mark.parametrize("label", [None, Y])
@pytest.mark.parametrize("data", [X, X.tolist(), [tuple(row) for row in X], [{"x": row} for row in X.tolist()]])
def test_features_are_not_chosen_where_there_are_no_names(data, label):
    with pytest.raises(InvalidData, match="has no columns"):
        list(blocks(data, label, ["b", "a"]))


@pytest.mark.parametrize(
    ("data", "label", "features"),
    [
        (pd.DataFrame(COLUMNS)[["b", "y", "a"]].itertuples(index=False), "y", ["a", "b"]),
        (pd.DataFrame(COLUMNS).assign(other=0).itertuples(), "y", ["a", "b"]),
        (zip(pd.DataFrame(X, columns=["a", "b"]).itertuples(index=False), Y, strict=True), None, None),
        (zip(pd.DataFrame(X[:, ::-1], columns=["b", "a"]).itertuples(index=False), Y, strict=True), None, ["a", "b"]),
        ([*pd.DataFrame(COLUMNS)[["b", "a"]].itertuples(index=False)], Y, ["a", "b"]),
        ([{"b": b, "a": a} for a, b in X], Y, ["a", "b"]),
        ([{"x": {"b": b, "a": a, "other": 0}, "y": y} for (a, b), y in zip(X, Y, strict=True)], None, ["a", "b"]),
        ([{"x": x, "y": int(y)} for x, y in zip(X.tolist(), Y, strict=True)], "y", ["x"]),
    ],
)
def test_rows_with_names_are_read_by_these(data, label, features):
    (block,) = blocks(data, label, features)
    np.testing.assert_array_equal(block.x, X)
    np.testing.assert_array_equal(block.y, Y)


def test_a_row_without_a_wanted_feature_is_named():
    with pytest.raises(InvalidRow, match="row 1, counted from 0, lacks a column"):
        list(blocks(iter([{"x": {"a": 1}}, {"x": {"b": 1}}]), features=["a"]))


@pytest.mark.parametrize("kind", ["int64", "float32"])
def test_a_null_in_a_table_is_missing(kind):
    """The memory beneath it holds some number."""
    with pytest.raises(InvalidRow, match="Column 'a': row 1, counted from 0, is missing"):
        list(blocks(pa.table({"a": pa.array([1, None, 3], kind)})))


def _filled_again(shape: tuple[int, ...], times: int) -> Iterator[np.ndarray]:
    """Yield one array again and again, each time with the next numbers, as readers do that spare memory."""
    array = np.empty(shape)
    for first in range(0, times * array.size, array.size):
        array.flat = np.arange(first, first + array.size)
        yield array


@pytest.mark.parametrize(
    ("items", "records"),
    [
        (lambda: _filled_again((5, 1), 4), 20),
        (lambda: ((x, x[:, 0]) for x in _filled_again((5, 1), 4)), 20),
        (lambda: ({"x": x} for x in _filled_again((5, 1), 4)), 20),
        (lambda: _filled_again((1,), 6), 6),
        (lambda: ((x, x[..., 0]) for x in _filled_again((1,), 6)), 6),
        (lambda: map(_Tensor, _filled_again((1,), 6)), 6),
        (lambda: ({"x": x, "y": x[..., 0]} for x in _filled_again((1,), 6)), 6),
    ],
    ids=["arrays", "pairs of arrays", "columns", "rows", "pairs of rows", "tensors", "records"],
)
@pytest.mark.parametrize("ids", [False, True], ids=["without units", "with units"])
def test_an_array_that_is_filled_again_is_sent_as_it_was_each_time(items, records, ids):
    """Else the records at the end of an array would be lost, and later ones sent twice."""
    batches = list(cut(blocks(items(), unit=np.arange(records) if ids else None), 3))
    assert np.concatenate([batch.block.x[:, 0] for batch in batches]).tolist() == list(range(records))
    assert [y for batch in batches for y in (() if batch.block.y is None else batch.block.y)] in (
        [],
        list(range(records)),
    )


def test_a_frame_that_is_filled_again_is_sent_as_it_was_each_time():
    """Else features of one filling would be sent with labels of the next."""
    frame = pd.DataFrame({"a": np.zeros(5), "y": np.zeros(5)})

    def fillings() -> Iterator[pd.DataFrame]:
        for first in range(0, 20, 5):
            for column in frame:
                frame.loc[:, column] = np.arange(first, first + 5.0)
            yield frame

    batches = list(cut(blocks(fillings(), label="y"), 3))
    for values in ([batch.block.x[:, 0] for batch in batches], [batch.block.y for batch in batches]):
        assert np.concatenate(values).tolist() == list(range(20))


@pytest.mark.parametrize("made", [lambda row: row, lambda row: (row, 1)], ids=["rows", "pairs"])
def test_rows_that_cannot_be_copied_are_read(made):
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    (block,) = blocks(map(made, connection.execute("SELECT 1.0, 2.0 UNION ALL SELECT 3.0, 4.0")))
    assert block.x.tolist() == [[1, 2], [3, 4]]
    connection.close()


class _Tensor:
    """Offers its memory to numpy, as tensors do."""

    def __init__(self, array: np.ndarray) -> None:
        self.ndim, self._array = array.ndim, array

    def __array__(self, dtype: None = None, copy: bool | None = None) -> np.ndarray:
        return self._array.copy() if copy else self._array
