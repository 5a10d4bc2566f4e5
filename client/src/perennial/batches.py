"""Blocks of records as request bodies: within the server's limits, and the same bytes whenever they are made again."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from perennial.data import Array, Block, joined

MOST_RECORDS = 2**15
MOST_TEXTS = 1_000
MOST_BYTES = 2**20 - 2**12  # bytes of a batch's numbers in Arrow: the service is slower with larger bodies
_UNIT_BYTES = 2**6
AHEAD = 8  # batches that a thread prepares ahead
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # the end marker of an Arrow stream
JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of records, with the position of its first record in the call's data."""

    first: int
    block: Block

    @cached_property
    def body(self) -> tuple[str, bytes]:
        """Return the media type and the body of a request with the records."""
        return encode(self.block)

    @cached_property
    def digest(self) -> str:
        """Return a digest of the records, the same however they came and are encoded."""
        return _digest(self.block)

    def halves(self) -> tuple[Batch, Batch]:
        """Return the batch split into two halves."""
        return self.split(len(self.block) // 2)

    def split(self, records: int) -> tuple[Batch, Batch]:
        """Return the batch split after that many records."""
        return (
            Batch(first=self.first, block=self.block[:records]),
            Batch(first=self.first + records, block=self.block[records:]),
        )


def cut(blocks: Iterator[Block], given: int | None = None, most: int = MOST_RECORDS) -> Iterator[Batch]:
    """Yield batches of equal size, the last one smaller, which do not depend on the sizes of the blocks.

    given: the records of a batch; default as many of that width as the service surely takes, and reads at once. most:
    that the service takes of the stream at all.
    """
    first, rest = 0, None
    for block in blocks:
        size = given or min(most, _usual_size(block))
        start = 0
        if rest is not None:
            start = size - len(rest)
            rest = joined(rest, block[:start])
            if len(rest) < size:
                continue
            yield Batch(first=first, block=rest)
            first, rest = first + size, None
        while start + size <= len(block):
            yield Batch(first=first, block=block[start : start + size])
            first, start = first + size, start + size
        if start < len(block):
            rest = block[start:]
    if rest is not None:
        yield Batch(first=first, block=rest)


def one_by_one(batches: Iterator[Batch]) -> Generator[list[Batch]]:
    """Yield each batch in a list of its own."""
    return ([batch] for batch in batches)


def ready(batches: Iterator[Batch]) -> Generator[list[Batch]]:
    """Yield lists of the batches that are ready, at least one. A thread makes batches, bodies and digests."""

    def prepared() -> Batch | None:
        batch = next(batches, None)
        _ = batch and (batch.body, batch.digest)
        return batch

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as thread:
        coming = deque(thread.submit(prepared) for _ in range(AHEAD))
        try:
            while (batch := coming.popleft().result()) is not None:
                group = [batch]
                while coming and (following := _result(coming[0])) is not None:
                    group.append(following)
                    coming.popleft()
                coming += [thread.submit(prepared) for _ in group]
                yield group
        finally:
            thread.shutdown(cancel_futures=True)


def _result(future: Future[Batch | None]) -> Batch | None:
    """Return the future's result if it is ready; None if it is not, or if it is an error."""
    return future.result() if future.done() and future.exception() is None else None


def _usual_size(block: Block) -> int:
    if block.has_texts:
        return MOST_TEXTS
    width = 0 if block.x is None else block.x.shape[1]
    size = 4 * width + 8 + (0 if block.unit is None else _UNIT_BYTES)
    return max(1, min(MOST_RECORDS, MOST_BYTES // size))


def encode(block: Block) -> tuple[str, bytes]:
    """Return the media type and the body: Arrow where pyarrow is installed, since the server reads that faster."""
    if _has_arrow() and not block.has_texts:
        return ARROW, _as_arrow(block)
    columns = {name: column.tolist() for name, column in vars(block).items() if column is not None}
    return JSON, json.dumps(columns, separators=(",", ":")).encode()


@cache
def _has_arrow() -> bool:
    return find_spec("pyarrow") is not None


def _as_arrow(block: Block) -> bytes:
    import pyarrow as pa

    columns: dict[str, Any] = {}
    if block.x is not None:
        numbers = _arrow_array(np.ascontiguousarray(block.x, dtype=np.float32).ravel())
        columns["x"] = pa.FixedSizeListArray.from_arrays(numbers, block.x.shape[1])
    if block.y is not None:
        columns["y"] = _arrow_array(np.ascontiguousarray(block.y, dtype=block.y.dtype.newbyteorder("=")))
    if block.unit is not None:
        columns["unit"] = _arrow_texts(block.unit)
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return b"".join((batch.schema.serialize(), batch.serialize(), _END_OF_STREAM))


def _arrow_array(numbers: Array) -> Any:
    """Return an Arrow array of the same memory, without pandas, which `pyarrow.array` imports."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def _arrow_texts(ids: Array) -> Any:
    """Return an Arrow array of ids as texts, without pandas; a number is the unit of its digits."""
    import pyarrow as pa

    encoded = [str(unit).encode() for unit in ids.tolist()]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def _digest(block: Block) -> str:
    made = hashlib.sha256(f"{None if block.x is None else block.x.shape}".encode())
    if block.x is not None:
        made.update(
            json.dumps(block.x.tolist()).encode()
            if block.has_texts
            else np.ascontiguousarray(block.x, dtype=np.float32).data
        )
    if block.y is not None:
        made.update(np.ascontiguousarray(block.y, dtype=np.float64).data)
    if block.unit is not None:
        made.update(json.dumps([str(unit) for unit in block.unit.tolist()]).encode())
    return made.hexdigest()
