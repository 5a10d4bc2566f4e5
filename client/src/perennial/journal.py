"""A journal of an append: a file that says which of its batches were sent, and which were accepted.

The service remembers an `Idempotency-Key` for 24 hours. With a journal, a batch that was accepted is never stored
again. A batch that was sent and never answered is sent again only while the service surely remembers its key.

Batches are sent one after the other. Several may be announced with one write to the disk, which is what takes long: of
those that have no answer, all after the first one that is not stored were never sent.
"""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from perennial.errors import InvalidArgument, InvalidData, PerennialError, Uncertain
from perennial.exchange import is_remembered

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from perennial.batches import Batch

_ON_DISK = "PRAGMA synchronous = FULL"  # a batch is sent only once its announcement is on disk
_ANNOUNCED = "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)"
Resolution: TypeAlias = Literal["refuse", "skip", "send"]
_TABLE = """
CREATE TABLE IF NOT EXISTS batches (
  append TEXT NOT NULL, first INTEGER NOT NULL, records INTEGER NOT NULL, digest TEXT NOT NULL,
  sender TEXT NOT NULL, sent REAL NOT NULL, entry TEXT, PRIMARY KEY (append, first)
) WITHOUT ROWID
"""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A batch that was announced.

    sent: when, in seconds since 1970. entry: of the log, "" if it was skipped, None without an answer.
    sender: a digest of the API key that it was sent with.
    """

    records: int
    digest: str
    sender: str
    sent: float
    entry: str | None


class Journal:
    """The batches of one append, in the order of their first records. Made by `opened`."""

    def __init__(
        self, path: Path, database: sqlite3.Connection, append: str, sender: str, uncertain: Resolution
    ) -> None:
        self.path = path
        self._database, self._append, self._sender, self._uncertain = database, append, sender, uncertain
        self._new: set[int] = set()  # first records of the batches announced by this process
        self._begun: set[int] = set()  # first records of the batches that were perhaps sent
        self._skipped = False

    def newest(self) -> Sent | None:
        """Return the last batch that has an entry; None without any."""
        return self._row("entry <> '' ORDER BY first DESC LIMIT 1")

    def has_only_remembered(self) -> bool:
        """Return whether the service certainly remembers the keys of all accepted batches."""
        senders = self._database.execute(
            "SELECT sender, min(sent), max(sent) FROM batches WHERE append = ? AND entry <> '' GROUP BY sender",
            (self._append,),
        )
        return all(
            sender == self._sender and is_remembered(first) and is_remembered(last) for sender, first, last in senders
        )

    def accepted(self, batch: Batch) -> str | None:
        """Return the entry of a batch that was accepted before, "" if it was skipped; None if it was not.

        Raises InvalidData if the batch holds other records than before.
        """
        known = self._sent(batch)
        if known is None or known.entry is None:
            return None
        self._same(batch, known)
        return known.entry

    def announce(self, batches: Sequence[Batch]) -> list[Batch]:
        """Note which batches will be sent next, and return them, split as in an earlier call."""
        parts = [part for batch in batches for part in self._as_before(batch)]
        new = [part for part in parts if self._sent(part) is None]
        if new:
            self._database.execute("BEGIN")
            self._database.executemany(_ANNOUNCED, [self._note(batch, None) for batch in new])
            self._database.execute("COMMIT")
            self._new.update(batch.first for batch in new)
        return parts

    def _as_before(self, batch: Batch) -> Iterator[Batch]:
        """Yield a batch in the parts in which it was announced before, and the rest: data may have grown since.

        So no batch begins within one that was announced, unless it is refused: its records could be stored twice.
        """
        while (known := self._sent(batch)) is not None and known.records < len(batch.block):
            part, batch = batch.split(known.records)
            yield part
        yield batch

    def is_new(self, batch: Batch) -> bool:
        """Return whether a batch was announced here for the first time."""
        return batch.first in self._new

    def begin(self, batch: Batch) -> float | None:
        """Return when the key of a batch that is to be sent now was announced first; None: skip the batch.

        Raises InvalidData if it was announced with other records, Uncertain if it may have been sent before, was not
        answered, and the service may have forgotten its key.
        """
        is_unsent = batch.first in self._new and batch.first not in self._begun
        self._begun.add(batch.first)
        known = self._sent(batch)
        if known is not None and self.is_remembered(known):
            self._same(batch, known)
            return known.sent
        if is_unsent:
            known = None  # it was never sent, so the time in its note does not matter
        if known is not None and known.entry is not None:
            raise Uncertain(
                f"The service does not have the entry {known.entry}, which {self.path} says holds records of this "
                "append: the stream is another one of that name, was put back to an earlier state, or numbers records "
                "late. Remove that file only if all records are to be stored anew."
            )
        if known is not None and (self._uncertain == "refuse" or self._skipped):
            raise Uncertain(
                f"The batch that begins with record {batch.first} was sent on an earlier day, or with another API key, "
                "and no answer came: the service can't tell any more whether it is stored. See whether the stream "
                f"holds more records than the {batch.first} that were accepted before it, and give `uncertain`: skip "
                "if the batch is stored, send if it is not. To skip counts for this batch alone."
            )
        skip = known is not None and self._uncertain == "skip"
        if known is not None and skip:
            self._same(batch, known)
            self._skipped = True
        note = self._note(batch, "" if skip else None)
        self._database.execute(_ANNOUNCED, note)
        return None if skip else note[-2]

    def _note(self, batch: Batch, entry: str | None) -> tuple[str, int, int, str, str, float, str | None]:
        return self._append, batch.first, len(batch.block), batch.digest, self._sender, time.time(), entry

    def end(self, batch: Batch, entry: str) -> None:
        """Note that a batch was accepted.

        The note outlives this process at once, and a power failure from the next announcement on: until then the
        batch counts as not answered, so it is sent again under its key, or is uncertain.
        """
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.execute(
            "UPDATE batches SET entry = ? WHERE append = ? AND first = ?", (entry, self._append, batch.first)
        )
        self._database.execute(_ON_DISK)

    def withdraw(self, *first: int) -> None:
        """Forget batches that are certainly not stored, given their first records."""
        self._database.executemany(
            "DELETE FROM batches WHERE append = ? AND first = ? AND entry IS NULL",
            [(self._append, record) for record in first],
        )

    def withdraw_unsent(self) -> None:
        """Forget the batches that this process announced but did not send: they are not uncertain."""
        self.withdraw(*self._new - self._begun)

    def is_remembered(self, known: Sent) -> bool:
        """Return whether the service surely remembers the key of a batch."""
        return known.sender == self._sender and is_remembered(known.sent)

    def _sent(self, batch: Batch) -> Sent | None:
        return self._row("first = ?", batch.first)

    def _row(self, where: str, *values: int) -> Sent | None:
        columns = "records, digest, sender, sent, entry"
        row = self._database.execute(
            f"SELECT {columns} FROM batches WHERE append = ? AND {where}",  # noqa: S608 - no text from outside
            (self._append, *values),
        ).fetchone()
        return None if row is None else Sent(**dict(zip(columns.split(", "), row, strict=True)))

    def _same(self, batch: Batch, known: Sent) -> None:
        if (known.records, known.digest) != (len(batch.block), batch.digest):
            raise InvalidData(
                f"The batch that begins with record {batch.first} was sent before with other records, or with "
                "another `batch`: append exactly the same data, which others may follow, in batches of the same size; "
                "or new data under another key, which is --name of `perennial load`."
            )


@contextmanager
def opened(
    file: str | Path | None, stream: str, key: str | None, sender: str, uncertain: Resolution
) -> Iterator[Journal | None]:
    """Open a journal's file, or make it, for this process alone; None: there is to be none.

    stream, key: of the append; one file may hold several. sender: a digest of the API key.
    """
    if file is None:
        yield None
        return
    if key is None:
        raise InvalidArgument("an append with a journal needs a key")
    if uncertain not in get_args(Resolution):
        raise InvalidArgument('uncertain must be "refuse", "skip" or "send"')
    import sqlite3

    path = Path(file)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as database:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")  # held until this process closes the journal or ends
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(_ON_DISK)
            database.execute(_TABLE)
            journal = Journal(path, database, f"{stream} {key}", sender, uncertain)
            try:
                yield journal
            finally:
                journal.withdraw_unsent()
    except sqlite3.Error as error:
        busy = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        reason = "another process appends with it" if busy else f"it is no journal, or its disk fails ({error})"
        raise PerennialError(f"The journal {path} can't be used: {reason}.") from None
