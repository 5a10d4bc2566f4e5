"""Sums in random histories: what each record paid, and what may still be asked of it."""

from fractions import Fraction

from sqlalchemy import select

from service.privacy.accounting.composition import PrivacyLoss, Slots
from service.privacy.accounting.zcdp_budget import pure_rho
from service.privacy.currency import capacity
from service.store import publications, streams, tables


class Sums:
    """Checks of a history, record by record."""

    def check_sums(self):
        """Record by record: what it paid each publication is within its cap, and what all may ask within the budget."""
        with self.stage.database.transaction() as connection:
            charges = connection.execute(select(tables.charges).order_by(tables.charges.c.id)).all()
            known = {each.id: each for each in publications.of_stream(connection, self.stream.id)}
            records = streams.get(connection, self.stream.id).records
        in_rho = self.stream.budget.in_rho
        for record in range(records):
            reserved = PrivacyLoss()
            for identity, each in self.paid_by(record, known).items():
                paid = sum(
                    (
                        Fraction(charge.rho if charge.epsilon is None else charge.epsilon)
                        for charge in charges
                        if charge.publication_id == identity and charge.start <= record < charge.stop
                    ),
                    start=Fraction(0),
                )
                assert paid <= capacity(each.epsilon, each.delta)[1]
                asks = each.state == "running" and each.start <= record
                if in_rho:
                    whole = capacity(each.epsilon, each.delta)[1] if asks else paid
                    reserved += PrivacyLoss(rho=whole if each.delta else pure_rho(whole, units=False))
                    continue
                whole = PrivacyLoss.of(each.epsilon, each.delta)
                gaussian = whole if paid else PrivacyLoss()
                reserved += whole if asks else (gaussian if each.delta else PrivacyLoss(epsilon=paid))
            assert reserved.within(self.stream.budget.limit)

    def paid_by(self, record, known):
        """Return the publications, by id, that read a record's kind of slot."""
        slots = self.stream.evaluation_slots
        kind = Slots.EVALUATION if slots is not None and slots.includes(record) else Slots.TRAINING
        return {identity: each for identity, each in known.items() if each.slots is kind}
