"""A column of three values of every type that Arrow has, as pyarrow makes it."""

import datetime as dt
import decimal
import uuid

import pyarrow as pa

UNITS = ("s", "ms", "us", "ns")
NUMBERS = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
)
DECIMALS = (pa.decimal32(5, 1), pa.decimal64(9, 1), pa.decimal128(20, 2), pa.decimal256(50, 2))
TIMES = (
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit) for unit in UNITS),
    *(pa.timestamp(unit, "Europe/Berlin") for unit in UNITS),
    *(pa.duration(unit) for unit in UNITS),
)
TEXTS = (pa.string(), pa.large_string(), pa.string_view())
BYTES = (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))
PAIRS = (
    *(pa.list_(pa.float64()), pa.large_list(pa.float64()), pa.list_(pa.float64(), 2)),
    *(pa.list_view(pa.float64()), pa.large_list_view(pa.float64())),
)


def columns() -> dict[str, pa.Array]:
    """Return them by name."""
    types = pa.types
    day, numbers, texts = dt.date(2000, 1, 1), pa.array([1.0, 0.0, 1.0]), pa.array(["a", "b", "a"])
    plain = {
        **{str(kind): pa.array([1, 0, 1], kind) for kind in (*NUMBERS, *TIMES)},
        **{str(kind): pa.array([decimal.Decimal(1), decimal.Decimal(0), None], kind) for kind in DECIMALS},
        **{str(kind): pa.array(["a", "b", "a"], kind) for kind in TEXTS},
        **{str(kind): pa.array([b"a", b"\xff", b"a"], kind) for kind in BYTES},
        **{str(kind): pa.array([day] * 3, kind) for kind in (pa.date32(), pa.date64())},
        **{str(kind): pa.array([[1.0, 2.0]] * 3, kind) for kind in PAIRS},
        "null": pa.nulls(3),
        "bool": pa.array([True, False, True]),
        "interval": pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval()),
        "struct": pa.array([{"a": 1, "b": 2.0}] * 3),
        "map": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int8())),
        "dense union": pa.UnionArray.from_dense(
            pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [numbers, texts]
        ),
        "sparse union": pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [numbers, texts]),
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(int=1).bytes] * 3, pa.binary(16))),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"] * 3)),
        "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, 1], pa.int8())),
        "opaque": pa.ExtensionArray.from_storage(pa.opaque(pa.int64(), "type", "vendor"), pa.array([1, 0, 1])),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.float64(), [2]), pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float64(), 2))
        ),
    }
    values = {name: column for name, column in plain.items() if types.is_primitive(column.type) or name == "string"}
    encoded = {
        **{
            f"dictionary of {name}": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), column)
            for name, column in values.items()
        },
        **{
            f"run-end-encoded {name}": pa.RunEndEncodedArray.from_arrays([2, 3], column[:2])
            for name, column in values.items()
        },
    }
    lists = {
        f"list of {name}": pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), column)
        for name, column in plain.items()
    }
    return {**plain, **encoded, **lists, "lists of any length": pa.array([[1.0], [1.0, 2.0], []])}
