"""Reads batches of records: checked against the stream's layout as a whole, taken whole or refused whole.

The same records give the same columns, and the same mistakes the same reasons, whatever format they come in. Reasons
name rows and columns, never values.
"""

import hashlib
import hmac
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


class TooManyRecords(Exception):
    """A batch holds more records than the `most` that it may hold."""

    def __init__(self, most: int) -> None:
        super().__init__("too many records")
        self.most = most


def read_batch(
    read: Reader, body: bytes, layout: RecordLayout, most: int, secret: bytes | None = None
) -> tuple[int, bytes]:
    """Return how many records a body holds, and the batch as the log holds it.

    Args:
        read: reads the body's format.
        body: unpacked.
        layout: the stream's.
        most: the most records that it may hold.
        secret: of the pseudonyms of units, if the stream has units.

    Raises:
        InvalidRecords: some are wrong.
        TooManyRecords: nothing was encoded.
    """
    columns = read(body, layout)
    records = len(next(iter(columns.values())))
    if records > most:
        raise TooManyRecords(most)
    return records, layout.encode(columns, secret)


def fingerprint(body: bytes, secret: bytes | None) -> str:
    """Return the fingerprint of a body. With units it is keyed by the stream's secret, so that nobody can test ids."""
    return hashlib.sha256(body).hexdigest() if secret is None else hmac.digest(secret, body, "sha256").hex()


__all__ = [
    "READERS",
    "InvalidRecords",
    "Reader",
    "TooManyRecords",
    "fingerprint",
    "read_batch",
    "read_json",
    "wrong_class",
]
