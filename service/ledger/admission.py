"""The admission of a publication: its lifetime cost is reserved on every record that it may ever read."""

from fractions import Fraction

from sqlalchemy import Connection

from service.ledger.errors import BudgetExceeded, TooManyDraws
from service.ledger.reservations import drawn, refused
from service.privacy.accounting.budget import cap
from service.privacy.accounting.composition import PrivacyLoss, Slots
from service.privacy.noise.sampler_distance import is_small
from service.store import publications
from service.store.keys import NameTaken
from service.store.publications import NewPublication, Publication
from service.store.streams import Stream


def admit(connection: Connection, stream: Stream, new: NewPublication, visible: frozenset[str] | None) -> Publication:
    """Store a publication that the budget of its stream can hold, and return it.

    stream: locked. visible: names of the streams that the asking key may see; None: every stream.

    Raises:
        BudgetExceeded: some record that it may read can't hold its cap beside all that is reserved already.
        NameTaken: a publication that the asking key may see has this name.
        TooManyDraws: all draws of nearly exact noise on the stream would pass the slack of a budget held in ρ.
    """
    if publications.find(connection, new.name, visible=visible) is not None:  # first: a budget that is used up hides it
        raise NameTaken(new.name)
    cost = cap(stream.accounting, new.epsilon, new.delta, units=new.obligations.unit is not None)
    check(connection, stream, cost, new.start, new.obligations.slots)
    if stream.budget.in_rho:
        draws = drawn(publications.of_stream(connection, stream.id)) + (new.obligations.draws or 0)
        if not is_small(Fraction(stream.epsilon), draws):
            raise TooManyDraws
    return publications.create(connection, stream.id, new, visible=visible)


def check(connection: Connection, stream: Stream, cost: PrivacyLoss, start: int, slots: Slots = Slots.TRAINING) -> None:
    """Check that all records from `start` on, in slots of one kind, can hold `cost` beside all reserved already.

    Raises:
        BudgetExceeded: one of them can't.
    """
    worst = refused(connection, stream, publications.of_stream(connection, stream.id), cost, start, slots)
    if worst is not None:
        raise BudgetExceeded(worst)
