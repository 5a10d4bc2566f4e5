"""Columns of Arrow tables as numpy arrays, numbers without copying them.

pyarrow's own conversions of tables and columns import pandas, which takes longer than to read a million records.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial.errors import InvalidData
from perennial.extras import needs

Array: TypeAlias = NDArray[Any]
SAME_NAME = "Two columns have the same name."
NO_TABLE = (
    "A single column or row is no table: give a frame, such as series.to_frame() of a column or frame.iloc[[0]] of a "
    "row; or rows, such as row.to_dict()."
)


def columns_of(data: Any) -> dict[str, Array]:
    """Return the columns, (m,) each, of anything that offers an Arrow stream. Raises InvalidData if it is no table."""
    with needs("arrow"):
        import pyarrow as pa
    table = data if isinstance(data, pa.RecordBatch) else _reader(data).read_all()
    if len(set(table.column_names)) < len(table.column_names):
        raise InvalidData(SAME_NAME)
    return {name: _array(column, name) for name, column in zip(table.column_names, table.columns, strict=True)}


def as_numpy(values: Any, place: str) -> Any:
    """Return the values of a series as an array; anything else as it is. Raises InvalidData for sparse matrices."""
    if hasattr(values, "toarray") and hasattr(values, "nnz"):
        raise InvalidData(f"{place}: this matrix is sparse: give matrix.toarray(), of so many rows as memory holds.")
    if not hasattr(values, "to_numpy"):
        return values
    try:
        return values.to_numpy()
    except Exception:  # noqa: BLE001 - each library has errors of its own, which may repeat values
        raise _unread(place, getattr(values, "dtype", type(values).__name__)) from None


def _unread(place: str, kind: Any) -> InvalidData:
    return InvalidData(f"{place}: values of type {kind} can't be read: make them numbers or texts.")


def _reader(data: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.RecordBatchReader.from_stream(data)
    except pa.ArrowInvalid:
        raise InvalidData(NO_TABLE) from None


def _array(column: Any, name: str) -> Array:
    import pyarrow as pa

    try:
        return _numpy_array(column)
    except pa.ArrowException:
        raise _unread(f"Column {name!r}", column.type) from None


def _numpy_array(column: Any) -> Array:
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_run_end_encoded(array.type):
        from pyarrow import compute  # imported here, since the import is slow

        array = compute.run_end_decode(array)
    kind = array.type
    if len(array) == 0 or array.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    start = array.offset * kind.bit_width // 8
    return np.frombuffer(array.buffers()[1], kind.to_pandas_dtype(), len(array), start)
