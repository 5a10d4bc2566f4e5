"""The numbers of a publication's card: what the ledger promises, reserves and has charged, of what is confirmed."""

from dataclasses import dataclass
from fractions import Fraction

from sqlalchemy import Connection

from service.ledger import spending, summaries
from service.ledger.summaries import Declassified
from service.privacy.accounting.composition import PrivacyLoss
from service.store import charges, streams
from service.store.publications import Publication


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Amounts of (ε, δ).

    for_life: the most that any record may ever lose. reserved: the most that is reserved on any record now.
    spent: the most that any record was charged so far.
    """

    for_life: PrivacyLoss
    reserved: PrivacyLoss
    spent: PrivacyLoss


@dataclass(frozen=True, kw_only=True)
class CardNumbers:
    """Amounts of one publication, and of all publications of its stream together.

    records: how many the stream has. declassified: how many of them no longer have any protection. charge, hash: the
    newest charge of the stream, up to which the numbers hold; None: there is none yet.
    """

    publication: Amounts
    stream: Amounts
    records: int
    declassified: int
    charge: int | None
    hash: str | None


def numbers(connection: Connection, publication: Publication, *, declassified: Declassified) -> CardNumbers:
    """Return the numbers of a publication's card."""
    stream = streams.get(connection, publication.stream_id)
    (totals,) = summaries.totals(connection, [stream], declassified=declassified)
    component, implied = spending.component_of(publication), stream.budget.implied
    newest = charges.page(connection, stream.id, limit=1, before=None)
    left_reserved = component.reserved_after_end(Fraction(publication.worst_amount))
    return CardNumbers(
        publication=Amounts(
            for_life=PrivacyLoss.of(publication.epsilon, publication.delta),
            reserved=implied(component.cap if component.running else left_reserved),
            spent=implied(component.loss(Fraction(publication.visible_worst_amount))),
        ),
        stream=Amounts(
            for_life=PrivacyLoss.of(stream.epsilon, stream.delta),
            reserved=implied(totals.reserved),
            spent=implied(summaries.spent(stream)),
        ),
        records=stream.records,
        declassified=totals.declassified,
        charge=newest[0]["id"] if newest else None,
        hash=newest[0]["hash"] if newest else None,
    )
