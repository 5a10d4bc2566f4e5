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
    """Amounts as (ε, δ), and where the stream's budget is held in ρ also in ρ.

    for_life: the most that any record may ever lose. reserved: the most that is reserved on any record now.
    spent: the most that any record was charged so far.
    """

    for_life: PrivacyLoss
    reserved: PrivacyLoss
    spent: PrivacyLoss
    in_rho: "Amounts | None" = None


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
    """Return the numbers of a publication's card.

    Those of the publication are its own (ε, δ), not what its ρ implies at the stream's δ: `ZcdpComponent` says why.
    """
    stream = streams.get(connection, publication.stream_id)
    (totals,) = summaries.totals(connection, [stream], declassified=declassified)
    component, budget = spending.component_of(publication), stream.budget
    spent = summaries.spent(stream, totals.publications)
    charged, amount = Fraction(publication.worst_amount), Fraction(publication.visible_worst_amount)
    newest = charges.page(connection, stream.id, limit=1, before=None)
    return CardNumbers(
        publication=Amounts(
            for_life=PrivacyLoss.of(publication.epsilon, publication.delta),
            reserved=component.held_alone(charged),
            spent=component.alone(amount),
            in_rho=Amounts(for_life=component.cap, reserved=component.held(charged), spent=component.loss(amount))
            if budget.in_rho
            else None,
        ),
        stream=Amounts(
            for_life=PrivacyLoss.of(stream.epsilon, stream.delta),
            reserved=budget.implied(totals.reserved),
            spent=budget.implied(spent),
            in_rho=Amounts(for_life=budget.limit, reserved=totals.reserved, spent=spent) if budget.in_rho else None,
        ),
        records=stream.records,
        declassified=totals.declassified,
        charge=newest[0]["id"] if newest else None,
        hash=newest[0]["hash"] if newest else None,
    )
