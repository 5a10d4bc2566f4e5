"""Steps whose last attempt ended without a public reason.

A step that is drawn again after such an end is rejection sampling: which of its results is shown depends on what ended
the first. One more attempt is allowed; after a second unforeseen end at the same position and version the publication
halts. A foreseen end, like SIGTERM or a database that is away, says so and is not noted.
"""

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql

from service.store.tables import attempts


def note(connection: Connection, publication: int, position: int, version: int) -> bool:
    """Note that an attempt at a step ended without a public reason; return whether one had ended so before."""
    earlier = connection.execute(select(attempts).where(attempts.c.publication_id == publication)).one_or_none()
    if earlier is not None and (earlier.position, earlier.version) == (position, version):
        return True
    noted = {"position": position, "version": version}
    put = postgresql.insert(attempts).values(publication_id=publication, **noted)
    connection.execute(put.on_conflict_do_update(index_elements=["publication_id"], set_=noted))
    return False


def forget(connection: Connection, publication: int) -> None:
    """Delete what is noted of a publication that has ended."""
    connection.execute(delete(attempts).where(attempts.c.publication_id == publication))
