"""Blocks of records as request bodies: within the server's limits, and the same bytes whenever they are made again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from perennial.data import Block, joined

MOST_RECORDS = 10_000
MOST_TEXTS = 1_000
MOST_BYTES = 2**22  # of a batch's numbers as doubles
_UNIT_BYTES = 2**8
JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some records, and the number of the first one among all of a call."""

    first: int
    block: Block

    def halves(self) -> tuple[Batch, Batch]:
        """Return both halves."""
        middle = len(self.block) // 2
        return (
            Batch(first=self.first, block=self.block[:middle]),
            Batch(first=self.first + middle, block=self.block[middle:]),
        )


def cut(blocks: Iterator[Block], most: int | None = None) -> Iterator[Batch]:
    """Yield batches of so many records, the last one of fewer: the same ones however the records come in blocks.

    most: records of a batch; default as many of that width as the service surely takes.
    """
    first, rest = 0, None
    for block in blocks:
        whole = block if rest is None else joined(rest, block)
        size = most or _usual_size(whole)
        full = len(whole) - len(whole) % size
        for start in range(0, full, size):
            yield Batch(first=first + start, block=whole[start : start + size])
        first, rest = first + full, whole[full:] if full < len(whole) else None
    if rest is not None:
        yield Batch(first=first, block=rest)


def _usual_size(block: Block) -> int:
    if block.has_texts:
        return MOST_TEXTS
    width = 1 if block.x is None else max(1, block.x.shape[1])
    size = 8 * width + (0 if block.unit is None else _UNIT_BYTES)
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
        numbers = pa.array(np.ascontiguousarray(block.x, dtype=np.float32).ravel())
        columns["x"] = pa.FixedSizeListArray.from_arrays(numbers, block.x.shape[1])
    if block.y is not None:
        columns["y"] = pa.array(np.ascontiguousarray(block.y))
    if block.unit is not None:
        columns["unit"] = pa.array([str(each) for each in block.unit.tolist()])  # a number is the unit of its digits
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
