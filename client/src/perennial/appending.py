"""Appending as an exchange: batch by batch, in order, none of them twice."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from perennial.batches import cut, one_by_one, ready
from perennial.data import blocks
from perennial.exchange import (
    FIRST_PAUSE_SECONDS,
    PATIENCE_SECONDS,
    Exchange,
    Pause,
    Request,
    ask,
    json_object,
    path_of,
)
from perennial.posting import Line
from perennial.schema import Schema

if TYPE_CHECKING:
    from perennial.batches import Batch
    from perennial.journal import Journal

LONGEST_KEY = 200
NUMBERED_SECONDS = 30.0  # in which a batch that was accepted surely gets its numbers, unless a worker is away
Progress = Callable[[int], object]
_UNKNOWN = Schema()


@dataclass(frozen=True, kw_only=True)
class Appended:
    """The receipt of an append: the number of records, and the log's entry of each batch."""

    records: int
    entries: tuple[str, ...]


def append(
    stream: str,
    data: Any,
    *,
    label: Any = None,
    unit: Any = None,
    features: Iterable[str] | None = None,
    schema: Schema = _UNKNOWN,
    key: str | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
    patience: float = PATIENCE_SECONDS,
    journal: Journal | None = None,
    ahead: bool = False,
) -> Exchange[Appended]:
    """Append all records of `data`, batch by batch, none of them twice. The arguments are those of `Stream.append`."""
    if key is not None and not 1 <= len(key) <= LONGEST_KEY:
        raise ValueError(f"key must have 1 to {LONGEST_KEY} characters")
    if batch is not None and batch < 1:
        raise ValueError("batch must be at least 1")
    root = key or uuid.uuid4().hex
    batches = cut(blocks(data, label, features, schema.names, unit), batch, schema.most_records)
    records, entries = 0, []
    try:
        confirmed = journal is not None and (yield from _has_newest(stream, journal))
        with closing(ready(batches) if ahead else one_by_one(batches)) as groups:
            line = Line(
                _announced(groups, journal),
                stream,
                root,
                patience,
                journal,
                confirmed=confirmed,
                splits=key is None,
                together=ahead and key is not None,
            )
            while (accepted := (yield from line.next())) is not None:
                batch_sent, entry = accepted
                records += len(batch_sent.block)
                entries += [entry] if entry else []
                if progress is not None:
                    progress(len(batch_sent.block))
    except Exception as error:
        error.add_note(f"{records} records in {len(entries)} batches were accepted before this.")
        raise
    return Appended(records=records, entries=tuple(entries))


def _announced(groups: Iterable[list[Batch]], journal: Journal | None) -> Iterator[Batch]:
    """Yield all batches, each once the journal says that it will be sent."""
    for group in groups:
        if journal is not None:
            journal.announce(group)
        yield from group


def _has_newest(stream: str, journal: Journal) -> Exchange[bool]:
    """Return whether the service has the last entry that the journal says was accepted.

    Where that can't be sent again, wait a while until the entry has numbers.
    """
    newest = journal.newest()
    if newest is None:
        return False
    request = Request(path=f"{path_of('streams', stream)}/entries/{quote(newest.entry or '', safe='')}")
    deadline = time.monotonic() + (0 if journal.is_remembered(newest) else NUMBERED_SECONDS)
    while (yield from ask(request, 404, patience=PATIENCE_SECONDS)).status == 404:
        if time.monotonic() >= deadline:
            return False
        yield Pause(FIRST_PAUSE_SECONDS)
    return True


def numbers(stream: str, appended: Appended) -> Exchange[list[tuple[int, int]] | None]:
    """Return the ranges of numbers that the records got, batch by batch; None: some have none yet."""
    ranges: list[tuple[int, int]] = []
    for entry in appended.entries:
        answer = yield from ask(Request(path=f"{path_of('streams', stream)}/entries/{quote(entry, safe='')}"), 404)
        if answer.status == 404:
            return None
        interval = json_object(answer)
        ranges.append((interval["start"], interval["end"]))
    return ranges
