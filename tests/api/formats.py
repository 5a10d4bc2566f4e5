"""Writes records in every format that is read, the impossible ones too: None is null."""

import io
import json
from typing import Any

import nanoarrow
import numpy as np
from nanoarrow.ipc import StreamWriter

JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"


def as_json(x: list | None, y: list | None) -> bytes:
    return json.dumps({name: column for name, column in (("x", x), ("y", y)) if column is not None}).encode()


def as_rows(x: list | None, y: list | None) -> bytes:
    columns = {name: column for name, column in (("x", x), ("y", y)) if column is not None}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


class Arrow:
    """Writes streams whose lists are `fixed`, `list` or `large`, in several record batches."""

    def __init__(self, lists: str, x_type: str = "float64", y_type: str | None = None, batches: int = 2) -> None:
        self.lists, self.x_type, self.y_type, self.batches = lists, x_type, y_type, batches

    def __call__(self, x: list | None, y: list | None) -> bytes:
        fields, records = {}, len(y if x is None else x)  # type: ignore[arg-type]
        if x is not None:
            item = getattr(nanoarrow, self.x_type)()
            self.width = max((len(row) for row in x if row is not None), default=2)
            fields["x"] = {
                "fixed": lambda: nanoarrow.fixed_size_list(item, self.width),
                "list": lambda: nanoarrow.list_(item),
                "large": lambda: nanoarrow.large_list(item),
            }[self.lists]()
        if y is not None:
            whole = all(value is None or isinstance(value, int) for value in y)
            kind = self.y_type or ("int64" if whole else "float64")
            fields["y"] = getattr(nanoarrow, kind)()
        batches = []
        for part in np.array_split(np.arange(records), self.batches):
            children = []
            if x is not None:
                children.append(self._lists_of([x[row] for row in part], fields["x"]))
            if y is not None:
                children.append(_numbers([y[row] for row in part], kind))
            batches.append((len(part), children))
        return as_stream(fields, *batches)

    def _lists_of(self, rows: list, kind: Any) -> Any:
        full = [[0.0] * self.width if row is None and self.lists == "fixed" else row or [] for row in rows]
        items = _numbers([value for row in full for value in row], self.x_type)
        buffers = [_validity(rows)]
        if self.lists != "fixed":
            ends = np.cumsum([0, *(len(row) for row in full)])
            buffers.append(ends.astype(np.int32 if self.lists == "list" else np.int64))
        return nanoarrow.c_array_from_buffers(
            kind, len(rows), buffers, null_count=sum(row is None for row in rows), children=[items]
        )


def as_stream(fields: dict[str, Any], *batches: tuple[int, list[Any]]) -> bytes:
    """A stream of record batches: how many records, and the columns."""
    out, schema = io.BytesIO(), nanoarrow.struct(fields)
    with StreamWriter.from_writable(out) as writer:
        for records, columns in batches:
            writer.write_array(nanoarrow.c_array_from_buffers(schema, records, [None], null_count=0, children=columns))
    return out.getvalue()


def _numbers(values: list, kind: str) -> Any:
    with np.errstate(over="ignore"):
        data = np.array([0 if value is None else value for value in values], dtype=kind)
    nulls = sum(value is None for value in values)
    return nanoarrow.c_array_from_buffers(
        getattr(nanoarrow, kind)(), len(values), [_validity(values), data], null_count=nulls
    )


def _validity(values: list) -> Any:
    if None not in values:
        return None
    return np.packbits([value is not None for value in values], bitorder="little")


WRITERS = {
    "json": (JSON, as_json),
    "ndjson": (NDJSON, as_rows),
    "arrow, fixed": (ARROW, Arrow("fixed")),
    "arrow, list": (ARROW, Arrow("list")),
    "arrow, large list": (ARROW, Arrow("large", batches=3)),
}
