"""Features that a publication has from another one of its stream: it waits until that one's release is confirmed.

`ready` and `lost` follow from what is committed and public: which releases the high-water mark holds, and whether the
other publication has ended. So every worker decides alike, today or after a crash.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, exists, or_, select

from service.store import publications, releases
from service.store.publications import Publication
from service.store.tables import publications as table
from service.store.tables import releases as released

VERSION = 1
"""The version of the release that is used: a publication that releases a feature map releases one."""

_source = table.alias("source")
_RELEASED = (released.c.publication_id == table.c.features_from) & (released.c.version == VERSION)


def ready() -> ColumnElement[bool]:
    """Return the condition that a publication has all its features, or needs none; in a query of publications."""
    visible = exists().where(_RELEASED, releases.is_visible()).correlate(table)
    return or_(table.c.features_from.is_(None), visible)


def lost() -> ColumnElement[bool]:
    """Return the condition that its features will never come; in a query of publications."""
    ended = exists().where(_source.c.id == table.c.features_from, _source.c.state != "running").correlate(table)
    return ended & ~exists().where(_RELEASED).correlate(table)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a publication has its features from. `model`: what the confirmed release says of itself; None: not yet."""

    publication: Publication
    model: dict[str, Any] | None
    lost: bool


def source(connection: Connection, publication: Publication) -> Source | None:
    """Return where a publication has its features from; None: it needs none."""
    if publication.features_from is None:
        return None
    source = publications.get(connection, publication.features_from)
    model = connection.execute(
        select(released.c.model).where(
            released.c.publication_id == source.id, released.c.version == VERSION, releases.is_visible()
        )
    ).scalar_one_or_none()
    gone = connection.execute(select(lost()).where(table.c.id == publication.id)).scalar_one()
    return Source(publication=source, model=model, lost=gone)


def published_at() -> Any:
    """When the features of a publication were released, or null; in a query of publications."""
    return select(released.c.published_at).where(_RELEASED).correlate(table).scalar_subquery()
