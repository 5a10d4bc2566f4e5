"""Records in files, piece by piece: CSV, Parquet, Arrow IPC and NDJSON. No error repeats what a file holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NamedTuple

from perennial.errors import InvalidData
from perennial.extras import needs
from perennial.stores import LocalFile, StoredObject

_PIECE_BYTES = 2**22  # of a table, its numbers as doubles
_BUFFER_BYTES_BY_COLUMNS = 2**16  # of a request for a part of a file


class _Wanted(NamedTuple):
    """As for `read`."""

    columns: Sequence[str] | None
    is_text: Callable[[str], bool]


def read(
    file: LocalFile | StoredObject,
    columns: Sequence[str] | None = None,
    is_text: Callable[[str], bool] = lambda _: False,
) -> Iterator[Any]:
    """Yield tables, or rows, of a file, as `Stream.append` takes them. Raises InvalidData for what can't be read.

    columns: that are enough, where the file can be read by columns; default all. is_text: tells of a column's name
    whether a file without types holds texts there, also where they look like numbers.
    """
    reader = _READERS.get(_ending(file))
    if reader is None:
        raise InvalidData(f"{file.name}: its name must end in {', '.join(sorted(_READERS))}.")
    return reader(file, _Wanted(columns, is_text))


def _ending(file: LocalFile | StoredObject) -> str:
    return PurePath(file.name).suffix.lower()


def _ndjson(file: LocalFile | StoredObject, _: _Wanted) -> Generator[Any]:
    with file.opened() as opened:
        for number, line in enumerate(iter(opened.readline, b""), start=1):
            try:
                row = json.loads(bytes(line), object_pairs_hook=_members) if bytes(line).strip() else None
            except _NameTwice:
                raise InvalidData(f"{file.name}: line {number} has a name twice in one object.") from None
            except (ValueError, RecursionError):
                row = line
            if row is not None and not isinstance(row, dict):
                raise InvalidData(f"{file.name}: line {number} is no JSON object.")
            if row is not None:
                yield row


class _NameTwice(Exception):
    """Which of both values counts, nobody can tell."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _NameTwice
    return members


def _csv(file: LocalFile | StoredObject, wanted: _Wanted) -> Generator[Any]:
    with _as_tables(file):
        import pyarrow as pa
        from pyarrow import csv

        quoted = csv.ParseOptions(newlines_in_values=True)  # else a block of 1 MiB may end within a record
        # Types are guessed from the beginning, where numbers may all be whole.
        with _read_by_arrow(file) as source, csv.open_csv(source, parse_options=quoted) as first:
            guessed = {
                field.name: pa.float64() if pa.types.is_integer(field.type) else field.type for field in first.schema
            }
        types = {name: pa.string() if wanted.is_text(name) else kind for name, kind in guessed.items()}
        options = csv.ConvertOptions(column_types=types)
        with (
            _read_by_arrow(file) as source,
            csv.open_csv(source, parse_options=quoted, convert_options=options) as batches,
        ):
            yield from batches


def _parquet(file: LocalFile | StoredObject, wanted: _Wanted) -> Generator[Any]:
    with _as_tables(file):
        from pyarrow import parquet

        # Few large requests are what a store is fast with; of a file of this machine they only take memory.
        few_requests = isinstance(file, StoredObject)
        with (
            file.opened(buffer=_BUFFER_BYTES_BY_COLUMNS) as opened,
            parquet.ParquetFile(opened, pre_buffer=few_requests) as parts,
        ):
            there = parts.schema_arrow.names
            known = there if wanted.columns is None else [name for name in wanted.columns if name in there]
            rows = max(1, _PIECE_BYTES // (8 * max(1, len(known))))
            # One thread reads faster than records are sent, and leaves the other processors to the service.
            yield from parts.iter_batches(batch_size=rows, columns=known, use_threads=False)


def _arrow(file: LocalFile | StoredObject, _: _Wanted) -> Generator[Any]:
    with _as_tables(file):
        import pyarrow as pa

        with _mapped(file) as source:
            try:
                batches = pa.ipc.open_file(source)
            except pa.ArrowInvalid:
                source.seek(0)
                yield from pa.ipc.open_stream(source)
                return
            for number in range(batches.num_record_batches):
                yield batches.get_batch(number)


@contextmanager
def _read_by_arrow(file: LocalFile | StoredObject) -> Iterator[Any]:
    """Open a file that Arrow reads ahead in threads of its own; they read one of this machine without Python.

    A thread may still read after an error. If it has to call Python while Python ends, the process is aborted.
    """
    import pyarrow as pa

    with file.opened() as opened:
        if isinstance(file, LocalFile):
            with pa.OSFile(str(file.path)) as source:
                yield source
        else:
            yield opened


@contextmanager
def _mapped(file: LocalFile | StoredObject) -> Iterator[Any]:
    """Open a file for Arrow; one of this machine without copying it."""
    import pyarrow as pa

    if isinstance(file, LocalFile):
        with pa.memory_map(str(file.path)) as source:
            yield source
    else:
        with file.opened() as opened, pa.PythonFile(opened, mode="r") as source:
            yield source


@contextmanager
def _as_tables(file: LocalFile | StoredObject) -> Iterator[None]:
    """Say what is wrong without what pyarrow says, which may repeat values."""
    with needs("arrow"):
        import pyarrow as pa
    try:
        yield
    except pa.ArrowException:
        raise InvalidData(
            f"{file.name}: it can't be read as {_ending(file)[1:]}; each column must hold numbers, or texts, "
            "throughout."
        ) from None


_READERS: dict[str, Callable[[LocalFile | StoredObject, _Wanted], Generator[Any]]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
    ".arrows": _arrow,
    ".ndjson": _ndjson,
    ".jsonl": _ndjson,
}
