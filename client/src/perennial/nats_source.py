"""The NATS side of a bridge: its connection, its consumer, and the bucket that holds its notes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from perennial.errors import PerennialError
from perennial.extras import needs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerInfo, StreamInfo
    from nats.js.kv import KeyValue

    from perennial.journal import Resolution

BUCKET = "perennial-bridge"
ANSWER_SECONDS = 10.0  # seconds to wait for an answer of NATS
CONNECTION_ATTEMPTS = 3  # per server, two seconds apart; the client's default of 60 takes two minutes


@dataclass(frozen=True, kw_only=True)
class Options:
    """The source of messages, and the treatment of refused and uncertain ones.

    source, consumer: the names of the JetStream stream and of its durable consumer, made if there is none. subject:
    that a new consumer is to filter by. target: the stream of the service. batch: the most messages of a request.
    letters: the subject for messages that the service refuses. once: whether to end when no message is left.
    """

    servers: Sequence[str]
    credentials: Path | None
    source: str
    consumer: str
    subject: str | None
    target: str
    batch: int
    letters: str | None
    uncertain: Resolution
    once: bool


@dataclass(frozen=True, kw_only=True)
class Source:
    """A consumer, the bucket of its bridge's notes, and the time at which the consumer was made."""

    connection: Client
    stream: JetStreamContext
    bucket: KeyValue
    place: str
    since: str


@asynccontextmanager
async def connected(options: Options) -> AsyncIterator[Client]:
    """Connect to NATS, without reconnecting: after a lost connection the bridge starts again."""
    import nats

    if options.credentials is not None:
        with needs("nats"):
            import_module("nkeys")  # the library that nats-py signs with

    async def quiet(_: Exception) -> None:
        """Ignore the error: calls raise every error that matters."""

    connection = await nats.connect(
        list(options.servers),
        user_credentials=str(options.credentials) if options.credentials else None,
        error_cb=quiet,
        allow_reconnect=False,
        max_reconnect_attempts=CONNECTION_ATTEMPTS - 1,
    )
    try:
        yield connection
    finally:
        await connection.close()


async def source(connection: Client, options: Options) -> Source:
    """Return the consumer, made if there is none. Raises PerennialError where the bridge could not be exact."""
    from nats.js.errors import NotFoundError

    stream = connection.jetstream(timeout=ANSWER_SECONDS)
    try:
        info = await stream.stream_info(options.source)
    except NotFoundError:
        raise PerennialError(f"NATS has no JetStream stream {options.source}.") from None
    consumer = await _consumer(stream, options)
    await _check_letters(stream, options)
    names = [options.source, str(info.created), options.consumer]
    return Source(
        connection=connection,
        stream=stream,
        bucket=await _bucket(stream, info),
        place=hashlib.sha256(json.dumps(names).encode()).hexdigest(),
        since=str(consumer.created),
    )


async def _consumer(stream: JetStreamContext, options: Options) -> ConsumerInfo:
    """Return the consumer, made if there is none. Raises PerennialError where it could lose messages."""
    from nats.js.api import AckPolicy, ConsumerConfig
    from nats.js.errors import NotFoundError

    try:
        info: ConsumerInfo = await stream.consumer_info(options.source, options.consumer)
    except NotFoundError:
        wanted = ConsumerConfig(
            durable_name=options.consumer, ack_policy=AckPolicy.EXPLICIT, filter_subject=options.subject
        )
        return await stream.add_consumer(options.source, wanted)
    has = info.config
    if has.ack_policy != AckPolicy.EXPLICIT or has.deliver_subject or (has.max_deliver or -1) > 0:
        raise PerennialError(
            f"The consumer {options.consumer} must be a pull consumer with explicit acknowledgement and no limit of "
            "deliveries: choose a new name, and the bridge makes one."
        )
    filters = has.filter_subjects or [has.filter_subject or ""]
    if options.subject is not None and filters != [options.subject]:
        raise PerennialError(
            f"The consumer {options.consumer} is there already and does not filter by {options.subject}: leave out "
            "--subject, or choose a new name, and the bridge makes one."
        )
    return info


async def _check_letters(stream: JetStreamContext, options: Options) -> None:
    """Raise PerennialError unless a stream other than the source takes refused messages."""
    from nats.js.errors import NotFoundError

    if options.letters is None:
        return
    try:
        taker = await stream.find_stream_name_by_subject(options.letters)
    except NotFoundError:
        taker = None
    if taker in (None, options.source):
        raise PerennialError(f"A JetStream stream other than {options.source} must take the subject {options.letters}.")


async def _bucket(stream: JetStreamContext, source: StreamInfo) -> KeyValue:
    from nats.js.api import KeyValueConfig
    from nats.js.errors import BucketNotFoundError

    try:
        return await stream.key_value(BUCKET)
    except BucketNotFoundError:
        return await stream.create_key_value(KeyValueConfig(bucket=BUCKET, replicas=source.config.num_replicas or 1))
