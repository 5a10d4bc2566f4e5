"""The durable log in front of the record: one Redis stream per stream of records. Every Redis call lives here.

A batch is one entry. Beside the entries each stream has a hash `state` with the name of its log (so that a flushed log
is noticed rather than started anew), the sequence number of the newest entry (so that a lost or restored log is
noticed: numbers must follow each other without a gap) and how many bytes were appended and trimmed; and a second Redis
stream `dead` of what came in the first one and could not be numbered.

All keys of a stream carry the same hash tag and live in one slot of a cluster.
"""

from service.log.appender import (
    Appended,
    Appender,
    Backlog,
    BacklogFull,
    IdempotencyConflict,
    IdempotencyFull,
    Memory,
    Resumed,
)
from service.log.appenders import Appenders, LogState
from service.log.cluster import open_readers, read_primaries
from service.log.connection import LogMoves, LogUnavailable, Position
from service.log.primaries import Primaries, Primary
from service.log.probe import LogUnsuitable, probe
from service.log.reader import Entry, LogLost, Reader

__all__ = [
    "Appended",
    "Appender",
    "Appenders",
    "Backlog",
    "BacklogFull",
    "Entry",
    "IdempotencyConflict",
    "IdempotencyFull",
    "LogLost",
    "LogMoves",
    "LogState",
    "LogUnavailable",
    "LogUnsuitable",
    "Memory",
    "Position",
    "Primaries",
    "Primary",
    "Reader",
    "Resumed",
    "open_readers",
    "probe",
    "read_primaries",
]
