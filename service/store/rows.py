"""Rows by their owner, for who walks all of them: a stream's, or a publication's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import merge
from operator import attrgetter
from typing import Any

from sqlalchemy import ARRAY, BigInteger, ColumnElement, Connection, Row, Select, bindparam, func

from service.store.database import any_of
from service.store.tables import publications

AT_ONCE = 1000  # rows in memory, of one owner


class Rows:
    """Reads the rows of one owner after the other; however many an owner has, they take little memory."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def of(self, query: Select[Any], owner: ColumnElement[int], identity: int) -> Iterator[Row[Any]]:
        """Yield the rows of a query, in its order, whose column `owner`, which is among its columns, is `identity`."""
        return self._read(_of_one(query, owner), {"owner": identity})

    def of_each(
        self, query: Select[Any], owner: ColumnElement[int], identities: Sequence[int], *, order: str
    ) -> Iterator[Row[Any]]:
        """Yield the same of several owners, in the order of a column."""
        del order  # the query's own
        return self._read(_of_several(query, owner), {"owners": list(identities)})

    def _read(self, query: Select[Any], bound: dict[str, Any]) -> Iterator[Row[Any]]:
        """Most owners have few rows, and a cursor on the server takes four times as many round trips."""
        first = self._connection.execute(_first(query), bound | {"at_once": AT_ONCE}).all()
        if len(first) < AT_ONCE:
            yield from first
            return
        del first
        with self._connection.execute(query, bound, execution_options={"yield_per": AT_ONCE}) as rows:
            yield from rows


# To build a query takes longer than to send it: each is built once.
@lru_cache(maxsize=128)
def _of_one(query: Select[Any], owner: ColumnElement[int]) -> Select[Any]:
    return query.where(owner == bindparam("owner", type_=BigInteger))


@lru_cache(maxsize=128)
def _of_several(query: Select[Any], owner: ColumnElement[int]) -> Select[Any]:
    return query.where(owner == func.any(bindparam("owners", type_=ARRAY(BigInteger))))


@lru_cache(maxsize=128)
def _first(query: Select[Any]) -> Select[Any]:
    return query.limit(bindparam("at_once", type_=BigInteger))


class RowsTogether(Rows):
    """Reads each kind of rows with one query for all streams at hand, and keeps them: for streams with few."""

    def __init__(self, connection: Connection, streams: Sequence[int]) -> None:
        super().__init__(connection)
        mine = publications.select().with_only_columns(publications.c.id)
        theirs = connection.scalars(mine.where(publications.c.stream_id == any_of(streams)))
        self._owners = {"stream_id": list(streams), "publication_id": list(theirs)}
        self._known: dict[tuple[Select[Any], ColumnElement[int]], Mapping[int, Sequence[Row[Any]]]] = {}

    def of(self, query: Select[Any], owner: ColumnElement[int], identity: int) -> Iterator[Row[Any]]:
        return iter(self._by_owner(query, owner).get(identity, ()))

    def of_each(
        self, query: Select[Any], owner: ColumnElement[int], identities: Sequence[int], *, order: str
    ) -> Iterator[Row[Any]]:
        known = self._by_owner(query, owner)
        return merge(*(known.get(each, ()) for each in identities), key=attrgetter(order))

    def _by_owner(self, query: Select[Any], owner: ColumnElement[int]) -> Mapping[int, Sequence[Row[Any]]]:
        if (query, owner) not in self._known:
            rows = self._connection.execute(_of_several(query, owner), {"owners": self._owners[owner.name]})
            self._known[query, owner] = _grouped(rows, owner.name)
        return self._known[query, owner]


def _grouped(rows: Iterable[Row[Any]], owner: str) -> dict[int, list[Row[Any]]]:
    grouped: dict[int, list[Row[Any]]] = {}
    for row in rows:
        grouped.setdefault(getattr(row, owner), []).append(row)
    return grouped
