"""The command `load`: append files, and objects of object stores, to a stream."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from perennial import files, stores
from perennial.errors import InvalidArgument

if TYPE_CHECKING:
    from perennial.client import Client, Stream
    from perennial.stores import LocalFile, StoredObject

DESCRIPTION = (
    "Append the records of files to a stream: CSV, Parquet, Arrow IPC or NDJSON, by the files' endings. A file is a "
    "path, or an address that begins with s3://, gs://, az:// or file://. After an interrupt run the same command "
    "again, on any day: what was accepted is not stored twice."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("files", metavar="FILE", nargs="+", type=_source)
    command.add_argument("--label", metavar="COLUMN", help="the column of labels")
    command.add_argument("--unit", metavar="COLUMN", help="the column of units, where the stream has units")
    command.add_argument(
        "--features",
        metavar="A,B,…",
        type=lambda names: names.split(","),
        help="default: all columns but the label's and the unit's",
    )
    command.add_argument("--batch", metavar="N", type=positive, help="records of a request; default: by the features")
    command.add_argument("--name", help="of this data in place of the files' places, where those may change")
    command.add_argument(
        "--state",
        metavar="FOLDER",
        type=Path,
        default=Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "perennial",
        help="where this command notes what was accepted; default: %(default)s",
    )
    command.add_argument(
        "--uncertain",
        choices=("refuse", "skip", "send"),
        default="refuse",
        help="what becomes of a batch that was sent on an earlier day and never answered: skip it if the stream has "
        "it, send it if not; default: %(default)s",
    )


def run(client: Client, options: argparse.Namespace) -> None:
    """Load all files, one after the other."""
    if options.name:
        _check_names(options.files)
    for file in options.files:
        _load(client.stream(options.stream), file, options)


def _check_names(files: list[LocalFile | StoredObject]) -> None:
    """Raise InvalidArgument where two files have the same name: with --name, a file is known by its own name alone."""
    places: dict[str, str] = {}
    for file in files:
        if places.setdefault(file.name, file.place) != file.place:
            raise InvalidArgument(
                f"Two files have the name {file.name}, and --name knows files by their names alone: load each by a "
                "command of its own, with another --name."
            )


def _load(stream: Stream, file: LocalFile | StoredObject, options: argparse.Namespace) -> None:
    name = f"{options.name}/{file.name}" if options.name else file.place
    key = "load-" + hashlib.sha256(f"{stream.name} {name}".encode()).hexdigest()
    others = [column for column in (options.label, options.unit) if column]
    columns = None if options.features is None else [*options.features, *others]
    schema = stream._schema()  # noqa: SLF001 - of this package

    def is_text(column: str) -> bool:
        if column == options.label:
            return bool(schema.names.classes)
        return column == options.unit or schema.reads_text

    appended = stream.append(
        files.read(file, columns, is_text),
        label=options.label,
        unit=options.unit,
        features=options.features,
        key=key,
        batch=options.batch,
        progress=sys.stderr.isatty() and find_spec("tqdm") is not None,
        journal=options.state.expanduser() / f"{key}.sqlite",
        uncertain=options.uncertain,
        ahead=True,
    )
    print(f"{file}: {appended.records} records accepted")  # noqa: T201 - a command's answer


def positive(text: str) -> int:
    """Return an argument as a whole number, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("it must be a whole number, at least 1")
    return int(text)


def _source(text: str) -> LocalFile | StoredObject:
    try:
        return stores.source(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
