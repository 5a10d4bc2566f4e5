"""Records in files, piece by piece: CSV, Parquet, Arrow IPC and NDJSON. No error repeats what a file holds."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, NamedTuple

from perennial.arrow_tables import SAME_NAME
from perennial.errors import InvalidData
from perennial.extras import needs
from perennial.stores import LocalFile, StoredObject

_PIECE_BYTES = 2**22  # bytes of a table, with all numbers as doubles
_BUFFER_BYTES_BY_COLUMNS = 2**16  # bytes of a request for a part of a file


class _Wanted(NamedTuple):
    """The arguments of `read`: which columns are read, and as what."""

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
        raise InvalidData(f"{file.name or file.place}: its name must end in {', '.join(sorted(_READERS))}.")
    return reader(file, _Wanted(columns, is_text))


def _ending(file: LocalFile | StoredObject) -> str:
    return PurePath(file.name).suffix.lower()


def _ndjson(file: LocalFile | StoredObject, _: _Wanted) -> Generator[Any]:
    with file.opened() as opened:
        for number, line in enumerate(iter(opened.readline, b""), start=1):
            if not bytes(line).strip():
                continue
            try:
                row = json.loads(bytes(line), object_pairs_hook=_members)
            except _NameTwice:
                raise InvalidData(f"{file.name}: line {number} has a name twice in one object.") from None
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise InvalidData(f"{file.name}: line {number} is no JSON object.")
            yield row


class _NameTwice(Exception):
    """Raised for a JSON object with one name twice."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _NameTwice
    return members


def _csv(file: LocalFile | StoredObject, wanted: _Wanted) -> Generator[Any]:
    with _as_tables(file):
        import pyarrow as pa
        from pyarrow import csv

        parsing = {
            "read_options": csv.ReadOptions(use_threads=False),  # so that errors state the row; it is as fast
            "parse_options": csv.ParseOptions(newlines_in_values=True),  # otherwise a block may end within a record
        }
        # pyarrow guesses types from the beginning, where all numbers may be whole.
        with _read_by_arrow(file) as source, csv.open_csv(source, **parsing) as first:
            guessed = {field.name: _column_type(field.type) for field in first.schema}
            known = _known(first.schema.names, wanted)
        types = {name: pa.string() if wanted.is_text(name) else guessed[name] for name in known}
        options = csv.ConvertOptions(column_types=types, include_columns=known)
        with _read_by_arrow(file) as source, csv.open_csv(source, convert_options=options, **parsing) as batches:
            yield from batches


def _known(there: list[str], wanted: _Wanted) -> list[str]:
    """Return the columns of a file that are to be read. Raises InvalidData where one of them has another's name."""
    columns = Counter(there)
    known = [name for name in dict.fromkeys(there if wanted.columns is None else wanted.columns) if name in columns]
    if any(columns[name] > 1 for name in known):
        raise InvalidData(SAME_NAME)
    return known


def _column_type(guessed: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_integer(guessed):
        return pa.float64()
    return pa.string() if pa.types.is_binary(guessed) else guessed  # pyarrow reads texts that are not UTF-8 as bytes


def _parquet(file: LocalFile | StoredObject, wanted: _Wanted) -> Generator[Any]:
    with _as_tables(file):
        from pyarrow import parquet

        # A store is fastest with few large requests; for a local file they only take memory.
        few_requests = isinstance(file, StoredObject)
        with (
            file.opened(buffer=_BUFFER_BYTES_BY_COLUMNS) as opened,
            parquet.ParquetFile(opened, pre_buffer=few_requests) as parts,
        ):
            known = _known(parts.schema_arrow.names, wanted)
            rows = max(1, _PIECE_BYTES // (8 * max(1, len(known))))
            # One thread reads faster than records are sent, and leaves the other processors to the service.
            yield from map(_sound, parts.iter_batches(batch_size=rows, columns=known, use_threads=False))


def _arrow(file: LocalFile | StoredObject, _: _Wanted) -> Generator[Any]:
    with _as_tables(file):
        import pyarrow as pa

        with _mapped(file) as source:
            try:
                batches = pa.ipc.open_file(source)
            except pa.ArrowInvalid:
                source.seek(0)
                yield from map(_sound, pa.ipc.open_stream(source))
                if source.read(1):
                    reason = "bytes follow the end of its stream: put each stream into a file of its own"
                    raise InvalidData(f"{file.name}: {reason}.") from None
                return
            for number in range(batches.num_record_batches):
                yield _sound(batches.get_batch(number))


def _sound(batch: Any) -> Any:
    """Return the batch. Raises if it is damaged, before its values are read."""
    batch.validate(full=True)
    return batch


@contextmanager
def _read_by_arrow(file: LocalFile | StoredObject) -> Iterator[Any]:
    """Open a file that Arrow reads ahead in threads of its own; they read one of this machine without Python.

    A thread may still read after an error, or after the caller has stopped. A thread that calls Python while Python
    ends aborts the process. A closed file's number may be given to another file; the thread would then take bytes
    from that one, and its own reader would miss them. So the file closes once its last reader lets go of it.
    """
    import pyarrow as pa

    with file.opened() as opened:
        yield pa.OSFile(str(file.path)) if isinstance(file, LocalFile) else opened


@contextmanager
def _mapped(file: LocalFile | StoredObject) -> Iterator[Any]:
    """Open a file for Arrow; one of this machine without copying it."""
    import pyarrow as pa

    if isinstance(file, LocalFile):
        with file.opened(), pa.memory_map(str(file.path)) as source:
            yield source
    else:
        with file.opened() as opened, pa.PythonFile(opened, mode="r") as source:
            yield source


@contextmanager
def _as_tables(file: LocalFile | StoredObject) -> Iterator[None]:
    """Replace pyarrow's errors, which may repeat values, by errors that do not."""
    with needs("arrow"):
        import pyarrow as pa
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _unreadable(file, str(error)) from None
    except OSError as error:
        if error.filename is not None:
            raise
        if error.errno is None:  # the error is about the file's content
            raise _unreadable(file, str(error)) from None
        raise OSError(error.errno, os.strerror(error.errno), str(file)) from None


def _unreadable(file: LocalFile | StoredObject, error: str) -> InvalidData:
    with file.opened() as opened:
        beginning = bytes(opened.read(2**12))
    kind = _ending(file)[1:]
    reason = "it is damaged, or no file of that kind" if kind != "csv" else _reason(beginning, error)
    return InvalidData(f"{file.name}: it can't be read as {kind}: {reason if beginning else 'it is empty'}.")


def _reason(beginning: bytes, error: str) -> str:
    """Return what is wrong with a CSV. beginning: first bytes; error: pyarrow's; only its numbers are used."""
    if b"\0" in beginning or "UTF8" in error or "utf-8" in error:
        return "it is not UTF-8: save it as UTF-8"
    if ragged := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", error):
        row, names, values = ragged.groups()
        for separator, called in ((b";", "semicolons"), (b"\t", "tabs")):
            if names == "1" and separator in beginning.splitlines()[0]:
                return f"{called} separate its values: save it with commas between values, and points in numbers"
        return f"row {row}, of which the header is the first, has {values} values, and the header {names} names"
    if wrong := re.search(r"column #(\d+): Row #(\d+): CSV conversion error", error):
        column, row = int(wrong[1]) + 1, wrong[2]
        other = f"has another kind of value in column {column} than those before"
        return f"row {row}, of which the header is the first, {other}: {_THROUGHOUT}"
    for words, reason in _REASONS.items():
        if words in error:
            return reason
    return _THROUGHOUT


_THROUGHOUT = "each column must hold numbers, or texts, throughout"
_REASONS = {
    "cannot infer number of columns": "no records follow the header",
    "straddling object": "a record is longer than 1 MiB, or a quote is never closed",
}


_READERS: dict[str, Callable[[LocalFile | StoredObject, _Wanted], Generator[Any]]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
    ".arrows": _arrow,
    ".ndjson": _ndjson,
    ".jsonl": _ndjson,
}
