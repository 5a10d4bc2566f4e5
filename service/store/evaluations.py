"""The newest releases of evaluations, by which publications are judged."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Connection, Text, bindparam, cast, func, select, true
from sqlalchemy.dialects.postgresql import JSONB

from service.privacy.accounting.events import NoisyCounts
from service.store.releases import array, is_visible, page
from service.store.tables import publications, releases, shown, streams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from service.store.releases import ReleaseInfo

    Block = tuple[dict[str, Any], dict[str, Any], NDArray[np.float64]]
    """The model, the noise and the counts of a release."""


def newest_of(connection: Connection, stream: int, name: str, *, limit: int) -> tuple[str, list[ReleaseInfo]] | None:
    """Return the newest visible releases of the evaluation that last counted a publication, newest first, and its name.

    stream, name: of the publication. None: no evaluation has counted it.
    """
    newest = connection.execute(_NEWEST_OF, {"stream": stream, "name": name}).one_or_none()
    return None if newest is None else (newest.name, page(connection, newest.id, limit=limit, before=None))


_NEWEST_OF = (
    select(publications.c.id, publications.c.name)
    .join(releases, publications.c.id == releases.c.publication_id)
    .where(
        releases.c.stream_id == bindparam("stream", type_=BigInteger),
        releases.c.noise["added_to"].as_string() == NoisyCounts.added_to,
        cast(releases.c.model["of"], JSONB).has_key(bindparam("name", type_=Text)),
        is_visible(),
    )
    .order_by(releases.c.time.desc(), releases.c.number.desc())
    .limit(1)
)


def of_running(connection: Connection, *, limit: int) -> list[tuple[str, str, list[Block]]]:
    """Return the name, the stream and the newest visible blocks, oldest first, of each running evaluation."""
    newest = (
        select(releases.c.version, releases.c.model, releases.c.noise, releases.c.parameters, releases.c.shape)
        .where(releases.c.publication_id == publications.c.id, releases.c.number <= streams.c.confirmed_releases)
        .order_by(releases.c.version.desc())
        .limit(limit)
        .lateral("newest")
    )
    query = (
        select(publications.c.name, streams.c.name.label("stream"), newest)
        .join(streams, streams.c.id == publications.c.stream_id)
        .join(shown, shown.c.publication_id == publications.c.id)
        .join(newest, true())
        .where(
            shown.c.state == "running",
            func.jsonb_typeof(cast(publications.c.configuration["mechanism"]["of"], JSONB)) == "array",
        )
        .order_by(publications.c.id, newest.c.version)
    )
    return [
        (name, stream, [(row.model, row.noise, array(row)) for row in rows])
        for (name, stream), rows in groupby(connection.execute(query), lambda row: (row.name, row.stream))
    ]
