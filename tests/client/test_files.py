"""Files are read as they are written, and an error says what is wrong with one, without a word of what is in it."""

import csv
import io
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from perennial import files
from perennial.errors import InvalidData
from perennial.stores import LocalFile

SECRET = "a-secret"


def written(path, content):
    """A file with a text, or with bytes."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return LocalFile(path)


def rows(file, *more):
    """All rows of a file that is read as tables."""
    return [row for table in files.read(file, *more) for row in table.to_pylist()]


@pytest.mark.more
@pytest.mark.parametrize("filler", [1, 2, 5, 9, 10])
def test_a_newline_in_quotes_ends_no_record(tmp_path, filler):
    """Wherever the blocks end that are read at once."""
    file = written(tmp_path / "texts.csv", "t\n" + "x" * filler + "\n" + '"one\ntwo"\n' * 120_000)
    read = [row["t"] for row in rows(file)]
    assert (len(read), set(read[1:])) == (120_001, {"one\ntwo"})


ALPHABET = ["a", "é", '"', "'", ",", "\n", " ", "1", "\r\n"]


@pytest.mark.parametrize("seed", range(20))
def test_texts_are_those_that_python_reads(tmp_path, seed):
    chance = random.Random(seed)
    width = chance.randint(2, 4)
    texts = [["".join(chance.choices(ALPHABET, k=chance.randint(0, 12))) for _ in range(width)] for _ in range(200)]
    path = tmp_path / "texts.csv"
    with path.open("w", newline="", encoding="utf-8") as opened:
        quoting = chance.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
        writer = csv.writer(opened, quoting=quoting, lineterminator=chance.choice(["\n", "\r\n"]))
        writer.writerows([[f"c{number}" for number in range(width)], *[["x"] * width], *texts])
    assert [list(row.values()) for row in rows(LocalFile(path))][1:] == texts


@pytest.mark.parametrize("line", ["null", "[1]", "0", "x"])
def test_a_line_that_is_no_object_is_refused_and_not_passed_over(tmp_path, line):
    file = written(tmp_path / "days.ndjson", f'{{"a": 1}}\n\n{line}\n{{"a": 2}}')
    with pytest.raises(InvalidData, match="line 3 is no JSON object"):
        list(files.read(file))


def test_records_after_the_end_of_a_stream_are_not_passed_over(tmp_path):
    """Somebody may have put the files of several days one after the other."""
    table, sink = pa.table({"a": [1.0, 2.0]}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    day = sink.getvalue().to_pybytes()
    assert rows(written(tmp_path / "day.arrows", day)) == [{"a": 1.0}, {"a": 2.0}]
    with pytest.raises(InvalidData, match="bytes follow the end of its stream"):
        rows(written(tmp_path / "days.arrows", day + day))


@pytest.mark.parametrize(
    "line", ['{"a": 1, "a": 2}', '{"x": {"a": 1, "a": 1}, "y": 0}', '{"x": [1], "y": 0, "\\u0079": 1}']
)
def test_a_name_twice_in_an_object_is_refused(tmp_path, line):
    file = written(tmp_path / "days.ndjson", '{"a": 1}\n' + line)
    with pytest.raises(InvalidData, match="line 2 has a name twice"):
        list(files.read(file))


def as_parquet() -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.table({"a": [float(row) for row in range(50_000)]}), sink)
    content = bytearray(sink.getvalue())
    content[1000:200_000] = bytes(199_000)
    return bytes(content)


def as_arrow() -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"a": [float(row) for row in range(50_000)]})
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as opened:
        opened.write_table(table)
    content = bytearray(sink.getvalue())
    content[5000:20_000] = bytes(15_000)
    return bytes(content)


UTF_8, DAMAGED = "it is not UTF-8: save it as UTF-8", "it is damaged, or no file of that kind"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("days.csv", "", "it is empty"),
        ("days.csv", "a,b", "no records follow the header"),
        ("days.csv", "\n\n", "no records follow the header"),
        (
            "days.csv",
            f"a,b\n1,2\n{SECRET}\n1,2\n",
            "row 3, of which the header is the first, has 1 values, and the header 2",
        ),
        (
            "days.csv",
            "a,b\n" + "1,2\n" * 400_000 + f"1,{SECRET},3\n",
            "row 400002, .* has 3 values, and the header 2 names",
        ),
        ("days.csv", f"a;b\n1,5;{SECRET}\n", "semicolons separate its values: save it with commas"),
        ("days.csv", f"a\tb\n1,5\t{SECRET}\n", "tabs separate its values: save it with commas"),
        ("days.csv", "a,b\n1,2\n".encode("utf-16"), UTF_8),
        ("days.csv", "a,b\n1,2\n".encode("utf-16-le"), UTF_8),
        ("days.csv", "Größe,b\n1,2\n".encode("latin-1"), UTF_8),
        ("days.csv", "a,b\nGröße,2\n".encode("latin-1"), UTF_8),
        ("days.csv", 'a,b\n1,2\n"x,2\n' + "1,2\n" * 1_000_000, "longer than 1 MiB, or a quote is never closed"),
        (
            "days.csv",
            "a,b\n" + "1,2\n" * 400_000 + f"1,{SECRET}\n",
            "row 400002, .* in column 2 than those before: each column must hold numbers, or texts, throughout",
        ),
        ("days.parquet", "", "it is empty"),
        ("days.parquet", SECRET, DAMAGED),
        ("days.parquet", as_parquet(), DAMAGED),
        ("days.arrow", "", "it is empty"),
        ("days.arrow", as_arrow(), DAMAGED),
        ("days.arrow", as_arrow()[:3000], DAMAGED),
    ],
    ids=range(19),
)
def test_an_error_says_what_is_wrong_with_a_file(tmp_path, name, content, reason):
    with pytest.raises(InvalidData, match=f"{name}: it can't be read as .*{reason}") as refused:
        list(files.read(written(tmp_path / name, content)))
    assert SECRET not in str(refused.value)


def test_a_folder_is_named_where_a_file_belongs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidData, match=f"^{tmp_path}: its name must end in"):
        list(files.read(LocalFile(Path())))


def test_a_csv_is_not_closed_while_arrow_may_still_read_it(tmp_path, monkeypatch):
    """Else its threads can read from a file that was opened since, of which a part is missing then."""

    class NeverClosed(pa.OSFile):
        def close(self):
            raise AssertionError("a thread may still read")

    monkeypatch.setattr(pa, "OSFile", NeverClosed)
    file = written(tmp_path / "days.csv", "a,b\n" + "1,2\n" * 1_000_000)
    assert sum(batch.num_rows for batch in files.read(file)) == 1_000_000
    reading = files.read(file)
    next(iter(reading))
    reading.close()


@pytest.mark.parametrize("name", ["days.csv", "days.parquet", "days.arrow", "days.ndjson"])
def test_files_that_are_not_there_are_named(tmp_path, name):
    with pytest.raises(FileNotFoundError) as missing:
        list(files.read(LocalFile(tmp_path / name)))
    assert missing.value.filename == str(tmp_path / name)


@pytest.mark.more
@pytest.mark.parametrize("header", ["a,b,c", "a,c,c"])
def test_of_a_csv_other_columns_may_hold_anything(tmp_path, header):
    file = written(tmp_path / "days.csv", f"{header}\n" + "1,2,\n" * 300_000 + "1,2,text\n")
    assert {tuple(row.items()) for row in rows(file, ["a", "none"])} == {(("a", 1.0),)}


@pytest.mark.parametrize("name", ["days.csv", "days.parquet"])
def test_columns_that_are_wanted_have_names_of_their_own(tmp_path, name):
    path = tmp_path / name
    if name == "days.csv":
        path.write_text("a,a,b\n1,2,3\n")
    else:
        parquet.write_table(pa.Table.from_arrays([pa.array([each]) for each in (1, 2, 3)], names=["a", "a", "b"]), path)
    assert rows(LocalFile(path), ["b"]) == [{"b": 3}]
    for columns in (["a"], ["b", "a"], None):
        with pytest.raises(InvalidData, match="Two columns have the same name"):
            rows(LocalFile(path), columns)
