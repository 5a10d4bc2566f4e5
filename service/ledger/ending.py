"""The end of a publication: what it reserved and did not spend is free for others, in the same transaction."""

from dataclasses import replace

from sqlalchemy import Connection

from service.ledger.reservations import settle
from service.store import attempts, labels, parked, parts, publications, waits
from service.store.publications import Publication


def end(connection: Connection, publication: Publication, state: str, reason: str | None) -> Publication:
    """Stop or halt a publication for ever and return it; what it remembers and what waits for its tick is deleted.

    publication: locked, with its stream. Ending a tampered publication does not repair its seal.
    """
    if publication.state != "running":
        return publication
    for each in (parts, labels, attempts, waits):
        each.forget(connection, publication.id)
    parked.drop(connection, publication.id)
    ended = replace(publication, state=state, reason=reason)
    if publications.as_left(publication):
        ended = replace(ended, seal=publications.sealed(ended))
    publications.mark_ended(connection, ended)
    settle(connection, publication.stream_id)
    return ended
