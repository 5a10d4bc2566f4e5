"""Reservations: what is spent and reserved stays within the budget, and the summaries of both are right."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from service.ledger import reservations, spending
from service.privacy.accounting import composition
from service.privacy.accounting.composition import Slots
from service.privacy.noise.sampler_distance import is_small
from service.store.publications import Publication
from service.store.rows import Rows
from service.store.streams import Stream


def within_budget(rows: Rows, stream: Stream, publications: Sequence[Publication], slots: Slots) -> Iterator[str]:
    """Check that spent and reserved stay within the budget on slots of one kind, and that the summaries are their sums.

    No slot is of both kinds.
    """
    limit = stream.budget.limit
    of_kind = [each for each in publications if each.slots is slots]
    every = spending.changes(rows, [each.id for each in of_kind])
    drawn: list[spending.Stretch] = []
    grain = 1
    room = 4 * spending.MAX_RANGES
    for each in composition.add_up([spending.component_of(publication) for publication in of_kind], every):
        if each.end is not None and each.spent != composition.PrivacyLoss():
            drawn.append((each.start, each.end, each.spent))
            grain = spending.grain_to(each.end, grain)
        if len(drawn) > room:
            drawn = composition.outline(drawn, grain)
            room = max(room, 2 * len(drawn))
        if not each.reserved.within(limit):
            yield f"stream {stream.name}, record {each.start}: more is reserved than the stream's budget"
        if not each.spent.within(each.reserved):
            yield f"stream {stream.name}, record {each.start}: more is spent than is reserved"
    outline = spending.outlined(rows, stream.id, 0, 2**62, slots)
    drawn = composition.outline(drawn, grain)
    if grain != stream.grain_of(slots) or [each for each in outline if each[2] != composition.PrivacyLoss()] != drawn:
        yield f"stream {stream.name}: what is told that its records have spent at most is not what they have"
    if reservations.walk_stairs(rows, stream.id, slots) != reservations.stairs(rows, of_kind, slots):
        yield f"stream {stream.name}: what ended publications are said to keep is not what they charged"


def within_slack(stream: Stream, publications: Sequence[Publication]) -> Iterator[str]:
    """Check that all draws of nearly exact noise add no more to δ than a budget held in ρ leaves room for."""
    if stream.budget.in_rho and not is_small(Fraction(stream.epsilon), reservations.drawn(publications)):
        yield f"stream {stream.name}: its publications' draws add more to delta than the budget leaves room for"
