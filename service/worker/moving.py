"""Moves the log of a stream to another primary of a list.

Statement. Every accepted batch is numbered once, a repeated request is one batch, and a dead letter stays until it is
dropped, whenever this command or anything else ends, and however many commands run at the same time.

1. *Close.* The old log takes no batch from here on. An API that meets a closed log looks where the stream is now; it
   appends there, or answers 503.
2. *Drain.* The stream's sealer numbers what is left.
3. *Copy.* The new log is made, closed, with the sequence number at which the old one ended. It gets the remembered
   answers of requests, and the dead letters.
4. *Switch.* One transaction says where the stream is. It checks that this command still has the lease of the move and
   that nothing was numbered or halted since, and takes the stream from its sealer.
5. *Open* the new log.
6. *Leave* the old one: all but the mark that it is closed is deleted. The mark stays for ever.

Proof. Two logs of a stream never take batches at the same time: the old one is closed before the switch, the new one
opened after it. A closed log is opened by two alone. This command opens the log of the place where it knows the stream
to be, under its lease. A sealer takes the lease first, and then looks where the stream is: so the command that had the
lease before can't switch any more. A command without the lease changes nothing in a log that its successor has
touched, since logs know the highest number of a move. Only a log that takes no batches and is not the stream's is
deleted. So an accepted batch is numbered, or lies in the log where the stream is.

A command that is killed leaves a closed log. The stream's sealer opens it when the lease has run out (`reopen`). Run
again, the command goes through all steps; a step that was done before changes nothing.

A database that was put back to before the switch says that the stream is on a primary that it has left, or that it
would have left next. In both cases the stream halts: no closed log is opened while the log where its stream goes takes
batches. Then steps 1 to 3 are left out: the switch says where the one log is that takes batches, if it is at the place
that the operator names, and none elsewhere. The stream stays halted: `resume` finds out what that log lacks.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing

from service.log import (
    LogLost,
    LogUnavailable,
    MovedLog,
    Overtaken,
    Position,
    Primaries,
    Primary,
    Reader,
    probe,
    read_primaries,
)
from service.log.primaries import ListedPrimaries
from service.settings import Settings
from service.store import leases, places, streams
from service.store.database import Database
from service.store.leases import Lease, LeaseLost
from service.store.streams import Stream
from service.worker.leases import LeaseKeeper

PAUSE_SECONDS = 0.05  # between two looks at whether something is so


class Immovable(Exception):
    """The stream can't be moved; it goes on where it is."""


class Mover:
    """Moves streams, one at a time."""

    def __init__(
        self, database: Database, primaries: ListedPrimaries, keeper: LeaseKeeper, say: Callable[[str], None]
    ) -> None:
        self._database, self._primaries, self._keeper, self._say = database, primaries, keeper, say

    def move(self, name: str, place: int) -> None:
        """Move a stream to the primary of that number, or finish a move that was stopped.

        Raises:
            Immovable: there is no such stream or primary, the stream is halted, or somebody else moves it.
            LogUnavailable, DatabaseUnavailable: a server is away; run the command again.
        """
        every = self._primaries.every()
        if not 1 <= place <= len(every) or len(every) == 1:
            raise Immovable(f"PERENNIAL_REDIS_URL names {len(every)} primaries: PLACE is one of 1 to {len(every)}")
        with self._database.transaction() as connection:
            stream = streams.find(connection, name)
            if stream is None:
                raise Immovable(f"there is no stream {name}")
            leases.create_once(connection, leases.move(stream.id))
        lease = self._lease(stream)
        try:
            self._move(lease, stream.id, every[place - 1], [each for each in every if each.number != place])
        except (LeaseLost, Overtaken, places.NotAsItWas):
            raise Immovable("the stream was moved, resumed or halted meanwhile: run the command again") from None
        finally:
            self._keeper.drop(lease)

    def _lease(self, stream: Stream) -> Lease:
        """Take the lease of the move; wait for as long as that of a dead command may last."""
        until = time.monotonic() + 2 * self._keeper.seconds
        while (lease := self._keeper.take(leases.move(stream.id))) is None:
            if time.monotonic() > until:
                raise Immovable("another command moves this stream")
            time.sleep(PAUSE_SECONDS)
        return lease

    def _move(self, lease: Lease, identity: int, to: Primary, others: Sequence[Primary]) -> None:
        stream = self._now(identity)
        with ExitStack() as stack:

            def log(primary: Primary) -> MovedLog:
                return stack.enter_context(closing(MovedLog(primary, stream.log, lease.epoch)))

            target = log(to)
            if (stream.place or 1) != to.number:
                source = log(self._primaries.of(stream.log, stream.place))
                if stream.halted is not None and _was_switched(source, target, map(log, others)):
                    self._say(f"{stream.name} was moved, and the database has forgotten it: resume it now")
                else:
                    stream = self._drained(stream, source, to)
                    self._copy(stream, source, target)
                with self._database.transaction() as connection:
                    places.switch(connection, lease, stream, to.number)
            target.open_for_appends()
            self._say(f"{stream.name} is on primary {to.number}")
            with self._database.transaction() as connection:
                dropped = places.dropped_letters(connection, identity)
            target.drop_letters(dropped)
            for other in others:
                self._leave(log(other))

    def _drained(self, stream: Stream, source: MovedLog, to: Primary) -> Stream:
        """Close the log that the stream leaves, and return the stream when all of it is numbered."""
        if stream.halted is not None:
            try:
                _open_again(stream, source, self._primaries)  # a killed command left it closed: it can be resumed
            except LogLost as lost:
                raise Immovable(str(lost)) from None
            raise Immovable(f"{stream.name} is halted: resume it first")
        if source.close_for_appends(to.number) != "closed":
            raise Immovable(f"primary {source.primary.number} holds nothing of {stream.name}: it will halt")
        self._say(f"{stream.name} takes no batches; waiting until a worker has numbered what is left")
        while not source.is_numbered(position_of(stream)):
            time.sleep(PAUSE_SECONDS)
            stream = self._now(stream.id)
            if stream.halted is not None:
                source.open_for_appends()
                raise Immovable(f"{stream.name} has halted: {stream.halted}")
        return stream

    def _copy(self, stream: Stream, source: MovedLog, target: MovedLog) -> None:
        if target.prepare(position_of(stream)) == "open":
            raise Immovable(f"primary {target.primary.number} has an open log of {stream.name}: is it an old backup?")
        target.copy_from(source)

    def _leave(self, other: MovedLog) -> None:
        try:
            if other.leave():
                while not other.forget():
                    time.sleep(PAUSE_SECONDS)
        except LogUnavailable:
            self._say(f"primary {other.primary.number} is away: run this again later, to delete what it holds")
        finally:
            other.close()

    def _now(self, identity: int) -> Stream:
        with self._database.transaction() as connection:
            return streams.get(connection, identity)


def _was_switched(source: MovedLog, target: MovedLog, others: Iterable[MovedLog]) -> bool:
    """Return whether the stream left one log for another, the only one that takes batches."""
    return target.goes_on_after(source) and all(each.state()[0] != "open" for each in others)


def run(settings: Settings, stream: str, place: int, say: Callable[[str], None]) -> None:
    """Move a stream as the settings say where everything is; `say` is called with what happens.

    Raises:
        Immovable, LogUnsuitable, LogUnavailable, DatabaseUnavailable: see `Mover.move` and `probe`.
    """
    primaries = read_primaries(str(settings.redis_url))
    if not isinstance(primaries, ListedPrimaries):
        raise Immovable("in a cluster slots decide: move the slot of the stream with the tools of the cluster")
    probe(primaries)
    with closing(Database(str(settings.database_url), connections=2)) as database:
        keeper = LeaseKeeper(database, seconds=settings.lease_seconds)
        keeper.start()
        try:
            Mover(database, primaries, keeper, say).move(stream, place)
        finally:
            keeper.stop()


def reopen(database: Database, reader: Reader, primaries: Primaries, keeper: LeaseKeeper, stream: Stream) -> None:
    """Have a closed log take batches again whose move was not finished, unless a command is at it.

    The log stays closed while its primary is away, or the one that its stream was going to.

    Raises:
        LogLost: the stream goes on where it was moved to, and the database does not know of it any more.
    """
    with database.transaction() as connection:  # one that forgot the first move lacks its lease
        leases.create_once(connection, leases.move(stream.id))
    with keeper.taking(leases.move(stream.id)) as lease:
        if lease is None:
            return
        with database.transaction() as connection:
            now = streams.get(connection, stream.id)
        if not is_on(reader.primary, now):
            return
        with closing(MovedLog(reader.primary, stream.log, lease.epoch)) as log:
            try:
                _open_again(stream, log, primaries)
            except (Overtaken, LogUnavailable):
                return


def _open_again(stream: Stream, log: MovedLog, primaries: Primaries) -> None:
    """Have a closed log take batches, unless its stream goes on where it was moved to."""
    number = log.goes_to()
    if number not in (None, log.primary.number):
        with closing(MovedLog(primaries.of(stream.log, number), stream.log, log.move)) as other:
            if other.goes_on_after(log):
                raise LogLost(
                    f"the database is older than the move of {stream.name} to primary {number}: "
                    f"run `perennial move-stream {stream.name} {number}`, then resume the stream"
                )
    log.open_for_appends()


def is_on(primary: Primary, stream: Stream) -> bool:
    """Return whether a primary holds the log of a stream."""
    return any((stream.place or 1) in each for each in primary.places)


def position_of(stream: Stream) -> Position:
    """Return how far the log of a stream is numbered."""
    return Position(entry=stream.sealed_entry, sequence=stream.sealed_sequence)
