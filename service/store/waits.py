"""Why the next step of a publication waits though all its records are there: as the last worker said that met it.

A reason follows from public quantities and from the worker's machine alone, so that people may see it. When a worker
meets the step depends on how long other fits took: so a reason is shown from a public tick on, as a release is.
"""

from datetime import datetime

from sqlalchemy import Connection, delete
from sqlalchemy.dialects import postgresql

from service.store.tables import waits


def note(connection: Connection, publication: int, due: int, reason: str, *, shown_at: datetime | None = None) -> None:
    """Note why the step waits that had all its records at record `due`; nothing is written where that is noted.

    shown_at: the tick from which on the reason is shown; None: at once.
    """
    noted = {"due": due, "reason": reason, "shown_at": shown_at}
    put = postgresql.insert(waits).values(publication_id=publication, **noted)
    changed = (waits.c.due != due) | (waits.c.reason != reason)
    connection.execute(put.on_conflict_do_update(index_elements=["publication_id"], set_=noted, where=changed))


def forget(connection: Connection, publication: int) -> None:
    """Delete what is noted of a publication that has ended."""
    connection.execute(delete(waits).where(waits.c.publication_id == publication))
