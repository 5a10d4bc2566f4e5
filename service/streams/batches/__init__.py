"""Reads batches of records: checked against the stream's layout as a whole, taken whole or refused whole.

The same records give the same columns, and the same mistakes the same reasons, whatever format they come in. Reasons
name rows and columns, never values.
"""

from collections.abc import Callable

from service.streams.batches.arrow import read_arrow
from service.streams.batches.checks import InvalidRecords
from service.streams.batches.columns import read_json
from service.streams.batches.named import wrong_class
from service.streams.batches.rows import read_rows
from service.streams.codec import Columns
from service.streams.layout import RecordLayout

Reader = Callable[[bytes, RecordLayout], Columns]

READERS: dict[str, Reader] = {
    "application/json": read_json,
    "application/x-ndjson": read_rows,
    "application/vnd.apache.arrow.stream": read_arrow,
}

__all__ = ["READERS", "InvalidRecords", "Reader", "read_json", "wrong_class"]
