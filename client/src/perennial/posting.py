"""Batches on their way to the service: in order, none of them twice, and two at a time where that is safe.

The second one is sent before the first is answered, on the condition that the service stores it only after the first.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from perennial.errors import InvalidRecords, Problem
from perennial.exchange import (
    PATIENCE_SECONDS,
    Answer,
    Early,
    Exchange,
    Request,
    ask,
    is_out_of_turn,
    is_surely_undone,
    json_object,
    path_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perennial.batches import Batch
    from perennial.journal import Journal

AT_ONCE = 2


@dataclass
class _Waiting:
    """A batch that has no answer; where it was sent already, that request, and since when its key is used."""

    batch: Batch
    early: Early | None = None
    since: float | None = None


class Line:
    """Sends batches and returns them in their order.

    Two are on their way at a time only while the service answers that the batch before was stored just now. Then no
    call has used the keys after it. Had one, the first of both might be refused as other data than before and the
    second be stored, so that to append that data under another key would store it twice. The answer also says that this
    version of the service knows the condition.

    together: whether two may be on their way. root: what keys of batches begin with. confirmed: whether the service has
    what the journal says was accepted. If not, the service has forgotten it or has no numbers for it yet, and
    remembered keys decide. splits: whether batches that are too large may be split. Only batches whose key nobody can
    use again are: split elsewhere the next time, they would be stored twice.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        stream: str,
        root: str,
        patience: float,
        journal: Journal | None,
        *,
        confirmed: bool,
        splits: bool,
        together: bool,
    ) -> None:
        self._batches, self._stream, self._root, self._patience = batches, stream, root, patience
        self._journal, self._confirmed, self._splits, self._together = journal, confirmed, splits, together
        self._line: deque[_Waiting] = deque()
        self._failure: Exception | None = None  # of what makes batches
        self._was_new = False  # the last answer says that its batch was stored just now

    def next(self) -> Exchange[tuple[Batch, str] | None]:
        """Return the next batch and its entry in the log, "" if it was skipped; None after the last one."""
        while True:
            yield from self._fill()
            if not self._line:
                if self._failure is not None:
                    raise self._failure
                return None
            first = self._line[0]
            try:
                entry = yield from self._post(first)
            except Exception:
                yield from self._settle()
                raise
            self._line.popleft()
            if entry is not None:
                return first.batch, entry
            self._line.extendleft(_Waiting(half) for half in reversed(first.batch.halves()))

    def _fill(self) -> Exchange[None]:
        """Have one batch, or as many on their way as may be."""
        most = AT_ONCE if self._together and self._was_new else 1
        try:
            while len(self._line) < most and (batch := next(self._batches, None)) is not None:
                self._line.append(_Waiting(batch))
        except Exception as failure:  # noqa: BLE001 - it is raised once the batches before it are answered
            self._failure = failure
        if most == 1 or len(self._line) < most:
            return
        for before, each in pairwise((None, *self._line)):
            if each is None or each.early is not None:
                continue
            if self._journal is not None and not self._journal.is_untouched(each.batch):
                return
            each.since = time.time() if self._journal is None else self._journal.begin(each.batch)
            condition = {} if before is None else {"Idempotency-After": self._key(before.batch)}
            each.early = Early(_request(self._stream, *each.batch.body, self._key(each.batch), condition))
            yield each.early

    def _post(self, waiting: _Waiting) -> Exchange[str | None]:
        """Return the entry of a batch, "" if it was skipped; None: it is too large, is not stored, and is to be split.

        Send the batch unless that was done, or the journal says that it was accepted.
        """
        batch, journal = waiting.batch, self._journal
        if journal is None:
            return (yield from self._send(waiting, []))
        if waiting.early is None:
            entry = journal.accepted(batch)
            if entry is not None and (self._confirmed or not entry):
                return entry
            waiting.since = journal.begin(batch)
            if waiting.since is None:
                return ""
        doubts = [] if journal.is_new(batch) else ["by an earlier call"]
        try:
            posted = yield from self._send(waiting, doubts)
        except Problem as refused:
            if isinstance(refused, InvalidRecords) or (refused.slug == "too-large" and not doubts):
                journal.withdraw(batch.first)  # so that a call with better records, or smaller batches, goes on
            raise
        if posted is not None:
            journal.end(batch, posted)
        return posted

    def _send(self, waiting: _Waiting, doubts: list[str]) -> Exchange[str | None]:
        """Return the batch's entry in the log, or None as `_post` does. doubts: as for `ask`."""
        batch = waiting.batch
        request = _request(self._stream, *batch.body, self._key(batch))
        answer = None if waiting.early is None else (yield waiting.early)
        if is_out_of_turn(answer) or (isinstance(answer, Answer) and answer.status == 429):
            self._together = self._together and is_out_of_turn(answer)  # else there is no room for two
            answer = None  # now that the one before is stored, it goes by itself
        try:
            answer = yield from ask(request, answer=answer, patience=self._patience, since=waiting.since, doubts=doubts)
        except InvalidRecords as refused:
            raise _numbered(refused, batch.first) from None
        except Problem as problem:
            if problem.slug == "too-large" and self._splits and not doubts and len(batch.block) > 1:
                return None
            raise
        self._was_new = answer.headers.get("idempotent-replayed") == "false"
        return str(json_object(answer)["entry"])

    def _settle(self) -> Exchange[None]:
        """After a failure, wait for the answer to what was sent after it, and forget what surely is not stored."""
        for waiting in list(self._line)[1:]:
            if waiting.early is not None:
                answer = yield waiting.early
                if self._journal is not None and is_surely_undone(answer):
                    self._journal.withdraw(waiting.batch.first)

    def _key(self, batch: Batch) -> str:
        return f"{self._root}:{batch.first}"


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
    request = _request(stream, media_type, body, key)
    return str(json_object((yield from ask(request, patience=patience, since=since, doubts=doubts)))["entry"])


def _request(stream: str, media_type: str, body: bytes, key: str, more: dict[str, str] | None = None) -> Request:
    headers = {"Content-Type": media_type, "Idempotency-Key": key} | (more or {})
    return Request(method="POST", path=f"{path_of('streams', stream)}/records", headers=headers, body=body)


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
