"""Files are read as they are written, and an error says what is wrong with one, without a word of what is in it."""

import csv
import random

import pytest

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


@pytest.mark.parametrize(
    "line", ['{"a": 1, "a": 2}', '{"x": {"a": 1, "a": 1}, "y": 0}', '{"x": [1], "y": 0, "\\u0079": 1}']
)
def test_a_name_twice_in_an_object_is_refused(tmp_path, line):
    file = written(tmp_path / "days.ndjson", '{"a": 1}\n' + line)
    with pytest.raises(InvalidData, match="line 2 has a name twice"):
        list(files.read(file))
