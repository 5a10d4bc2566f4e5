"""Tables in files: CSV with a header, NDJSON of objects, Parquet, and Arrow IPC, by the files' endings."""

from __future__ import annotations

import csv
import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

NDJSON, PARQUET, ARROW = (".ndjson", ".jsonl"), (".parquet",), (".arrow", ".feather")

Line = tuple[str, list[Any]]
"""Where it is, for people, and its values."""


class Unusable(ValueError):
    """Raised for a file that can't be used as a sample. The message says what is wrong and what to do."""


def read_lines(file: Path) -> Iterator[Line]:
    """Yield the columns' names, then the values of each record, in their order. Values of a CSV file are texts.

    A list is a column for each of its members. Raises Unusable, and OSError where the file cannot be read.
    """
    ending = file.suffix.lower()
    if ending in NDJSON:
        return _of_objects(_ndjson(file))
    if ending in PARQUET + ARROW:
        return _of_objects(_arrow(file, parquet=ending in PARQUET))
    return _csv(file)


def _csv(file: Path) -> Iterator[Line]:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = csv.reader(lines)
        try:
            header: list[str] = []
            for row in filter(None, rows):  # empty lines are no records
                header = header or row
                if len(row) != len(header):
                    raise Unusable(f"line {rows.line_num} has {len(row)} values, and the header {len(header)} names")
                yield f"line {rows.line_num}", row
        except csv.Error:
            raise Unusable(f"line {rows.line_num} is no CSV: a value is too long, or a quote is never closed") from None


def _of_objects(records: Iterable[tuple[str, object]]) -> Iterator[Line]:
    names: list[str] | None = None
    for place, record in records:
        if not isinstance(record, dict):
            raise Unusable(f"{place} is no object of columns")
        values = dict(_flat(record))
        if names is None:
            names = list(values)
            yield place, names
        if values.keys() != set(names):
            raise Unusable(f"{place} has other columns than the first record: give all the same")
        yield place, [values[name] for name in names]


def _flat(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, list):
            yield from ((f"{name}[{place}]", item) for place, item in enumerate(value))
        else:
            yield name, value


def _ndjson(file: Path) -> Iterator[tuple[str, object]]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.isspace():
                try:
                    yield f"line {number}", json.loads(line)
                except ValueError:
                    raise Unusable(f"line {number} is no JSON, or has a number of too many digits") from None


def _arrow(file: Path, *, parquet: bool) -> Iterator[tuple[str, object]]:
    if find_spec("pyarrow") is None:
        raise Unusable(f"a file of the kind {file.suffix} needs pyarrow: pip install './client[arrow]', or give a CSV")
    from pyarrow import ArrowException

    try:
        number = 0
        with file.open("rb") as opened:
            for batch in _batches(opened, parquet=parquet):
                batch.validate(full=True)  # otherwise a damaged batch is read beyond its end
                for number, record in enumerate(batch.to_pylist(), number + 1):  # noqa: B020 - it goes on counting
                    yield f"record {number}", record
    except (MemoryError, OverflowError):
        raise Unusable("the file is damaged, or needs more memory than there is") from None
    except (ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the disk, not of the file's content
            raise
        raise Unusable(f"the file is damaged, or not what its ending {file.suffix} says") from None


def _batches(opened: Any, *, parquet: bool) -> Iterator[Any]:
    from pyarrow import ArrowInvalid, ipc
    from pyarrow import parquet as parquet_files

    if parquet:
        yield from parquet_files.ParquetFile(opened).iter_batches()
        return
    try:
        reader = ipc.open_file(opened)
    except ArrowInvalid:  # then it is the stream format
        opened.seek(0)
        yield from ipc.open_stream(opened)
        return
    yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
