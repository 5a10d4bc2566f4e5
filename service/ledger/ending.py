"""The end of a publication: once it is shown, what it reserved and did not spend is free for others.

An end is shown when all charges of its stream are confirmed (`store.shown`): in the transaction that ends it where they
are, else in the one that confirms them.
"""

from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import Connection

from service.ledger.reservations import settle
from service.store import attempts, labels, parked, parts, publications, streams, visible_positions, waits
from service.store.publications import Publication
from service.store.visible_positions import PendingVisibility


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
    if publications.is_untampered(publication):
        ended = replace(ended, seal=publications.state_digest(ended))
    publications.mark_ended(connection, ended)
    if streams.get(connection, publication.stream_id).all_confirmed:
        unseen = [each for each in visible_positions.unseen(connection, [publication.stream_id]) if each.has_ended]
        visible_positions.show(connection, unseen)
        settle_shown(connection, unseen)
    return ended


def settle_shown(connection: Connection, seen: Iterable[PendingVisibility]) -> None:
    """Settle what publications keep whose ends are shown now, and wake readers. The caller locks their streams."""
    ended = [each for each in seen if each.has_ended]
    for stream in {each.stream_id for each in ended}:
        settle(connection, stream)
    publications.notify_readers(connection, [each.publication_id for each in ended])
