"""No record was charged more by a publication than that may ever charge, nor is more reserved than its stream holds."""

from fractions import Fraction

from sqlalchemy import Connection, func, select

from service.privacy.account import Loss
from service.privacy.loss import capacity
from service.store import publications, spending, streams
from service.store.tables import spent


def violations(connection: Connection) -> list[str]:
    query = select(spent.c.publication_id, func.max(spent.c.amount).label("amount")).group_by(spent.c.publication_id)
    highest = {row.publication_id: Fraction(row.amount) for row in connection.execute(query)}
    found = []
    for stream in streams.every(connection):
        of_it = publications.of_stream(connection, stream.id)
        found += [
            f"publication {each.name} of stream {stream.name}"
            for each in of_it
            if highest.get(each.id, 0) > capacity(each.epsilon, each.delta)[1]
        ]
        if not spending.reserved(connection, stream.id, of_it).within(Loss.of(stream.epsilon, stream.delta)):
            found.append(f"stream {stream.name}")
    return found
