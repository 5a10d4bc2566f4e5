"""Runs a mechanism's steps as a worker does, on made-up records or on none."""

import os
import threading
from dataclasses import replace
from operator import attrgetter

import numpy as np

from service.learning.records import Records
from service.mechanisms.mechanism import StatePart

_URANDOM = os.urandom
FEATURES = 5
GAUSSIAN = {"epsilon": 1, "delta": 1e-6}
PURE = {"epsilon": 1}
RHO = 0.024355970359  # the ρ that implies (1, 1e-6), paper-audit.md N3


def data(seed=0, classes=3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(400, FEATURES)).astype(np.float32), rng.integers(0, classes, 400)


def reader(seed=0, classes=3):
    x, y = data(seed, classes)

    def read(start, end):
        there = np.arange(start, min(end, len(y)))
        return Records(x=x[there], y=y[there], slots=there)

    return read


def nothing(start, end):
    """A reader of a stream whose every record was erased."""
    return Records(x=np.empty((0, FEATURES)), y=np.empty(0), slots=np.empty(0, dtype=np.int64))


def run(mechanism, steps, read, between=lambda chain: chain):
    """Return what the first steps release, and what they leave; between: what becomes of that from step to step."""
    chain, released, time = (), [], 0
    for _ in range(steps):
        time = mechanism.next_time(time)
        step = mechanism.step(time, between(chain), len(released) + 1, read)
        chain = step.chain
        released += step.releases
    return released, chain


def stored(chain):
    """As it comes back from a database: in the order of numbers."""
    return [
        StatePart(number=part.number, values=np.frombuffer(part.values.tobytes()).reshape(part.values.shape))
        for part in sorted(chain, key=attrgetter("number"))
    ]


def seeded(monkeypatch):
    """From now on this thread draws the same bytes in every run; a service beside it draws its own."""
    mine, drawn = threading.get_ident(), np.random.default_rng(7).bytes

    def urandom(count):
        return drawn(count) if threading.get_ident() == mine else _URANDOM(count)

    monkeypatch.setattr(os, "urandom", urandom)


def goes_on_exactly(mechanism, steps, monkeypatch):
    """A restart between any two steps makes no difference; and noise is fresh where nobody forges it."""
    seeded(monkeypatch)
    whole, _ = run(mechanism, steps, reader())
    seeded(monkeypatch)
    restarted, _ = run(mechanism, steps, reader(), between=stored)
    for one, other in zip(whole, restarted, strict=True):
        assert np.array_equal(one.parameters, other.parameters)
    monkeypatch.undo()
    again, _ = run(mechanism, 1, reader())
    assert not np.array_equal(whole[0].parameters, again[0].parameters)


class Placed:
    """A map whose library makes of a row what depends on how many rows there are, and on the row's place."""

    steps = (None,)

    def __call__(self, x):
        return x + np.float32(100 * len(x)) + np.arange(len(x), dtype=np.float32)[:, None]


def without(erased):
    """Return what `reader` reads, less one record."""
    read = reader()

    def there(start, end):
        slots = np.delete(np.arange(start, end), [erased - start] if start <= erased < end else [])
        return replace(read(start, end)[slots - start], slots=slots)

    return there
