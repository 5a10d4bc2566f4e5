"""Arrow columns of every type: records, or a refusal that names the column and its type."""

import pytest

from service.streams.batches import READERS, InvalidRecords
from service.streams.batches.arrow import _KINDS
from service.streams.schema import stored_schema

LAYOUT = stored_schema(
    {"features": 2, "task": {"kind": "regression", "bound": 1.0}, "unit": {"max_records": 3}}
).layout()
RECORDS = {"x": [[1.0, 2.0]] * 3, "y": [1.0, 0.0, 1.0], "unit": ["a", "b", "a"]}


@pytest.mark.parametrize("place", RECORDS)
def test_a_column_of_every_type_is_read_or_refused_by_its_name_and_type(place):
    import pyarrow as pa
    from pyarrow import ipc

    from tests.arrow_types import columns

    read = []
    for name, column in columns().items():
        table = pa.table(RECORDS | {"x": pa.array(RECORDS["x"], pa.list_(pa.float64(), 2)), place: column})
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        try:
            records = READERS["application/vnd.apache.arrow.stream"](sink.getvalue().to_pybytes(), LAYOUT)
        except InvalidRecords as refused:
            ((row, reason), *_) = refused.reasons
            assert row is not None or (f'"{place}" must be' in reason and reason.split()[-1] in _KINDS), (name, reason)
        else:
            assert len(records["x"]) == 3
            read.append(name)
    numbers = {"int8", "uint64", "halffloat", "double", "opaque", "bool8"}
    expected = {"x": {"list<item: double>", "fixed_size_list<item: double>[2]", "tensor"}, "y": numbers}
    assert set(read) >= expected.get(place, {"int8", "uint64", "string", "large_string", "json"})
    assert not any(part in name for name in read for part in ("view", "run-end", "dictionary", "decimal", "union"))
