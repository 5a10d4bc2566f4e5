"""Samples in files of several kinds hold the same records."""

import json
import struct

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from service.explorer import sample as samples
from service.explorer import tables
from service.explorer.sample import Unusable, read_sample

RECORDS = [{"cost": number / 7, "kind": "yes" if number % 3 else "no", "weight": -number} for number in range(450)]


def _csv(path):
    rows = [[repr(each["cost"]), each["kind"], str(each["weight"])] for each in RECORDS]
    path.write_text("\n".join(",".join(row) for row in [["cost", "kind", "weight"], *rows]))


def _ndjson(path):
    path.write_text("\n".join(json.dumps(dict(reversed(each.items()))) for each in RECORDS) + "\n\n")


def _stream(path):
    table = pa.Table.from_pylist(RECORDS)
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


def _arrow(path):
    table = pa.Table.from_pylist(RECORDS)
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


WRITERS = {
    "sample.csv": _csv,
    "sample.ndjson": _ndjson,
    "sample.parquet": lambda path: parquet.write_table(pa.Table.from_pylist(RECORDS), path, row_group_size=100),
    "stream.arrow": _stream,
    "file.ARROW": _arrow,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_of_any_kind_holds_the_same_sample(tmp_path, name):
    WRITERS[name](tmp_path / name)
    sample = read_sample(tmp_path / name, "kind")
    assert sorted(sample.columns) == ["cost", "weight"]
    np.testing.assert_array_equal(sample.x[:, sample.columns.index("cost")], [each["cost"] for each in RECORDS])
    np.testing.assert_array_equal(sample.x[:, sample.columns.index("weight")], -np.arange(450.0))
    assert [sample.classes[code] for code in sample.y] == [each["kind"] for each in RECORDS]


def test_values_are_of_their_columns_in_whatever_order_they_come(tmp_path):
    path = tmp_path / "sample.ndjson"
    turned = [dict(reversed(each.items())) if number % 2 else each for number, each in enumerate(RECORDS)]
    path.write_text("".join(json.dumps(each) + "\n" for each in turned))
    sample = read_sample(path, "kind")
    np.testing.assert_array_equal(sample.x[:, sample.columns.index("cost")], [each["cost"] for each in RECORDS])
    turned[7] |= {"more": 1}
    path.write_text("".join(json.dumps(each) + "\n" for each in turned))
    with pytest.raises(Unusable, match="line 8 has other columns"):
        read_sample(path, "kind")


def test_of_a_long_file_the_first_records_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "MAX_RECORDS", 420)
    _csv(tmp_path / "sample.csv")
    sample = read_sample(tmp_path / "sample.csv", "kind")
    np.testing.assert_array_equal(sample.x[:, sample.columns.index("weight")], -np.arange(420.0))


def test_records_as_a_stream_takes_them_are_a_sample(tmp_path):
    path = tmp_path / "records.ndjson"
    path.write_text("".join(json.dumps({"x": [number, 0.5], "y": number / 500}) + "\n" for number in range(450)))
    sample = read_sample(path, "y", bound=1.0)
    assert (sample.columns, sample.classes, sample.bound) == (("x[0]", "x[1]"), (), 1.0)
    np.testing.assert_array_equal(sample.y, np.arange(450) / 500)


@pytest.mark.parametrize(
    ("name", "text", "bound", "why"),
    [
        ("a.ndjson", '{"x": 1, "y": 2}\n[1, 2]\n', None, "line 2 is no object"),
        ("a.ndjson", '{"x": 1, "y": 2}\n{"x": 1}\n', None, "line 2 has other columns"),
        ("a.ndjson", '{"x": 1, "y": 2}\nx\n', None, "line 2 is no JSON"),
        (
            "a.ndjson",
            '{"x": 1, "y": 2}\n{"x": 1%s, "y": 2}\n' % ("0" * 5000),
            None,
            "line 2 is no JSON, or has a number",
        ),
        ("a.ndjson", '{"x": 1%s, "y": 2}\n' % ("0" * 400), None, "line 1: column x is not a finite number"),
        ("a.ndjson", '{"x": null, "y": 2}\n', None, "line 1: column x is not a finite number"),
        ("a.ndjson", '{"x": 1, "y": null}\n', None, "line 1 has no label"),
        ("a.csv", "x,y\n1,2\n1,\n", None, "line 3 has no label"),
        ("a.csv", '\nx,y\n\n"1\n",2\n1\n', None, "line 6 has 1 values, and the header 2 names"),
        ("a.csv", "\n", None, "the file is empty"),
        ("a.ndjson", "", None, "the file is empty"),
        ("a.csv", "x,y\n1,2\n1e39,2\n", None, "line 3: column x is not a finite number of 32 bits"),
        ("a.csv", "x;y\n1,5;2\n", None, "no column y: semicolons separate its values"),
        ("a.csv", "x,x,y\n", None, "two columns have the same name"),
        ("a.csv", f"x,y\n1,2\n{140_000 * chr(49)},2\n", None, "line 3 is no CSV: a value is too long"),
        ("a.csv", "x,y\n1,2\n1,-2.5\n", 2.0, "line 3: the label is no number within ±2"),
        ("a.csv", "x,y\n1,much\n", 2.0, "line 2: the label is no number within ±2"),
        ("a.csv", "x,y\n" + "1,2\n" * 400, 2.0, "all labels are the same"),
        ("a.parquet", "no parquet", None, "damaged, or not what its ending"),
        ("a.arrow", "no arrow", None, "damaged, or not what its ending"),
    ],
)
def test_a_file_that_holds_no_sample_is_refused(tmp_path, name, text, bound, why):
    (tmp_path / name).write_text(text)
    with pytest.raises(Unusable, match=why):
        read_sample(tmp_path / name, "y", bound)


def _with_a_text_beyond_its_end(content):
    """Return a file in which the last label of the first batch ends beyond all texts."""
    last = np.cumsum([len(each["kind"]) for each in RECORDS[:100]]).astype("<i4")[-2:]
    assert last.tobytes() in content
    return content.replace(last.tobytes(), (last + np.array([0, 100], "<i4")).tobytes(), 1)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("stream.arrow", lambda content: content[: len(content) // 2]),
        ("stream.arrow", _with_a_text_beyond_its_end),
        ("file.ARROW", _with_a_text_beyond_its_end),
        ("sample.parquet", lambda content: content[:4] + bytes(200) + content[204:]),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, name, damage):
    WRITERS[name](tmp_path / name)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(Unusable, match="damaged, or not what its ending"):
        read_sample(tmp_path / name, "kind")


@pytest.mark.parametrize("size", [2**62, 2**63 - 1])
def test_a_damaged_file_that_asks_for_more_memory_than_there_is_is_refused(tmp_path, size):
    path = tmp_path / "stream.arrow"
    _stream(path)
    with path.open("rb") as opened:
        _, batch, *_ = ipc.MessageReader.open_stream(opened)
        stated = struct.pack("<q", batch.body.size)
    path.write_bytes(path.read_bytes().replace(stated, struct.pack("<q", size), 1))
    with pytest.raises(Unusable, match="damaged, or needs more memory than there is"):
        read_sample(path, "kind")


def test_where_pyarrow_is_missing_the_file_is_refused_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "find_spec", lambda _: None)
    with pytest.raises(Unusable, match=r"needs pyarrow: pip install './client"):
        read_sample(tmp_path / "a.parquet", "y")


@pytest.mark.parametrize(
    ("name", "line"), [("sample.csv", "{0},{1}"), ("sample.ndjson", '{{"kind": {0}, "cost": {1}}}')]
)
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path, name, line):
    lines = ["kind,cost"] * name.endswith("csv") + [line.format(number % 2, number) for number in range(450)]
    (tmp_path / name).write_text("\n".join(lines), encoding="utf-8-sig")
    sample = read_sample(tmp_path / name, "kind")
    assert (sample.columns, sample.classes, len(sample.x)) == (("cost",), ("0", "1"), 450)
