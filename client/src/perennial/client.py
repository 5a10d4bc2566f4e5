"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from perennial import appending, operations, settings
from perennial.exchange import PATIENCE_SECONDS
from perennial.journal import opened
from perennial.operations import version_of
from perennial.progress import reporting
from perennial.schema import Schema
from perennial.transport import Transport

if TYPE_CHECKING:
    from pathlib import Path

    from perennial.appending import Appended
    from perennial.journal import Resolution
    from perennial.model import Model
    from perennial.operations import Ledger
    from perennial.tables import Table


def connect(url: str, key: str) -> Client:
    """Return a client of the service at `url`, such as http://127.0.0.1:8000; key: the text of a key.

    Raises Unreachable where nothing answers, UnknownServer where something else than Perennial does.

    >>> client = perennial.connect("http://127.0.0.1:8000", key=Path("perennial-data/admin.key").read_text())
    >>> [stream["name"] for stream in client.streams()]
    ['days']
    """
    client = Client(url, key)
    try:
        client.check()
    except BaseException:
        client.close()
        raise
    return client


class Client:
    """A service. Use it as a context manager, or `close` it. Several threads may share it."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._transport = Transport(url, key)
        self._run = self._transport.run

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def check(self) -> None:
        """Raise an error unless a Perennial service answers."""
        self._run(operations.check())

    def stream(self, name: str) -> Stream:
        """Return the stream of that name, without asking whether there is one."""
        return Stream(self._transport, name)

    def publication(self, name: str) -> Publication:
        """Return the publication of that name, without asking whether there is one."""
        return Publication(self._transport, name)

    def streams(self) -> Table:
        """Return all streams that the key may see, newest first."""
        return self._run(operations.listed("streams"))

    def publications(self) -> Table:
        """Return all publications that the key may see, newest first."""
        return self._run(operations.listed("publications"))

    def create_stream(self, name: str, **more: Any) -> Stream:
        """Make a stream and return it.

        more: `epsilon`, `delta` and `accounting` of its budget, or `budget`; `features`; `classes` of a classification,
        or `bound` of a regression, or another `task`; `norm_bound`, `feature_map` and all else that POST /v1/streams
        takes. `columns` instead of `features`: names, a mapping of names to public ranges (lowest, highest) or None, or
        a data frame, whose columns without that of `label` they are. `class_names` instead of `classes`.
        """
        self._run(operations.create_stream(settings.stream(name, **more)))
        return self.stream(name)

    def plan(self, stream: str, **more: Any) -> dict[str, Any]:
        """Return what a publication would cost and how noisy each release would be. It reserves nothing.

        more: as for `publish`.
        """
        return self._run(operations.plan(settings.publication(stream, **more)))

    def publish(self, name: str, stream: str, **more: Any) -> Publication:
        """Start a publication, which reserves its budget on every record that it may ever read, and return it.

        more: `mechanism` and `learner` as in POST /v1/publications; `epsilon` and `delta`, or `rho`, or `privacy`; all
        else that it takes.
        """
        body = settings.publication(stream, name=name, **more)
        self._run(operations.publish(body))
        return self.publication(name)

    def ledger(self, stream: str, *, start: int | None = None, end: int | None = None) -> Ledger:
        """Return what a stream's records have spent, of all or of those from `start` on and before `end`."""
        return self.stream(stream).ledger(start=start, end=end)


class Stream:
    """A stream of a service."""

    def __init__(self, transport: Transport, name: str) -> None:
        self.name, self._sender = name, transport.sender
        self._run = transport.run
        self._known: Schema | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    def info(self) -> dict[str, Any]:
        """Return the stream as the service's JSON has it."""
        return self._run(operations.information("streams", self.name))

    def append(
        self,
        data: Any,
        label: Any = None,
        *,
        unit: Any = None,
        features: Iterable[str] | None = None,
        key: str | None = None,
        batch: int | None = None,
        progress: bool | Callable[[int], object] = False,
        patience: float = PATIENCE_SECONDS,
        journal: str | Path | None = None,
        uncertain: Resolution = "refuse",
        ahead: bool = False,
    ) -> Appended:
        """Append records in batches, none of them twice, and return what was accepted.

        Args:
            data: a data frame, an Arrow table, a mapping of columns, an array (m, features), a pair of arrays (x, y),
                or an iterable of those, or of rows: mappings, pairs (row, label), or plain rows. It
                is sent in full batches, however it comes. None: only labels.
            label: the name of the label's column; or the labels, an array (m,). None: there are none, or in the pairs.
                Where the stream has `class_names`, labels may be these.
            unit: whose each record is, where the stream has units: the name of a column, or the ids, an array (m,) of
                texts and whole numbers.
            features: the columns of features, in their order; default all but the label's and the unit's. Where the
                stream has `columns`, they count by name.
            key: a name for this data, new for new data. Where a call ends early, the same call with the same data, key
                and `batch` goes on: what is accepted already is not stored again. The service remembers for 24 hours,
                for each of its API keys.
            batch: the most records of a request; default as many as the service surely takes.
            progress: True for a bar, which needs tqdm; or a function that gets how many more records were accepted.
            patience: for how many seconds to repeat a batch while the service is busy or away.
            journal: a file, made if there is none, that notes which batches were accepted: so the same call goes on
                where it stopped on any later day too. It needs a `key`, and holds digests of batches, no records.
            uncertain: what becomes of a batch that was sent on an earlier day and never answered, which with a journal
                raises Uncertain: "skip" it if the stream has it, "send" it if not. To skip counts for one batch.
            ahead: whether a thread reads `data` and prepares batches while others are sent: for data that never waits,
                as that of files.

        Raises InvalidData or InvalidRecords for records that can't be in the stream.

        >>> client.stream("days").append(frame, label="rain", key="days of May").records
        1000
        """
        with (
            reporting(progress, data) as report,
            opened(journal, self.name, key, self._sender, uncertain) as notes,
        ):
            return self._run(
                appending.append(
                    self.name,
                    data,
                    label=label,
                    unit=unit,
                    features=features,
                    schema=self._schema(),
                    key=key,
                    batch=batch,
                    progress=report,
                    patience=patience,
                    journal=notes,
                    ahead=ahead,
                )
            )

    def _schema(self) -> Schema:
        """Return the stream's schema, which never changes, so that it is asked for once."""
        self._known = self._known or self._run(operations.schema(self.name))
        return self._known or Schema()

    def numbers(self, appended: Appended) -> list[tuple[int, int]] | None:
        """Return the ranges of numbers, [start, end), that the records got, by batch; None: some have none yet."""
        return self._run(appending.numbers(self.name, appended))

    def erase(self, start: int, end: int) -> None:
        """Erase records [start, end): no later fit reads them, and their bytes are deleted. They stay charged."""
        self._run(operations.erase(self.name, start, end))

    def ledger(self, *, start: int | None = None, end: int | None = None) -> Ledger:
        """Return what records have spent, of all or of those from `start` on and before `end`."""
        return self._run(operations.ledger(self.name, start, end))

    def charges(self) -> Table:
        """Return the append-only list of charges, newest first."""
        return self._run(operations.charges(self.name))


class Publication:
    """A publication of a service."""

    def __init__(self, transport: Transport, name: str) -> None:
        self.name = name
        self._run = transport.run
        self._poll = operations.LongPoll()

    def __repr__(self) -> str:
        return f"<Publication {self.name}>"

    def info(self) -> dict[str, Any]:
        """Return the publication as the service's JSON has it: its configuration, plan and state."""
        return self._run(operations.information("publications", self.name))

    def latest(self, wait: float = 0.0, *, newer_than: Model | int = 0) -> Model:
        """Return the newest model.

        wait: for how many seconds to wait for one, if there is none yet that is newer than `newer_than`, a model or a
        version. Raises NotYet where there is none in time, or where the publication is stopped and has none; Halted
        where it has halted.

        >>> client.publication("rain").latest(wait=60).version
        1
        """
        return self._run(operations.latest(self.name, wait, version_of(newer_than), self._poll))

    def release(self, version: int) -> Model:
        """Return one release. It never changes."""
        return self._run(operations.release(self.name, version))

    def releases(self) -> Table:
        """Return all releases without their parameters' values, newest first."""
        return self._run(operations.releases(self.name))

    def follow(self, *, after: Model | int | None = None) -> Iterator[Model]:
        """Yield every model, each once and in order, as soon as it is published; lost connections are made again.

        after: a model or a version; default: the newest is the first to come. It ends once the publication is stopped,
        and raises Halted once it has halted.

        >>> for model in client.publication("rain").follow(after=0):
        ...     print(model.version, model.time)
        1 500
        2 1000
        """
        start = max(0, self._run(operations.newest_version(self.name)) - 1) if after is None else version_of(after)
        while (models := self._run(operations.following(self.name, start, self._poll))) is not None:
            for model in models:
                yield model
                start = model.version

    def ledger(self) -> Table:
        """Return the publication's charges, newest first."""
        return self._run(operations.charges_of(self.name))

    def stop(self) -> dict[str, Any]:
        """Stop the publication for ever, and return it. Releases stay, and what is not spent is given back."""
        return self._run(operations.stop(self.name))
