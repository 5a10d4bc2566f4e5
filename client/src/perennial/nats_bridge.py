"""Send the messages of a JetStream consumer of NATS to a stream, exactly once, whichever process dies when.

The bridge fetches messages, notes in a key-value bucket of NATS which ones it is about to send, sends them as one
batch, notes that they are stored, and acknowledges them. So after any interruption it knows which messages were on
their way: it sends the same ones again under the same `Idempotency-Key`, before any others. A note replaces only the
note that this bridge wrote or read last, so of two bridges at one consumer the older one stops before it sends more.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from perennial import appending, operations
from perennial.errors import Busy, InvalidRecords, PerennialError, Problem, Uncertain, Unreachable
from perennial.exchange import Request, ask, is_refusal, is_remembered, path_of
from perennial.extras import needs
from perennial.nats_source import ANSWER_SECONDS, BUCKET, Options, Source, connected, source
from perennial.transport import AsyncTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NDJSON = "application/x-ndjson"
MOST_BYTES, MOST_RECORDS = 2**22, 10_000  # the limits of a batch
FETCH_SECONDS = 1.0
PAUSE_SECONDS = 2.0  # seconds before the bridge starts again after NATS was away


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message that was fetched. sequence: in the stream; reply: the subject that acknowledges it."""

    sequence: int
    reply: str
    data: bytes = b""

    @property
    def lines(self) -> list[bytes]:
        """Return the message's records, one per line."""
        return [line for line in self.data.split(b"\n") if line.strip()]


@dataclass(frozen=True, kw_only=True)
class Note:
    """The work of a bridge. messages: (sequence, reply) of a batch; sent: when its key was first used.

    sender: a digest of the API key; since: when the consumer was made; stored: whether the service has the batch.
    """

    target: str
    sender: str
    since: str
    sent: float = 0.0
    messages: tuple[tuple[int, str], ...] = ()
    stored: bool = True

    def encode(self) -> bytes:
        """Return the note as a value for the bucket."""
        return zlib.compress(json.dumps(asdict(self)).encode())

    @staticmethod
    def decode(value: bytes) -> Note:
        """Return the note that a value holds."""
        document = json.loads(zlib.decompress(value))
        return Note(**document | {"messages": tuple(map(tuple, document["messages"]))})


async def run(url: str, key: str, options: Options) -> int:
    """Bridge until it is interrupted, or with `once` until no message is left; return the number of messages sent."""
    with needs("nats"):
        import nats
    transport = AsyncTransport(url, key)
    sent, reached = 0, False
    try:
        await transport.run(operations.check())
        while True:
            try:
                async with connected(options) as connection:
                    reached = True
                    bridge = Bridge(await source(connection, options), transport, options)
                    async for messages in bridge.batches():
                        sent += messages
                    return sent
            except (nats.errors.Error, OSError, TimeoutError) as error:
                trouble = f"NATS does not answer as it should ({type(error).__name__})"
                if not reached:
                    raise PerennialError(f"{trouble}: check --server and --credentials, and that it runs.") from None
                _say(f"{trouble}; the bridge begins anew.")
                await asyncio.sleep(PAUSE_SECONDS)
    finally:
        await transport.close()


class Bridge:
    """The bridge of one consumer."""

    def __init__(self, source: Source, transport: AsyncTransport, options: Options) -> None:
        self._source, self._transport, self._options = source, transport, options
        self._note = Note(target=options.target, sender=transport.sender, since=source.since)
        self._revision = 0

    async def take_over(self) -> None:
        """Read the last note and rewrite it, so that an earlier bridge of this consumer notices and stops."""
        from nats.js.errors import KeyNotFoundError

        try:
            entry = await self._source.bucket.get(self._source.place)
            self._note = Note.decode(entry.value or b"")
        except KeyNotFoundError as missing:
            entry = missing.entry  # the entry of a deleted note; None if there never was one
        self._revision = 0 if entry is None else entry.revision or 0
        if self._note.target != self._options.target and not await self._feeds_nothing():
            raise PerennialError(
                f"The consumer {self._options.consumer} feeds the stream {self._note.target}: use another consumer."
            )
        if self._note.since != self._source.since:
            raise PerennialError(
                f"The consumer {self._options.consumer} was deleted and made again, so it delivers messages again that "
                "may be stored: use another name, or if that is wanted delete the key "
                f"{self._source.place} of the bucket {BUCKET}."
            )
        await self._write(replace(self._note, target=self._options.target))

    async def _feeds_nothing(self) -> bool:
        """Return whether the note names a stream that the service does not have, and no messages on their way there."""
        schema = Request(path=f"{path_of('streams', self._note.target)}/schema")  # readable with a key that may append
        return not self._note.messages and (await self._transport.run(ask(schema, 404))).status == 404

    async def batches(self) -> AsyncIterator[int]:
        """Finish the batch of an earlier run, then go on; yield the number of messages of every batch."""
        await self.take_over()
        await self._finish()
        while True:
            messages = await self._fetched()
            if messages:
                yield await self._forward(messages)
            elif self._options.once and await self._is_empty():
                return

    async def _fetched(self) -> list[Message]:
        """Return new messages, at most as many as a batch takes.

        A subscription gets what the consumer sends only while it lasts: so no copy of a message can come late, after
        the message is acknowledged.
        """
        subscription = await self._source.stream.pull_subscribe_bind(self._options.consumer, self._options.source)
        fetched = []
        try:
            with suppress(TimeoutError):
                fetched = await subscription.fetch(self._options.batch, timeout=FETCH_SECONDS)
        finally:
            await subscription.unsubscribe()
        copies = {
            message.metadata.sequence.stream: Message(
                sequence=message.metadata.sequence.stream, reply=message.reply, data=message.data
            )
            for message in fetched
        }
        messages = list(copies.values())
        fitting = max(1, _fitting(messages))
        await self._return(messages[fitting:])
        return messages[:fitting]

    async def _is_empty(self) -> bool:
        consumer = await self._source.stream.consumer_info(self._options.source, self._options.consumer)
        return not consumer.num_pending and not consumer.num_ack_pending

    async def _forward(self, messages: list[Message]) -> int:
        """Send messages that were never sent, and return how many the service took."""
        await self._intend(messages)
        return await self._send(messages, [])

    async def _return(self, messages: Sequence[Message]) -> None:
        """Let the consumer deliver messages again."""
        for message in messages:
            await self._source.connection.publish(message.reply, b"-NAK")

    async def _intend(self, messages: Sequence[Message]) -> None:
        """Write the note that these messages are about to be sent; with none, that no batch is under way."""
        await self._write(
            replace(
                self._note,
                sender=self._transport.sender,
                sent=time.time(),
                messages=tuple((message.sequence, message.reply) for message in messages),
                stored=not messages,
            )
        )

    async def _give_up(self, messages: Sequence[Message]) -> None:
        """Note that the service stored none of these messages, and let the consumer deliver them again."""
        await self._intend([])
        await self._return(messages)

    async def _send(self, messages: list[Message], doubts: list[str]) -> int:
        """Send the messages that the note names, and acknowledge them; set those aside that the service refuses.

        doubts: not empty if the service may have them already.
        """
        while messages:
            try:
                await self._post(messages, doubts)
            except InvalidRecords as refused:
                bad = _refused(refused, messages)
                if not bad or self._options.letters is None:
                    await self._give_up(messages)
                    raise _stopped(refused, bad) from None
                messages = [message for message in messages if message.sequence not in bad]
                await self._intend(messages)
                await self._set_aside(bad)
                continue
            except Problem as problem:
                if problem.slug != "too-large" or len(messages) == 1 or doubts:
                    if is_refusal(problem, doubts):
                        await self._give_up(messages)
                    raise
                messages, rest = messages[: len(messages) // 2], messages[len(messages) // 2 :]
                await self._intend(messages)
                await self._return(rest)
                continue
            await self._write(replace(self._note, stored=True))
            await self._acknowledge(self._note.messages)
            break
        return len(messages)

    async def _finish(self) -> None:
        """Finish the messages of the last note, so that the note may be replaced."""
        if not self._note.stored:
            read = [await self._read(sequence, reply) for sequence, reply in self._note.messages]
            messages = [message for message in read if message is not None]
            if self._note.sender != self._transport.sender or not is_remembered(self._note.sent):
                await self._decide("that was on an earlier day, or with another API key")
            elif len(messages) < len(read):
                await self._decide("some are gone from NATS")
            elif not await self._sent_again(messages):
                await self._decide("the service takes smaller batches since")
            else:
                return
        await self._acknowledge(self._note.messages)

    async def _sent_again(self, messages: list[Message]) -> bool:
        """Send messages that the service may have, and return whether it could tell."""
        try:
            await self._send(messages, ["by an earlier bridge"])
        except Problem as problem:
            if problem.slug != "too-large":
                raise
            return False
        return True

    async def _decide(self, why: str) -> None:
        """Note the user's decision on messages that were sent and never answered. Raises Uncertain if there is none."""
        if self._options.uncertain == "refuse":
            first, last = self._note.messages[0][0], self._note.messages[-1][0]
            raise Uncertain(
                f"{len(self._note.messages)} messages ({first} to {last}) were sent and no answer came, and {why}: the "
                "service can't tell any more whether it has them. See whether the stream "
                f"{self._options.target} holds them, and give --uncertain: skip if it does, send if it does not."
            )
        if self._options.uncertain == "send":
            await self._intend([])  # so that NATS delivers them again
        else:
            await self._write(replace(self._note, stored=True))

    async def _read(self, sequence: int, reply: str) -> Message | None:
        """Return the message with that sequence from the JetStream stream; None if it is gone."""
        from nats.js.errors import NotFoundError

        try:
            stored = await self._source.stream.get_msg(self._options.source, sequence)
        except NotFoundError:
            return None
        return Message(sequence=sequence, reply=reply, data=stored.data or b"")

    async def _post(self, messages: Sequence[Message], doubts: list[str]) -> None:
        """Store the messages' records, however long that takes while the service remembers their key."""
        body = b"\n".join(line for message in messages for line in message.lines)
        sequences = [message.sequence for message in messages]
        key = "nats-" + hashlib.sha256(json.dumps([self._source.place, sequences]).encode()).hexdigest()
        since = self._note.sent
        while body:
            try:
                await self._transport.run(
                    appending.post_records(self._options.target, NDJSON, body, key, since=since, doubts=doubts)
                )
            except (Busy, Unreachable) as error:
                if not is_remembered(since):
                    raise
                _say(f"{error} The bridge goes on trying.")
            else:
                return

    async def _set_aside(self, bad: dict[int, tuple[Message, str]]) -> None:
        """Publish refused messages with the reasons, and acknowledge them."""
        for message, reason in bad.values():
            headers = {
                "Nats-Msg-Id": f"{self._source.place} {message.sequence}",
                "Perennial-Stream": self._options.source,
                "Perennial-Sequence": str(message.sequence),
                "Perennial-Reason": reason,
            }
            await self._source.stream.publish(str(self._options.letters), message.data, headers=headers)
        _say(f"The service refused {len(bad)} messages; they are at {self._options.letters}.")
        await self._acknowledge([(message.sequence, message.reply) for message, _ in bad.values()])

    async def _acknowledge(self, messages: Sequence[tuple[int, str]]) -> None:
        """Acknowledge messages, and wait until NATS confirms it: it never delivers them again."""
        await asyncio.gather(
            *(self._source.connection.request(reply, b"+ACK", timeout=ANSWER_SECONDS) for _, reply in messages)
        )

    async def _write(self, note: Note) -> None:
        """Replace the note, unless another bridge did so."""
        from nats.js.errors import KeyWrongLastSequenceError

        try:
            self._revision = await self._source.bucket.update(self._source.place, note.encode(), last=self._revision)
        except KeyWrongLastSequenceError:
            raise PerennialError(
                f"Another bridge works at the consumer {self._options.consumer}, so this one has stopped."
            ) from None
        self._note = note


def _fitting(messages: Sequence[Message]) -> int:
    """Return how many of the first messages are together within the limits of a batch."""
    size = records = 0
    for number, message in enumerate(messages):
        size, records = size + len(message.data) + 1, records + len(message.lines)
        if size > MOST_BYTES or records > MOST_RECORDS:
            return number
    return len(messages)


def _refused(refused: InvalidRecords, messages: Sequence[Message]) -> dict[int, tuple[Message, str]]:
    """Return the messages whose records the service refused, with a reason for each, by sequence."""
    of_row = [message for message in messages for _ in message.lines]
    return {
        of_row[error["row"]].sequence: (of_row[error["row"]], str(error["reason"]))
        for error in refused.members.get("errors", [])
        if isinstance(error.get("row"), int)
    }


def _stopped(refused: Problem, bad: dict[int, Any]) -> PerennialError:
    which = f"messages {', '.join(map(str, list(bad)[:5]))}" if bad else "a batch"
    return PerennialError(
        f"The service refused {which}: {refused.detail} Give --dead-letters SUBJECT to set such messages aside."
    )


def _say(message: str) -> None:
    print(f"perennial: {message}", file=sys.stderr, flush=True)  # noqa: T201 - a command's log
