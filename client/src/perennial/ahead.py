"""Pieces of data that a thread makes while those before them are used."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

Piece = TypeVar("Piece")


def one_ahead(pieces: Generator[Piece]) -> Iterator[Piece]:
    """Yield the pieces; a thread makes each while the one before is used."""
    with closing(pieces), ThreadPoolExecutor(max_workers=1) as maker:
        following = maker.submit(next, pieces, None)
        while (piece := following.result()) is not None:
            following = maker.submit(next, pieces, None)
            yield piece
