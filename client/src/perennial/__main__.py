"""`python -m perennial load`: append files to a stream.

`perennial` itself is the command of the service, which hands `perennial load` over to this one; a machine that only
sends records need not have the service.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from perennial import files
from perennial.client import Stream, connect
from perennial.errors import PerennialError

FAILED = 1
_DESCRIPTION = (
    "Append the records of files to a stream: CSV, Parquet, Arrow IPC or NDJSON, by the files' endings. After an "
    "interrupt run the same command again within 24 hours: what was accepted is not stored twice."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    asked = _parser().parse_args(arguments)
    try:
        key = Path(asked.key_file).read_text()
        with connect(asked.url, key) as client:
            for path in asked.files:
                _load(client.stream(asked.stream), path, asked)
    except OSError as error:
        return _failed(f"can't read {error.filename}: {error.strerror}")
    except (PerennialError, ModuleNotFoundError) as error:
        return _failed(" ".join([str(error), *getattr(error, "__notes__", [])]))
    except KeyboardInterrupt:
        return _failed("interrupted; run the same command again to go on.")
    return 0


def _load(stream: Stream, path: Path, asked: argparse.Namespace) -> None:
    name = f"{asked.name}/{path.name}" if asked.name else str(path.resolve())
    appended = stream.append(
        files.read(path),
        label=asked.label,
        features=asked.features.split(",") if asked.features else None,
        key="load-" + hashlib.sha256(f"{stream.name} {name}".encode()).hexdigest(),
        batch=asked.batch,
        progress=sys.stderr.isatty(),
    )
    print(f"{path}: {appended.records} records accepted")  # noqa: T201 - a command's answer


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="perennial")
    commands = parser.add_subparsers(required=True, metavar="load")
    load = commands.add_parser("load", help="append files to a stream", description=_DESCRIPTION)
    load.add_argument("stream", metavar="STREAM")
    load.add_argument("files", metavar="FILE", nargs="+", type=Path)
    load.add_argument("--label", metavar="COLUMN", help="the column of labels")
    load.add_argument("--features", metavar="A,B,…", help="the columns of features; default: all but the label's")
    load.add_argument("--url", default="http://127.0.0.1:8000", help="of the service; default: %(default)s")
    load.add_argument(
        "--key-file", metavar="PATH", default="perennial-data/admin.key", help="holds the key; default: %(default)s"
    )
    load.add_argument("--batch", metavar="N", type=int, help="records of a request; default: by the number of features")
    load.add_argument("--name", help="of this data in place of the files' places, where those may change")
    return parser


def _failed(message: str) -> int:
    print(f"perennial: {message}", file=sys.stderr)  # noqa: T201
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
