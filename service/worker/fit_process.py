"""Take one step of a publication in a process of its own: `python -m service.worker.fit_process DESCRIPTOR`.

The process knows no server and no key. It gets what the step starts from, asks its parent where records are, and reads
them from the segments' folder. Everything goes through one socket, `DESCRIPTOR`, as messages:

1. parent: `Task` as JSON, then the values of each item of the chain;
2. process: `{"read": [start, stop], "drawn": whether it has drawn anything}`, and parent: `Located` as JSON, as often
   as the step reads; and `{"noted": text}` for the log;
3. process: `{"done": true}` and the packed step; or `{"refused": [name, text]}` for one of `REFUSALS`, which follow
   from public quantities alone; or `{"failed": name, "at": place}` for any other error.

The process is behind everything else that the machine has to do, and the first to be killed where memory runs out. It
ends when its parent does.
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from service.learning.optimization.solvers import Inaccurate
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.features import ReleasedMap
from service.mechanisms.mechanism import CarriedState, Model, StateLost, StatePart
from service.privacy import randomness
from service.privacy.noise.additive import Unaffordable
from service.publishing.prepared import packed, prepare
from service.segments.blocks import LocatedBlocks, as_stored
from service.segments.files import SegmentDamaged
from service.segments.places import open_described
from service.segments.records import Located, SegmentsMissing, load
from service.streams.schema import stored_schema
from service.tracebacks import place_of
from service.worker.dask_blocks import DaskBlocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from service.learning.records import Records

NICENESS = 10
OUT_OF_MEMORY_SCORE = "1000"
"""The kernel kills whichever process has the highest score first; 1000 is the highest."""
REFUSALS = {each.__name__: each for each in (Inaccurate, Unaffordable, StateLost, SegmentDamaged, SegmentsMissing)}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A step to take.

    `stored`: the numbers of the parts that need not be packed, since they are stored already. `released`: the map that
    makes the features, as `ReleasedMap` holds it. `scheduler`: of a Dask cluster that adds up blocks; None: none does.
    """

    schema: dict[str, Any]
    configuration: dict[str, Any]
    segments: dict[str, Any]
    start: int
    time: int
    next_version: int
    stored: tuple[int, ...]
    released: dict[str, Any] | None
    scheduler: str | None = None

    def send(self, connection: Connection, chain: Sequence[CarriedState]) -> None:
        """Send it, and what earlier steps left."""
        items = [_described(each) for each in chain]
        connection.send_bytes(json.dumps(vars(self) | {"chain": items}).encode())
        for each in chain:
            connection.send_bytes(_values(each).astype("<f8").tobytes())

    @classmethod
    def receive(cls, connection: Connection) -> tuple[Task, list[CarriedState]]:
        """Return what `send` sent."""
        content = json.loads(connection.recv_bytes())
        items = content.pop("chain")
        chain = [_item(each, connection.recv_bytes()) for each in items]
        return cls(**content | {"stored": tuple(content["stored"])}), chain


def main() -> None:
    """Take the step that the parent sends."""
    gc.freeze()  # what is loaded stays until the end, which would else take as long as a short fit
    connection = Connection(int(sys.argv[1]))
    threading.Thread(target=_end_with_parent, args=(connection.fileno(),), daemon=True).start()
    os.nice(NICENESS)
    with suppress(OSError):  # no such file where this is no Linux
        Path("/proc/self/oom_score_adj").write_text(OUT_OF_MEMORY_SCORE)
    task, chain = Task.receive(connection)
    try:
        content = _taken(task, chain, connection)
    except tuple(REFUSALS.values()) as refusal:
        _send(connection, {"refused": [type(refusal).__name__, str(refusal)]})
    except Exception as error:  # noqa: BLE001 - the parent notes that the attempt ended so
        _send(connection, {"failed": type(error).__name__, "at": place_of(error)})
    else:
        _send(connection, {"done": True})
        connection.send_bytes(content)


def _taken(task: Task, chain: Sequence[CarriedState], connection: Connection) -> bytes:
    """Return the step as bytes."""
    files = open_described(task.segments)
    configuration = PublicationConfiguration.model_validate(task.configuration)
    schema = stored_schema(task.schema)
    released = None if task.released is None else ReleasedMap(**task.released)
    mechanism = build(schema, configuration, released, task.start)

    began = randomness.mark()

    def located(start: int, stop: int) -> Located:
        _send(connection, {"read": [start, stop], "drawn": randomness.drawn_since(began)})
        return Located.from_json(json.loads(connection.recv_bytes()))

    def read(start: int, stop: int) -> Records:
        return load(files, lambda: located(start, stop))

    def note(text: str) -> None:
        _send(connection, {"noted": text})

    def blocks(start: int, stop: int) -> LocatedBlocks:
        mapped = partial(released.reading, schema) if released else as_stored
        where = partial(located, start, stop)
        if task.scheduler is None:
            return LocatedBlocks(files=files, locate_range=where, mapped=mapped)
        return DaskBlocks(files=files, locate_range=where, mapped=mapped, scheduler=task.scheduler, note=note)

    reading = released.reading(schema, read) if released else read
    mechanism = mechanism.with_blocks(blocks)
    step = mechanism.step(task.time, chain, task.next_version, reading)
    return packed(prepare(task.start, mechanism, step, task.time), dict.fromkeys(task.stored, np.empty(0)))


def _described(item: CarriedState) -> dict[str, Any]:
    name, number = ("version", item.version) if isinstance(item, Model) else ("number", item.number)
    return {name: number, "shape": _values(item).shape}


def _values(item: CarriedState) -> np.ndarray[Any, np.dtype[np.float64]]:
    return item.parameters if isinstance(item, Model) else item.values


def _item(described: dict[str, Any], content: bytes) -> CarriedState:
    values = np.frombuffer(content, "<f8").reshape(described["shape"])
    if "version" in described:
        return Model(version=described["version"], parameters=values)
    return StatePart(number=described["number"], values=values)


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _end_with_parent(descriptor: int) -> None:
    """End this process as soon as the parent's side of the socket is closed, whatever it is busy with."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    poll.poll()
    os._exit(1)


if __name__ == "__main__":
    main()
