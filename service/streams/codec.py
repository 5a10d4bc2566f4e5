"""The columns of a batch of records, `x` (float32, records × features) and `y`, and their bytes: safetensors.

On a stream with units also `unit`, 16 bytes of pseudonym each, and in segments `counts`, 1 where the slot counts
(`worker.counting`).

Batches in the log and segments have this one format.
"""

import json
import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

Columns = dict[str, NDArray[np.generic]]

_KINDS: dict[np.dtype[Any], str] = {np.dtype("<f4"): "F32", np.dtype("<i4"): "I32", np.dtype("u1"): "U8"}


def pack(columns: Columns) -> bytes:
    """Return the bytes of a batch.

    They are joined here because safetensors' own writer copies all numbers twice, which takes as long as all the rest.
    """
    arrays = [np.ascontiguousarray(column) for column in columns.values()]
    kinds = tuple((name, array.dtype, array.shape) for name, array in zip(columns, arrays, strict=True))
    return b"".join([_head(kinds), *(array.data for array in arrays)])


@lru_cache(maxsize=256)
def _head(arrays: tuple[tuple[str, np.dtype[np.generic], tuple[int, ...]], ...]) -> bytes:
    """Return the head of a safetensors file: a length of 8 bytes, and JSON filled up to a multiple of 8."""
    described, start = {}, 0
    for name, kind, shape in arrays:
        stop = start + kind.itemsize * math.prod(shape)
        described[name] = {"dtype": _KINDS[kind], "shape": shape, "data_offsets": (start, stop)}
        start = stop
    head = json.dumps(described, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head


def unpack(packed: bytes) -> Columns:
    """Return the columns of a batch."""
    return load(packed)
