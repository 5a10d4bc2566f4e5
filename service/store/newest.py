"""The newest model of a publication that is visible, and until when no newer one can be.

Where releases appear at public ticks, multiples of T = `publish_delay` by PostgreSQL's clock, a look may answer for all
who ask before the next tick. Statement: let a look hold the stream's lock at a moment u of that clock, see no release
of the publication that is committed but not confirmed, and no parked step whose tick is at or before u. Then nothing of
the publication becomes visible before N, the first multiple of T after u.

Proof. A release becomes visible when it is confirmed, under the stream's lock (`publishing.confirmation`): after u. It
was not committed before u, or it would be confirmed or be seen as unconfirmed; so it is published after u from a parked
step. If that was parked before u, its tick is after u. If not, it was parked under the stream's lock, taken after u was
read, and its tick is not before its own moment (`store.parked`). In both cases its tick is a multiple of T after u, so
it is N or later, and no step is published before its tick. ∎ Between N and the release's own appearance looks see a due
step or an unconfirmed release, and answer for themselves alone.
"""

from decimal import Decimal
from typing import NamedTuple

from sqlalchemy import ARRAY, Connection, Select, Text, and_, bindparam, func, or_, select

from service.store.database import read_together, within
from service.store.publications import newest_visible
from service.store.tables import parked, publications, releases, streams

SECONDS_TO_LOOK = 20.0  # then PostgreSQL ends the look of an API that hangs; an API that works waits no longer either


class Newest(NamedTuple):
    """`latest`: the newest visible version of a publication with role `model`, if it has any."""

    id: int
    promise: str
    latest: int | None
    publish_delay: Decimal


class Look(NamedTuple):
    """`seconds`: for so long after the look began no newer model becomes visible; 0: it is not known."""

    newest: Newest
    seconds: float


def find(connection: Connection, name: str, visible: frozenset[str] | None) -> Newest | None:
    """Return what is visible now; of several publications with that name the first on a stream in `visible`."""
    bound = {"name": name} if visible is None else {"name": name, "visible": list(visible)}
    row = connection.execute(_OF_ALL if visible is None else _OF_VISIBLE, bound).one_or_none()
    return Newest(*row) if row else None


def look(connection: Connection, known: Newest) -> Look | None:
    """Return what is visible of a publication now, and for how long; None: there is no such publication any more.

    Args:
        connection: of a transaction that is undone in the end, at the isolation level READ COMMITTED: the second
            statement must see all that was committed before the first got the stream's lock. Where somebody else has
            that lock, nobody waits for it.
        known: the publication as it was seen before.
    """
    bound = {"publication": known.id, "promise": known.promise}
    limit = within(connection, SECONDS_TO_LOOK)
    *_, locked, rows = read_together(connection, *limit, (_LOCK, bound), (_SETTLED, bound))
    if not rows:
        return None
    (row,) = rows
    newest = Newest(row.id, row.promise, row.latest, row.publish_delay)
    delay = row.publish_delay
    if not locked or row.unsettled or not delay:
        return Look(newest, 0.0)
    return Look(newest, float((delay - row.now % delay) % delay))


_NEWEST = select(
    publications.c.id,
    publications.c.promise,
    newest_visible(role="model").label("latest"),
    publications.c.publish_delay,
).join(streams, streams.c.id == publications.c.stream_id)
_OF_ALL = _NEWEST.where(publications.c.name == bindparam("name")).order_by(publications.c.id).limit(1)
_OF_VISIBLE = _OF_ALL.where(streams.c.name == func.any(bindparam("visible", type_=ARRAY(Text))))
_SAME = and_(publications.c.id == bindparam("publication"), publications.c.promise == bindparam("promise"))
_LOCK = (
    select(streams.c.id)
    .join(publications, publications.c.stream_id == streams.c.id)
    .where(_SAME)
    .with_for_update(read=True, key_share=True, skip_locked=True, of=streams)
)
_UNCONFIRMED = select(releases.c.version).where(
    releases.c.publication_id == publications.c.id, releases.c.number > streams.c.confirmed_releases
)
_DUE: Select[tuple[int]] = select(parked.c.position).where(
    parked.c.publication_id == publications.c.id, parked.c.tick <= func.statement_timestamp()
)
_SETTLED = _NEWEST.add_columns(
    or_(_UNCONFIRMED.exists(), _DUE.exists()).label("unsettled"),
    func.extract("epoch", func.statement_timestamp()).label("now"),
).where(_SAME)
