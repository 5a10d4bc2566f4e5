"""Files of named float64 arrays with metadata, in the format of https://github.com/huggingface/safetensors."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from perennial.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LONGEST_HEADER_BYTES = 2**24
_BAD = "The file is not a whole safetensors file of float64 arrays."


def write(tensors: Mapping[str, Floats], metadata: Mapping[str, str]) -> bytes:
    """Return the file's bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts: list[bytes] = []
    end = 0
    for name, values in tensors.items():
        data = np.ascontiguousarray(values, dtype="<f8").tobytes()
        header[name] = {"dtype": "F64", "shape": list(np.shape(values)), "data_offsets": [end, end + len(data)]}
        end += len(data)
        parts.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *parts))


def read(file: bytes) -> tuple[dict[str, Floats], dict[str, str]]:
    """Return the arrays and the metadata. Raises Unsupported for a damaged file and for numbers of another type."""
    size = int.from_bytes(file[:8], "little")
    if len(file) < 8 or size > min(LONGEST_HEADER_BYTES, len(file) - 8):
        raise Unsupported(_BAD)
    try:
        header = json.loads(file[8 : 8 + size])
        metadata = {str(name): str(value) for name, value in header.pop("__metadata__", {}).items()}
        return {name: _tensor(described, file[8 + size :]) for name, described in header.items()}, metadata
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unsupported(_BAD) from None


def _tensor(described: Mapping[str, Any], data: bytes) -> Floats:
    start, end = described["data_offsets"]
    shape = [int(size) for size in described["shape"]]
    if described["dtype"] != "F64" or not 0 <= start <= end <= len(data) or 8 * math.prod(shape) != end - start:
        raise ValueError(_BAD)
    return np.frombuffer(data[start:end], dtype="<f8").astype(np.float64).reshape(shape)
