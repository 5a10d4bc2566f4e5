"""Simulated and real blocks: what is true of them, and what an evaluation releases of them."""

import os
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from service.figures.figures import ClassFigures
from service.figures.intervals import CountLaw
from service.mechanisms.evaluation.tables import BINS, ClassCounts
from service.privacy.currency import Currency, capacity, round_down
from service.privacy.noise.counts import CountNoise, calibrate

PRIVACY = {"pure": (Decimal(1), Decimal(0)), "gaussian": (Decimal(1), Decimal("1e-6"))}
privacies = pytest.mark.parametrize("privacy", PRIVACY)
DATA = Path(os.environ.get("PERENNIAL_DATA_DIR", "/nowhere"))


def noise_of(layout, privacy) -> CountNoise:
    """The noise that a whole cap of ε = 1, or (1, 1e-6), buys a layout."""
    kind, cap = capacity(*PRIVACY[privacy])
    return calibrate(kind, layout.change, charge=round_down(cap), dimension=layout.size)


def draw(noise, shape):
    """Fresh noise for so many blocks at once."""
    return replace(noise, dimension=int(np.prod(shape))).sample().reshape(shape)


@dataclass(frozen=True)
class World:
    """Records whose labels and predictions have this joint law; of a prediction, how often each bin is right."""

    cells: np.ndarray
    """(K, K), summing to 1: rows are labels."""

    @property
    def accuracy(self):
        return float(np.trace(self.cells))

    @property
    def recalls(self):
        return np.diag(self.cells) / self.cells.sum(axis=1)

    @property
    def lift(self):
        return self.accuracy - float(self.cells.sum(axis=1).max())

    def tables(self, blocks, slots, rng):
        """Tables of so many blocks, (blocks, K, K)."""
        return rng.multinomial(slots, self.cells.ravel(), size=blocks).reshape(blocks, *self.cells.shape)


@cache
def world(classes, accuracy):
    """A World in which classes differ in how common they are and how well they are recognised."""
    common = np.linspace(2.0, 1.0, classes)
    common /= common.sum()
    recalls = np.clip(accuracy + (1 - accuracy) * np.linspace(0.2, -0.2, classes), 0, 1)
    recalls += accuracy - common @ recalls
    others = np.ones((classes, classes)) - np.eye(classes)
    cells = common[:, None] * ((1 - recalls)[:, None] * others / (classes - 1) + np.diag(recalls))
    return World(cells)


def figures(layout, counts, noise, slots, **more) -> ClassFigures:
    return ClassFigures(layout=layout, counts=counts, counted=CountLaw(noise=noise, slots=slots, **more))


def released(tables, privacy, *, bins=False):
    """Figures of blocks of these tables, for one publication, with fresh noise; bins are empty."""
    blocks, classes, _ = tables.shape
    layout = ClassCounts(classes=classes, publications=1, bins=bins)
    noise = noise_of(layout, privacy)
    counts = np.zeros((blocks, layout.size), dtype=np.int64)
    counts[:, : classes**2] = tables.reshape(blocks, -1)
    slots = int(tables[0].sum())
    return [figures(layout, each, noise, slots) for each in (counts + draw(noise, counts.shape)).astype(float)]


__all__ = [
    "BINS",
    "DATA",
    "PRIVACY",
    "Currency",
    "World",
    "draw",
    "figures",
    "noise_of",
    "privacies",
    "released",
    "world",
]
