"""Records in files, piece by piece: CSV, Parquet, Arrow IPC and NDJSON. No error repeats what a file holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perennial.errors import InvalidData
from perennial.extras import needs

ROWS_AT_ONCE = 10_000


def read(path: Path) -> Iterator[Any]:
    """Yield tables, or rows, of a file, as `Stream.append` takes them. Raises InvalidData for what can't be read."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidData(f"{path.name}: its name must end in {', '.join(sorted(_READERS))}.")
    return reader(path)


def _ndjson(path: Path) -> Iterator[Any]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line) if line.strip() else None
            except ValueError:
                row = line
            if row is not None and not isinstance(row, dict):
                raise InvalidData(f"{path.name}: line {number} is no JSON object.")
            if row is not None:
                yield row


def _csv(path: Path) -> Iterator[Any]:
    with _as_tables(path):
        import pyarrow as pa
        from pyarrow import csv

        with csv.open_csv(path) as first:  # types are guessed from the beginning, where numbers may all be whole
            types = {
                field.name: pa.float64() if pa.types.is_integer(field.type) else field.type for field in first.schema
            }
        with csv.open_csv(path, convert_options=csv.ConvertOptions(column_types=types)) as batches:
            yield from batches


def _parquet(path: Path) -> Iterator[Any]:
    with _as_tables(path):
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=ROWS_AT_ONCE)


def _arrow(path: Path) -> Iterator[Any]:
    with _as_tables(path):
        import pyarrow as pa

        with pa.memory_map(str(path)) as source:
            try:
                file = pa.ipc.open_file(source)
            except pa.ArrowInvalid:
                source.seek(0)
                yield from pa.ipc.open_stream(source)
                return
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


@contextmanager
def _as_tables(path: Path) -> Iterator[None]:
    """Say what is wrong without what pyarrow says, which may repeat values."""
    with needs("arrow"):
        import pyarrow as pa
    try:
        yield
    except pa.ArrowException:
        raise InvalidData(
            f"{path.name}: it can't be read as {path.suffix[1:]}; each column must hold numbers, or texts, throughout."
        ) from None


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
    ".arrows": _arrow,
    ".ndjson": _ndjson,
    ".jsonl": _ndjson,
}
