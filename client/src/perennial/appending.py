"""Appending as an exchange: batch by batch, in order, each exactly once."""

from __future__ import annotations

import operator
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from perennial.batches import Batch, cut, one_by_one, ready
from perennial.data import blocks
from perennial.errors import InvalidArgument, InvalidData, InvalidRecords, Problem, Unreachable
from perennial.exchange import (
    FIRST_PAUSE_SECONDS,
    PATIENCE_SECONDS,
    Exchange,
    Pause,
    Request,
    ask,
    is_refusal,
    json_object,
    path_of,
)
from perennial.schema import Schema

if TYPE_CHECKING:
    from perennial.data import Block
    from perennial.journal import Journal

LONGEST_KEY = 200
_KEY = re.compile(rf"[\t -~\x80-\xff]{{1,{LONGEST_KEY}}}")  # characters that an HTTP header can hold
NUMBERED_SECONDS = 30.0  # seconds within which an accepted batch gets its numbers while a worker runs
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
    if key is not None and _KEY.fullmatch(key) is None:
        raise InvalidArgument(f"key must have 1 to {LONGEST_KEY} characters of Latin-1 that are no control characters")
    batch = None if batch is None else operator.index(batch)  # accepts numpy's integers too
    if batch is not None and batch < 1:
        raise InvalidArgument("batch must be at least 1")
    patience = float(patience)
    root = key or uuid.uuid4().hex
    read = _with_units(blocks(data, label, features, schema.names, unit), schema)
    batches = cut(read, batch, schema.most_records)
    records, entries = 0, []
    try:
        confirmed = journal is not None and (yield from _has_newest(stream, journal))
        with closing(ready(batches) if ahead else one_by_one(batches)) as groups:
            for group in groups:
                pending = group if journal is None else journal.announce(group)
                while pending:
                    entry = (
                        (yield from _post_batch(stream, pending[0], root, patience, [], may_split=key is None))
                        if journal is None
                        else (yield from _post_once(stream, pending[0], root, patience, journal, confirmed=confirmed))
                    )
                    if entry is None:
                        pending[:1] = pending[0].halves()
                        continue
                    accepted = len(pending.pop(0).block)
                    records += accepted
                    entries += [entry] if entry else []
                    if progress is not None:
                        progress(accepted)
    except Exception as error:
        error.add_note(f"{records} records in {len(entries)} batches were accepted before this.")
        raise
    return Appended(records=records, entries=tuple(entries))


def _with_units(read: Iterable[Block], schema: Schema) -> Iterator[Block]:
    """Yield the blocks. Raises InvalidData where the stream has units, and the records name none."""
    for block in read:
        if schema.has_units and block.unit is None:
            raise InvalidData("The stream has units: say whose each record is, by unit=… or `perennial load --unit`.")
        yield block


def _has_newest(stream: str, journal: Journal) -> Exchange[bool]:
    """Return whether the service has the last entry that the journal says was accepted.

    Where a batch that was accepted can't be sent again, wait a while until the entry has numbers.
    """
    newest = journal.newest()
    if newest is None:
        return False
    request = Request(path=f"{path_of('streams', stream)}/entries/{quote(newest.entry or '', safe='')}")
    deadline = time.monotonic() + (0 if journal.has_only_remembered() else NUMBERED_SECONDS)
    while (yield from ask(request, 404, patience=PATIENCE_SECONDS)).status == 404:
        if time.monotonic() >= deadline:
            return False
        yield Pause(FIRST_PAUSE_SECONDS)
    return True


def _post_once(
    stream: str, batch: Batch, root: str, patience: float, journal: Journal, *, confirmed: bool
) -> Exchange[str]:
    """Send a batch unless the journal says that it was accepted; return its entry, "" if it was skipped.

    confirmed: whether the service has what the journal says was accepted. If not, the service has forgotten it or has
    no numbers for it yet, and remembered keys decide.
    """
    entry = journal.accepted(batch)
    if entry is not None and (confirmed or not entry):
        return entry
    since = journal.begin(batch)
    if since is None:
        return ""
    doubts = [] if journal.is_new(batch) else ["by an earlier call"]
    try:
        posted = yield from _post_batch(stream, batch, root, patience, doubts, may_split=False, since=since)
    except (Problem, Unreachable) as error:
        if is_refusal(error, doubts):
            journal.withdraw(batch.first)  # so that a later call may send other records, or smaller batches
        raise
    entry = posted or ""
    journal.end(batch, entry)
    return entry


def _post_batch(
    stream: str,
    batch: Batch,
    root: str,
    patience: float,
    doubts: list[str],
    *,
    may_split: bool,
    since: float | None = None,
) -> Exchange[str | None]:
    """Return the batch's entry in the log; None: the batch is too large, is not stored, and is to be split.

    Only batches whose key nobody can use again are split: split elsewhere the next time, they would be stored twice.
    doubts: as for `ask`. since: when the key was first used, in seconds since 1970; default now.
    """
    media_type, body = batch.body
    try:
        return (yield from post_records(stream, media_type, body, f"{root}:{batch.first}", patience, since, doubts))
    except InvalidRecords as refused:
        raise _numbered(refused, batch.first) from None
    except Problem as problem:
        if problem.slug == "too-large" and may_split and not doubts and len(batch.block) > 1:
            return None
        raise


def post_records(
    stream: str,
    media_type: str,
    body: bytes,
    key: str,
    patience: float = PATIENCE_SECONDS,
    since: float | None = None,
    doubts: list[str] | None = None,
) -> Exchange[str]:
    """Send one body of records under an idempotency key, and return its entry in the log.

    since: when the key was first used, in seconds since 1970; default now. doubts: as for `ask`.
    """
    headers = {"Content-Type": media_type, "Idempotency-Key": key}
    request = Request(method="POST", path=f"{path_of('streams', stream)}/records", headers=headers, body=body)
    return str(json_object((yield from ask(request, patience=patience, since=since, doubts=doubts)))["entry"])


def _numbered(refused: InvalidRecords, first: int) -> InvalidRecords:
    """Return the refusal with rows counted from the first record of the call."""
    rows = [
        error | {"row": error["row"] + first} if isinstance(error.get("row"), int) else error
        for error in refused.members.get("errors", [])
    ]
    where = f"In the batch that begins with record {first}: " if first else ""
    return InvalidRecords(
        slug=refused.slug,
        status=refused.status,
        title=refused.title,
        detail=where + refused.detail,
        members=refused.members | {"errors": rows},
    )


def numbers(stream: str, appended: Appended) -> Exchange[list[tuple[int, int]] | None]:
    """Return the ranges of numbers that the records got, batch by batch; None while some have no numbers."""
    ranges: list[tuple[int, int]] = []
    for entry in appended.entries:
        answer = yield from ask(Request(path=f"{path_of('streams', stream)}/entries/{quote(entry, safe='')}"), 404)
        if answer.status == 404:
            return None
        interval = json_object(answer)
        ranges.append((interval["start"], interval["end"]))
    return ranges
