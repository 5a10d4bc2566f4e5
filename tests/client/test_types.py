"""Columns of every type that Arrow has: records, or an error of this package that names the column."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from perennial import files
from perennial.data import blocks, features_of
from perennial.errors import InvalidData
from perennial.stores import LocalFile
from tests.arrow_types import columns

OTHERS = {"a": [1.0, 2.0, 3.0], "y": [0, 1, 0], "u": ["p", "q", "r"]}


def from_table(table: pa.Table, _):
    return blocks(table, label="y", unit="u")


def from_frame(table: pa.Table, _):
    """As pandas has them with Arrow beneath."""
    series = {name: pd.Series(pd.arrays.ArrowExtensionArray(table[name])) for name in table.column_names}
    return blocks(pd.DataFrame(series), label="y", unit="u")


def from_series(table: pa.Table, _):
    a, y, u = (pd.Series(pd.arrays.ArrowExtensionArray(column)) for column in table.columns)
    return blocks({"a": a}, label=y, unit=u)


def from_file(table: pa.Table, folder):
    path = folder / "records.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return blocks(files.read(LocalFile(path)), label="y", unit="u")


@pytest.mark.parametrize("came", [from_table, from_frame, from_series, from_file])
@pytest.mark.parametrize("place", OTHERS)
def test_a_column_of_every_type_is_read_or_refused_by_its_name(came, place, tmp_path):
    read, errors = {}, {}
    for name, column in columns().items():
        try:
            read[name] = [*came(pa.table(OTHERS | {place: column}), tmp_path)]
        except InvalidData as error:
            errors[name] = str(error)
    named = {"y": "The labels", "u": "The units"}.get(place) if came is from_series else None
    assert not {name: error for name, error in errors.items() if (named or f"Column {place!r}") not in error}
    assert set(read) >= ({"int8", "string", "dictionary of string"} if place == "u" else {"int8", "double", "bool"})
    assert all(sum(map(len, records)) == 3 for records in read.values())


def test_a_model_is_given_columns_of_every_type():
    errors = {}
    for name, column in columns().items():
        try:
            assert len(features_of(pa.table({"a": column}))) == 3
        except InvalidData as error:
            errors[name] = str(error)
    assert not {name: error for name, error in errors.items() if "Column 'a'" not in error}


def test_run_end_encoded_columns_are_read_whatever_is_loaded():
    """The function that decodes them comes with a module that others may never have loaded."""
    table, sink = pa.table({"a": pa.RunEndEncodedArray.from_arrays([2, 3], [1.5, 2.5])}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    code = """
import sys
import pyarrow as pa
from perennial.data import blocks
with pa.ipc.open_stream(sys.stdin.buffer) as stream:
    table = stream.read_all()
assert "pyarrow.compute" not in sys.modules
print(*(block.x.tolist() for block in blocks(table)))
"""
    body = sink.getvalue().to_pybytes()
    ran = subprocess.run([sys.executable, "-c", code], input=body, capture_output=True, check=True)
    assert ran.stdout.strip() == b"[[1.5], [1.5], [2.5]]"


def test_values_of_other_types_are_named():
    for value, kind in ((b"a", "bytes"), ({}, "dict"), (1j, "complex")):
        values = np.array([1.0, value], dtype=object)
        with pytest.raises(InvalidData, match=f"Column 'a': values of type {kind} are neither numbers nor texts"):
            list(blocks({"a": values}))
