"""Records as people have them become blocks of arrays; what can't is refused without a word of its contents."""

import itertools
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from perennial.batches import ARROW, MOST_RECORDS, cut, encode, ready
from perennial.data import ROWS_GATHERED, Block, blocks, features_of
from perennial.errors import InvalidData, InvalidRow
from perennial.names import Names

X = np.array([[1.5, -2.0], [0.25, 4.0], [3.0, 0.0]])
Y = np.array([0, 1, 1])
COLUMNS = {"a": X[:, 0], "b": X[:, 1], "y": Y}


class Frame:
    """As much of a data frame as is asked of those of other libraries."""

    def __init__(self, columns: dict) -> None:
        self.columns, self._columns = list(columns), columns

    def __getitem__(self, name: str) -> pd.Series:
        return pd.Series(self._columns[name])

    def to_numpy(self) -> np.ndarray:
        return np.column_stack([*self._columns.values()])


class Stream:
    """An Arrow stream of other libraries."""

    def __init__(self, values: list) -> None:
        self._values = pa.chunked_array([values])

    def __arrow_c_stream__(self, requested: object = None) -> object:
        return self._values.__arrow_c_stream__(requested)


ROWS = [{"a": a, "b": b, "y": int(y)} for (a, b), y in zip(X, Y, strict=True)]


@pytest.mark.parametrize(
    ("data", "label"),
    [
        (pd.DataFrame(COLUMNS), "y"),
        (pd.DataFrame(COLUMNS).convert_dtypes(), "y"),
        (pd.DataFrame(COLUMNS).drop(columns="y"), pd.Series(Y)),
        (Frame(COLUMNS), "y"),
        (pa.table(COLUMNS), "y"),
        (pa.record_batch(COLUMNS), "y"),
        (pa.table(COLUMNS).to_reader(max_chunksize=2), "y"),
        (pa.table({"x": X.tolist(), "y": Y}), "y"),
        (COLUMNS, "y"),
        ({"x": X.tolist(), "y": Y}, "y"),
        (X, Y),
        (X.tolist(), Y.tolist()),
        ((X, Y), None),
        (zip(X, Y, strict=True), None),
        (zip(X.tolist(), Y.tolist(), strict=True), None),
        (iter(ROWS), "y"),
        ([{"x": x, "y": int(y)} for x, y in zip(X.tolist(), Y, strict=True)], None),
        (iter([pd.DataFrame(COLUMNS)[:1], pd.DataFrame(COLUMNS)[1:]]), "y"),
        (iter([(X[:2], Y[:2]), (X[2], Y[2])]), None),
        (iter([ROWS[0], pd.DataFrame(ROWS[1:])]), "y"),
    ],
)
def test_records_are_the_same_in_every_form(data, label):
    pieces = list(blocks(data, label))
    np.testing.assert_array_equal(np.concatenate([block.x for block in pieces]), X)
    np.testing.assert_array_equal(np.concatenate([block.y for block in pieces]), Y)


def test_columns_are_chosen_by_name_and_in_that_order():
    (block,) = blocks(pd.DataFrame(COLUMNS), "y", ["b", "a"])
    np.testing.assert_array_equal(block.x, X[:, ::-1])
    (block,) = blocks(iter(ROWS), "y", ["b"])
    np.testing.assert_array_equal(block.x, X[:, 1:])


def test_labels_alone_are_records_of_categories():
    for data, label in ((None, Y), (pd.DataFrame({"y": Y}), "y"), (iter([{"y": 0}, {"y": 1}, {"y": 1}]), "y")):
        (block,) = blocks(data, label)
        assert block.x is None
        np.testing.assert_array_equal(block.y, Y)


def test_records_without_labels():
    for data in (X, X.tolist(), pd.DataFrame(X, columns=["a", "b"])):
        (block,) = blocks(data)
        assert block.y is None
        np.testing.assert_array_equal(block.x, X)


def test_texts_stay_texts():
    titles = ["one two", "three"]
    for data in (titles, np.array(titles), pd.DataFrame({"title": titles}), Frame({"title": titles})):
        (block,) = blocks(data, [0, 1])
        assert block.has_texts
        assert block.x.tolist() == [["one two"], ["three"]]


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32", "uint64", "float16", "float32", "float64"])
def test_columns_of_arrow_tables_are_read_from_where_they_begin(kind):
    values = np.arange(9, dtype=kind)
    table = pa.table({"a": values}).slice(2)
    for given in (table, table.to_batches()[0], pa.concat_tables([table.slice(0, 3), table.slice(3)])):
        (block,) = blocks(given)
        np.testing.assert_array_equal(block.x[:, 0], values[2:])
    with pytest.raises(InvalidData, match="same name"):
        list(blocks(pa.table([values, values], names=["a", "a"])))


def test_to_read_a_table_and_to_encode_it_takes_no_pandas():
    """Its import takes longer than to read a million records."""
    code = """
import sys
import pyarrow as pa
from pyarrow.csv import read_csv
from perennial.batches import cut
from perennial.data import blocks
(batch,) = cut(blocks(read_csv(pa.py_buffer(b"a,b\\n1.5,0\\n2,1\\n")), "b"))
assert batch.body and "pandas" not in sys.modules, sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("y", [None, Y, [0.5, 1.5, 2.5]])
@pytest.mark.parametrize("unit", [None, ["anna", "bert", "anna"]])
def test_a_body_is_what_a_writer_of_arrow_streams_writes(y, unit):
    block = Block(
        x=X, y=None if y is None else np.array(y), unit=None if unit is None else np.array(unit, dtype=object)
    )
    media_type, body = encode(block)
    assert media_type == ARROW
    sink = pa.BufferOutputStream()
    with pa.ipc.open_stream(body) as read, pa.ipc.new_stream(sink, read.schema) as writer:
        (batch,) = read
        writer.write_batch(batch)
    assert body == sink.getvalue().to_pybytes()


def test_rows_are_gathered_and_blocks_are_cut():
    sizes = [len(block) for block in blocks([1.0, 2.0] for _ in range(ROWS_GATHERED + 5))]
    assert sizes == [ROWS_GATHERED, 5]
    batches = list(cut(blocks(np.zeros((MOST_RECORDS + 1, 2)))))
    assert [(batch.first, len(batch.block)) for batch in batches] == [(0, MOST_RECORDS), (MOST_RECORDS, 1)]
    wide = next(cut(blocks(np.zeros((8, 2**16)))))
    assert (len(wide.block), len(wide.body[1]) < 2**20) == (3, True)
    assert len(next(cut(blocks(np.zeros((8, 2**20))))).block) == 1
    assert len(next(cut(blocks(np.zeros((8, 2))), most=5)).block) == 5
    assert list(cut(blocks(np.zeros((0, 2))))) == []


@pytest.mark.parametrize("pieces", [[7], [1, 6], [3, 3, 1], [0, 5, 2], [1] * 7])
def test_batches_are_the_same_however_records_come(pieces):
    """So that a call that is repeated with its key sends the same batches, whoever cuts the pieces."""
    x, ends = np.arange(14.0).reshape(7, 2), np.cumsum(pieces)
    batches = list(cut(blocks(iter([x[end - size : end] for size, end in zip(pieces, ends, strict=True)])), 3))
    assert [(batch.first, len(batch.block)) for batch in batches] == [(0, 3), (3, 3), (6, 1)]
    np.testing.assert_array_equal(np.concatenate([batch.block.x for batch in batches]), x)


@pytest.mark.parametrize("values", [["one", "two", "three"], [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("unit", [None, ["anna", "bert", "anna"]])
def test_pieces_without_records_are_passed_over(values, unit):
    """A filter may leave a part of a file empty. Its columns don't say whether they would hold texts."""
    frame = pd.DataFrame({"t": values, "y": ["1", "0", "1"]})
    pieces = iter([frame[:0], frame[:2], frame[:0], frame[2:]])
    (batch,) = cut(blocks(pieces, "y", names=Names(classes=("1", "0")), unit=unit))
    assert batch.block.x[:, 0].tolist() == values
    assert batch.block.y.tolist() == [0, 1, 0]


def preparing() -> list[threading.Thread]:
    """Return the threads that prepare batches; those of a service that runs beside this test come and go."""
    return [each for each in threading.enumerate() if each.name.startswith("batches")]


def test_batches_that_a_thread_prepares_are_the_same():
    x = np.arange(200.0).reshape(100, 2)
    expected = list(cut(blocks((x, x[:, 0])), 3))
    prepared = [batch for group in ready(cut(blocks((x, x[:, 0])), 3)) for batch in group]
    for prepare in ("first", "digest", "body"):
        assert [getattr(batch, prepare) for batch in prepared] == [getattr(batch, prepare) for batch in expected]
    assert not preparing()


def test_of_batches_that_a_thread_prepares_those_before_an_error_come():
    pieces, came = iter([x := np.zeros((3, 2)), x, x + np.nan, x]), []
    with pytest.raises(InvalidRow) as refused:
        for group in ready(cut(blocks(pieces), 3)):
            came += [batch.first for batch in group]
    assert (came, refused.value.row) == ([0, 3], 6)
    groups = ready(cut(blocks(x for _ in itertools.count()), 3))
    came = [batch.first for batch in itertools.chain.from_iterable(itertools.islice(groups, 9))]
    assert came == list(range(0, 3 * len(came), 3))
    assert len(preparing()) == 1
    groups.close()
    assert not preparing()


def test_a_row_is_counted_from_the_first_of_all_pieces():
    pieces = [pd.DataFrame({"a": [1.0, 2.0]}), pd.DataFrame({"a": [3.0, np.nan]})]
    with pytest.raises(InvalidRow, match="Column 'a': row 3, counted from 0, is missing") as refused:
        list(blocks(iter(pieces)))
    assert refused.value.row == 3


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([np.zeros((2, 2)), np.zeros((2, 3))], "more features"),
        ([np.zeros((2, 1)), np.array([["text"]])], "texts"),
        ([np.zeros((2, 2)), (np.zeros((2, 2)), np.zeros(2))], "others have none"),
    ],
)
def test_pieces_that_are_not_alike_are_refused(pieces, message):
    with pytest.raises(InvalidData, match=message):
        list(cut(blocks(iter(pieces))))


MASKED = np.ma.masked_array(X, mask=[[0, 0], [0, 1], [0, 0]])


@pytest.mark.parametrize(
    ("data", "label", "unit"),
    [
        (MASKED, None, None),
        ((MASKED, Y), None, None),
        (MASKED, Y, None),
        (MASKED.tolist(fill_value=0.0), np.ma.masked_array(Y, mask=[0, 1, 0]), None),
        ((X, np.ma.masked_array(Y, mask=[0, 1, 0])), None, None),
        ({"a": X[:, 0], "b": MASKED[:, 1]}, None, None),
        ({"a": X[:, 0], "y": np.ma.masked_array(Y, mask=[0, 1, 0])}, "y", None),
        ({"x": MASKED}, None, None),
        ({"x": [*MASKED]}, None, None),
        (iter(MASKED), None, None),
        (zip(MASKED, Y, strict=True), None, None),
        (iter([MASKED[:1], MASKED[1:]]), None, None),
        (X, Y, np.ma.masked_array(Y, mask=[0, 1, 0])),
    ],
)
def test_what_is_masked_is_missing(data, label, unit):
    with pytest.raises(InvalidRow) as refused:
        list(blocks(data, label, unit=unit))
    assert refused.value.row == 1


def test_an_array_where_nothing_is_masked_is_read():
    (block,) = blocks(np.ma.masked_array(X), np.ma.masked_array(Y, mask=[0, 0, 0]))
    np.testing.assert_array_equal(block.x, X)


SECRET = "a secret"


@pytest.mark.parametrize(
    ("data", "label", "message"),
    [
        (pd.DataFrame({"a": [1.0, SECRET], "y": [0, 1]}), "y", "'a'"),
        (pd.DataFrame({"a": [1.0, np.nan], "y": [0, 1]}), "y", "Column 'a': row 1"),
        (pd.DataFrame({"a": [1.0, 2.0], "y": [SECRET, SECRET]}), "y", "'y'"),
        (
            pd.DataFrame({"a": [1.0, 2.0], "b": ["1", SECRET], "y": [0, 1]}),
            "y",
            "Column 'b': row 1, counted from 0, is no number such as 1234.5, but column 'a' holds numbers",
        ),
        (pd.DataFrame({"a": [1.0], "b": ["1"]}), None, "Column 'b' holds texts, and column 'a' numbers"),
        (pd.DataFrame({"a": [1.0, 2.0], "y": [SECRET, None]}), "y", "Column 'y': row 1, counted from 0, is missing"),
        ({"a": X[:2, 0], "y": pd.array([SECRET, pd.NA], dtype="string")}, "y", "Column 'y': row 1, .* is missing"),
        (X[:2], np.array([SECRET, np.nan], dtype=object), "The labels: row 1, .* is missing"),
        (X[:2], np.array([SECRET, 1], dtype=object), "The labels: some values are texts, and others numbers"),
        (X[:2], np.array([1, {}], dtype=object), "The labels: values of type dict are neither numbers nor texts"),
        (
            X[:2],
            np.array([1, [[1], [2, 3]]], dtype=object),
            "The labels: values of type list are neither numbers nor texts",
        ),
        ({"a": [SECRET, np.nan]}, None, "Column 'a': some values are texts, and others numbers or missing"),
        ({"a": [[SECRET, 1.5]]}, None, "Column 'a': some values are texts"),
        ([[SECRET, 1.5]], None, "some values are texts"),
        ([SECRET, np.nan], [0, 1], "some values are texts"),
        ([["1", 2.5]], None, "some values are texts"),
        (iter([{"a": SECRET, "b": 1.5}]), None, "some values are texts"),
        (np.array([SECRET, np.nan], dtype=object), None, "some values are texts"),
        (pd.DataFrame({"a": [1.0], "y": [0]}), "z", r"'z'\."),
        (pd.DataFrame({"a;y": [SECRET]}), "y", "'y', but one with semicolons"),
        (pd.DataFrame({"a\ty": [SECRET]}), "y", "'y', but one with tabs"),
        (pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), None, "same name"),
        (pd.DataFrame({"a": pd.to_datetime(["2026-01-01"])}), None, "datetime64"),
        (pd.DataFrame({"a": [1.0, None], "y": [0, 1]}).convert_dtypes(), "y", "'a'"),
        ([[1.0, 2.0], [3.0]], [0, 1], "lengths"),
        (iter([[1.0, 2.0], [3.0]]), None, "lengths"),
        (iter([([1.0], 1), [2.0]]), None, "others have none"),
        (iter([{"a": 1.0, "y": 1}, {"a": 2.0}]), "y", "lacks a column"),
        (iter([SECRET]), None, "row"),
        (X, "y", "has no columns"),
        (X.tolist(), "y", "has no columns"),
        (iter(X), "y", "has no columns"),
        (zip(X, Y, strict=True), "y", "has no columns"),
        (iter([(X, Y)]), "y", "has no columns"),
        (iter([([[1.0], [1.0, 2.0]], [0, 1])]), None, "lengths"),
        (iter([{"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}]), "y", "lengths"),
        (iter([{"a": 1.0, "b": [[1.0], [2.0, 3.0]]}]), None, "neither numbers|lengths"),
        (X, [0, 1], "3 rows of features and 2 labels"),
        (X, [[0, 1], [0, 1], [0, 1]], "one number"),
        (np.array([[1e39, 0.0]]), None, "row 0"),
        ([[1, 1], [10**400, 1]], None, "The features: row 1, counted from 0, is missing or not finite"),
        ({"a": [1, -(10**400)]}, None, "Column 'a': row 1"),
        ({"a": [[1, 2.5], [10**400, 1]]}, None, "Column 'a': row 1"),
        (iter([{"a": 1}, {"a": 10**400}]), None, "row 1"),
        (X, [0, 1, 10**400], "The labels: row 2"),
        ({"a": [1, 2], "b": [3]}, None, "Column 'a' has 2 rows, and column 'b' has 1"),
        (pd.Series([1.0, 2.0]), None, "no table"),
        (pd.Series([SECRET, SECRET], name="title"), [0, 1], "no table"),
        (iter([pd.Series([1.0, 2.0])]), None, "no table"),
        (pa.chunked_array([[1.0, 2.0]]), None, "no table"),
        (Stream([1.0, 2.0]), None, "no table"),
        (SECRET, None, "Give a data frame"),
        (7, None, "Give a data frame"),
        (None, None, "no records"),
    ],
)
def test_what_is_no_record_is_named_and_not_repeated(data, label, message):
    with pytest.raises(InvalidData, match=message) as refused:
        list(blocks(data, label))
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_features_of_another_number_are_refused():
    assert features_of(pd.DataFrame(X)).shape == (3, 2)
    with pytest.raises(InvalidData, match=r"frame.iloc\[\[0\]\] of a row"):
        features_of(pd.DataFrame(X).iloc[0])
    with pytest.raises(InvalidData, match=r"takes 3 features, but there are 2\."):
        features_of(X, 3)
    with pytest.raises(InvalidData, match="give a single record as a list of one row"):
        features_of(np.ones(3), 3)
    with pytest.raises(InvalidData, match=r"give a list of rows, such as \[row\]"):
        features_of({"a": 1.0, "b": 2.0}, 2)
    with pytest.raises(InvalidRow, match="The features: row 0"):
        features_of(None, 3)


IDS = ["anna", "7", 7]


@pytest.mark.parametrize(
    ("data", "label", "unit"),
    [
        (pd.DataFrame(COLUMNS | {"who": IDS}), "y", "who"),
        (pa.table(COLUMNS | {"who": [str(each) for each in IDS]}), "y", "who"),
        (pd.DataFrame(COLUMNS), "y", IDS),
        (COLUMNS | {"who": np.array(IDS, dtype=object)}, "y", "who"),
        ({"a": X[:, 0], "b": X[:, 1], "who": pd.Series(IDS)}, Y, "who"),
        (X, Y, IDS),
        ((X, Y), None, pd.Series(IDS)),
        (zip(X, Y, strict=True), None, IDS),
        (iter([row | {"who": each} for row, each in zip(ROWS, IDS, strict=True)]), "y", "who"),
        ([{"x": x, "y": int(y), "unit": each} for x, y, each in zip(X.tolist(), Y, IDS, strict=True)], None, None),
    ],
)
def test_units_are_the_same_in_every_form(data, label, unit):
    pieces = list(blocks(data, label, unit=unit))
    np.testing.assert_array_equal(np.concatenate([block.x for block in pieces]), X)
    np.testing.assert_array_equal(np.concatenate([block.y for block in pieces]), Y)
    assert [str(each) for block in pieces for each in block.unit] == ["anna", "7", "7"]
    batches = list(cut(iter(pieces), 2))
    assert [[str(each) for each in batch.block.unit] for batch in batches] == [["anna", "7"], ["7"]]


@pytest.mark.parametrize(
    ("data", "label", "unit", "message"),
    [
        (pd.DataFrame({"a": [1.0, 2.0], "who": [SECRET, None]}), None, "who", "'who': the id in row 1"),
        (pd.DataFrame({"a": [1.0], "who": [1.5]}), None, "who", "'who': values of type float64"),
        (pd.DataFrame({"a": [1.0], "who": [True]}), None, "who", "type bool"),
        (pd.DataFrame({"a": [1.0]}), None, "who", "'who'"),
        (X, Y, "who", "arrays"),
        (X.tolist(), Y, "who", "arrays"),
        (zip(X.tolist(), Y, strict=True), None, "who", "arrays"),
        (iter([[1.0, 2.0]]), None, "who", "arrays"),
        (X, Y, IDS[:2], "3 records and 2 ids"),
        (iter([]), None, IDS, "no records, but 3 ids"),
        (iter([{"x": [1.0], "unit": SECRET}, {"x": [1.0]}]), None, None, "others have none"),
        ((X, Y), None, np.array([IDS]), "one id for each record"),
        ((X, Y), None, [IDS], "the id in row 0"),
        ((X, Y), None, ["anna", 1.5, SECRET], "the id in row 1"),
        ((X, Y), None, [SECRET, "anna", True], "the id in row 2"),
        ((X, Y), None, ["anna", SECRET + "\ud800", "b"], "the id in row 1"),
    ],
)
def test_ids_that_are_none_are_refused(data, label, unit, message):
    with pytest.raises(InvalidData, match=message) as refused:
        list(blocks(data, label, unit=unit))
    assert SECRET not in str(refused.value)


SPARSE = "this matrix is sparse: give matrix.toarray()"


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_array"])
def test_sparse_matrices_are_refused_in_words(kind):
    from scipy import sparse

    matrix = getattr(sparse, kind)(X)
    for data in (matrix, (matrix, Y), {"a": matrix}, [matrix]):
        with pytest.raises(InvalidData, match=SPARSE.replace("(", r"\(").replace(")", r"\)")):
            list(blocks(data))
    with pytest.raises(InvalidData, match="sparse"):
        features_of(matrix)


@pytest.mark.parametrize("number", [int, np.int64])
def test_a_number_names_a_column_of_a_frame_whose_columns_have_numbers(number):
    frame = pd.DataFrame(np.column_stack([X, Y]))
    (block,) = blocks(frame, label=number(2))
    assert (block.x.tolist(), block.y.tolist()) == (X.tolist(), Y.tolist())
    for other, label, message in (
        (frame, 3, "There is no column 3"),
        (pd.DataFrame(COLUMNS), 2, "There is no column 2"),
        (X, 1, "An array has no columns: give labels and units as arrays"),
    ):
        with pytest.raises(InvalidData, match=message):
            list(blocks(other, label=number(label)))
    with pytest.raises(InvalidData, match="There is no column 9"):
        list(blocks(pd.DataFrame(COLUMNS), label="y", unit=number(9)))


@pytest.mark.parametrize("index", ["y", ["y", "a"], ["a", "y"]])
def test_a_label_or_a_unit_in_an_index_is_refused_with_what_to_do(index):
    frame = pd.DataFrame(COLUMNS).set_index(index)
    reset = r"'y' is the frame's index, and no column: give frame.reset_index\(\)"
    with pytest.raises(InvalidData, match=reset):
        list(blocks(frame, label="y"))
    with pytest.raises(InvalidData, match=reset):
        list(blocks(frame, label=Y, unit="y"))
    assert len(next(blocks(frame.reset_index(), label="y"))) == len(Y)
