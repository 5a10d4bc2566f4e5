"""`python -m perennial load` and `bridge`: commands of a machine that sends records.

`perennial` itself is the command of the service, which hands `load` and `bridge` over to this one; a machine that only
sends records need not have the service.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from perennial import bridging, loading
from perennial.client import connect
from perennial.errors import InvalidArgument, PerennialError
from perennial.transport import is_key

FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        key = _key(Path(options.key_file))
        if options.command == "bridge":
            bridging.run(key, options)
        else:
            with connect(options.url, key) as client:
                loading.run(client, options)
    except OSError as error:
        return _failed(_reason(error))
    except (PerennialError, ModuleNotFoundError) as error:
        return _failed(" ".join([str(error), *getattr(error, "__notes__", [])]))
    except KeyboardInterrupt:
        return _failed("interrupted; run the same command again to go on.")
    return 0


def _key(file: Path) -> str:
    try:
        key = file.read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        raise InvalidArgument(f"can't read {file}: {error.strerror}. Give --key-file a file with a key.") from None
    except UnicodeDecodeError:
        key = ""
    if not is_key(key):
        raise InvalidArgument(f"{file} holds no key: it must hold the text of one key, as POST /v1/keys showed it.")
    return key


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="perennial")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    load = commands.add_parser("load", help="append files to a stream", description=loading.DESCRIPTION)
    _add_service(load)
    loading.add_arguments(load)
    bridge = commands.add_parser("bridge", help="send a broker's messages to a stream")
    nats = bridge.add_subparsers(required=True, metavar="BROKER").add_parser(
        "nats", help="NATS JetStream", description=bridging.DESCRIPTION
    )
    _add_service(nats)
    bridging.add_arguments(nats)
    return parser


def _add_service(command: argparse.ArgumentParser) -> None:
    command.add_argument("stream", metavar="STREAM")
    command.add_argument("--url", default="http://127.0.0.1:8000", help="of the service; default: %(default)s")
    command.add_argument(
        "--key-file", metavar="PATH", default="perennial-data/admin.key", help="holds the key; default: %(default)s"
    )


def _reason(error: OSError) -> str:
    return f"can't read {error.filename}: {error.strerror}" if error.filename else f"can't print: {error.strerror}"


def _failed(message: str) -> int:
    print(f"perennial: {message}", file=sys.stderr)  # noqa: T201
    return FAILED


def _end(status: int) -> NoReturn:
    """End the process at once: unloading all modules takes as long as sending 150,000 records."""
    try:
        sys.stdout.flush()
    except OSError as error:
        status = _failed(_reason(error))
    os._exit(status)


if __name__ == "__main__":
    _end(main())
