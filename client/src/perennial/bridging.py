"""The command `bridge`: from a message broker to a stream."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from perennial.loading import positive

DESCRIPTION = (
    "Send the messages of a JetStream stream of NATS to a stream of the service, every record once. A message holds "
    'one record {"x": [...], "y": ...}, or several, one a line. After an interrupt run the same command again.'
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("--jetstream", metavar="NAME", type=_name, required=True, help="the JetStream stream")
    command.add_argument(
        "--consumer",
        metavar="NAME",
        type=_name,
        default="perennial",
        help="durable, made if there is none; default: %(default)s",
    )
    command.add_argument(
        "--subject", type=_subject, help="that a new consumer filters by; default: all of the JetStream stream"
    )
    command.add_argument(
        "--server",
        metavar="URL",
        action="append",
        help="of NATS, several times for a cluster; default: nats://127.0.0.1",
    )
    command.add_argument("--credentials", metavar="PATH", type=Path, help="a file of credentials for NATS")
    command.add_argument(
        "--batch", metavar="N", type=positive, default=1000, help="messages of a request; default: %(default)s"
    )
    command.add_argument(
        "--dead-letters",
        metavar="SUBJECT",
        help="of another JetStream stream, for messages that the service refuses; default: stop at the first",
    )
    command.add_argument(
        "--uncertain",
        choices=("refuse", "skip", "send"),
        default="refuse",
        help="what becomes of messages that were sent on an earlier day and never answered: skip them if the stream "
        "has them, send them if not; default: %(default)s",
    )
    command.add_argument("--once", action="store_true", help="stop when no message is left")


def run(key: str, arguments: argparse.Namespace) -> None:
    """Bridge until the command is interrupted."""
    import asyncio

    from perennial import nats_bridge
    from perennial.nats_source import Options

    options = Options(
        servers=arguments.server or ["nats://127.0.0.1:4222"],
        credentials=arguments.credentials,
        source=arguments.jetstream,
        consumer=arguments.consumer,
        subject=arguments.subject,
        target=arguments.stream,
        batch=arguments.batch,
        letters=arguments.dead_letters,
        uncertain=arguments.uncertain,
        once=arguments.once,
    )
    sent = asyncio.run(nats_bridge.run(arguments.url, key, options))
    print(f"{arguments.jetstream}: {sent} messages stored")  # noqa: T201 - a command's answer


def _name(text: str) -> str:
    """Return a name that NATS takes for a stream or a consumer."""
    if not text or re.search(r"[\s.*>/\\]", text):
        raise argparse.ArgumentTypeError("a name of NATS has no blanks and none of . * > / \\")
    return text


def _subject(text: str) -> str:
    """Return a subject that NATS takes."""
    if not all(text.split(".")) or re.search(r"\s", text):
        raise argparse.ArgumentTypeError("a subject of NATS is words between dots, without blanks")
    return text
