"""Writes the content of a card: numbers of the ledger, and sentences that follow from the publication's settings."""

from collections.abc import Callable, Iterator
from typing import Literal

from pydantic import BaseModel, Field

from service.api.schemas import Timestamp
from service.ledger.card import Amounts, CardNumbers
from service.privacy.accounting.composition import PrivacyLoss
from service.privacy.currency import round_up
from service.store.publications import Publication
from service.streams.schema import Units


class CardUnit(BaseModel):
    kind: Literal["record", "unit"]
    max_records: int | None = Field(None, description="How many records of a unit count")
    min_separation: int | None = Field(None, description="How many records apart they are at least")
    text: str


class CardAmounts(BaseModel):
    """Rounded up."""

    for_life: float = Field(description="The most that any record, or unit, may ever lose")
    reserved: float = Field(description="The most that is reserved on any of them now")
    spent: float = Field(description="The most that any of them was charged so far")


class CardParameter(BaseModel):
    """ε, δ or ρ: of this publication, and of all publications of its stream together."""

    publication: CardAmounts
    stream: CardAmounts
    text: str


class CardLedger(BaseModel):
    """The ledger from which the numbers come, up to its newest charge."""

    records: int = Field(description="Records of the stream")
    declassified: int = Field(description="How many of them no longer have any protection, since they expired")
    charge: int | None = Field(description="Number of the newest charge")
    hash: str | None = Field(description="Its hash, which depends on all charges before it")


class Card(BaseModel):
    """The promise of a publication, for people who have to approve it. Every number comes from the ledger."""

    publication: str
    stream: str
    mechanism: str
    learner: str | None
    state: str
    created_at: Timestamp
    warnings: list[str] = Field(description="Reasons not to rely on the card as it is")
    unit: CardUnit
    epsilon: CardParameter
    delta: CardParameter
    rho: CardParameter | None = Field(description="Where the stream's budget is held in ρ: what counts there")
    public: list[str]
    protected: list[str]
    trust_boundary: list[str]
    operator: str | None = Field(description="The setting PERENNIAL_OPERATOR")
    ledger: CardLedger


_UNIT = (
    "One record: the content of one numbered slot of the stream. The promise compares two streams that are equal but "
    "in one slot, whose record is replaced by any other record or by none. A person with several records is several "
    "units and can lose more."
)
_UNIT_OF_RECORDS = (
    "All records of one unit, such as a person or a device, by the id that came with them. The promise compares two "
    "streams that are equal but in the records of one unit, which are replaced by any others or by none. At most "
    "{most} of its records count, each at least {separation} records after the one before; other records are not used."
)
_EPSILON = (
    "Everything that is ever released is almost as likely with one {unit} as with any other in its place: within a "
    "factor of e^ε, for the whole life of the publication, even if later records are chosen by looking at earlier "
    "releases."
)
_DELTA = (
    "The probability with which that factor may be exceeded. Drawing the noise on a computer adds at most 2⁻⁶⁰, which "
    "no number here includes."
)
_RHO = (
    "The stream's budget is held in ρ, zero-concentrated differential privacy, and its publications add up in ρ. "
    "Beside the stream's ρ stands the ε that it implies at the stream's δ; beside a publication's, its own ε and δ. "
    "At a moment chosen by looking at releases, the stream's promise is its ε for life alone."
)
_PROTECTED = [
    "The content of each record: its features and its label.",
    "Whether a slot came empty, and the content of a record that was erased.",
]


def card(publication: Publication, numbers: CardNumbers, *, units: Units | None, operator: str | None) -> Card:
    """Return the card of a publication. units: those of its stream; None: each record is protected by itself."""
    configuration = publication.configuration
    learner = configuration.get("learner")
    return Card(
        publication=publication.name,
        stream=publication.stream,
        mechanism=configuration["mechanism"]["kind"],
        learner=learner and learner["kind"],
        state=publication.visible_state if publication.distrusted is None else "halted",
        created_at=publication.created_at,
        warnings=list(_warnings(publication, numbers)),
        unit=_unit(units),
        epsilon=_parameter(numbers, "epsilon", _EPSILON.format(unit="record" if units is None else "unit")),
        delta=_parameter(numbers, "delta", _DELTA),
        rho=_in_rho(numbers),
        public=list(_public(publication, units)),
        protected=_PROTECTED,
        trust_boundary=list(_trust_boundary(publication)),
        operator=operator,
        ledger=CardLedger(
            records=numbers.records, declassified=numbers.declassified, charge=numbers.charge, hash=numbers.hash
        ),
    )


def _unit(units: Units | None) -> CardUnit:
    if units is None:
        return CardUnit(kind="record", text=_UNIT)
    text = _UNIT_OF_RECORDS.format(most=units.max_records, separation=units.min_separation)
    return CardUnit(kind="unit", max_records=units.max_records, min_separation=units.min_separation, text=text)


def _parameter(numbers: CardNumbers, name: str, text: str) -> CardParameter:
    def shown(loss: PrivacyLoss) -> float:
        return loss.shown()[name]

    return CardParameter(
        publication=_amounts(numbers.publication, shown), stream=_amounts(numbers.stream, shown), text=text
    )


def _in_rho(numbers: CardNumbers) -> CardParameter | None:
    publication, stream = numbers.publication.in_rho, numbers.stream.in_rho
    if publication is None or stream is None:
        return None

    def shown(loss: PrivacyLoss) -> float:
        return round_up(loss.rho)

    return CardParameter(publication=_amounts(publication, shown), stream=_amounts(stream, shown), text=_RHO)


def _amounts(of: Amounts, shown: Callable[[PrivacyLoss], float]) -> CardAmounts:
    return CardAmounts(for_life=shown(of.for_life), reserved=shown(of.reserved), spent=shown(of.spent))


def _expires(publication: Publication) -> bool:
    return bool(publication.configuration["mechanism"].get("expiry", "never") != "never")


def _warnings(publication: Publication, numbers: CardNumbers) -> Iterator[str]:
    if publication.distrusted is not None:
        yield f"The ledger of this stream does not verify: {publication.distrusted}. Do not rely on this card."
    if _expires(publication):
        yield (
            "Records expire: a later release has them in the clear, and from then on nothing on the stream protects "
            "them, whatever other publications promise."
        )
    if numbers.declassified:
        yield f"{numbers.declassified} records of the stream have expired and are no longer protected."


def _public(publication: Publication, units: Units | None) -> Iterator[str]:
    yield "Every release, with its noise and its charge; everything that anybody computes from releases."
    yield "How many records there are, when they arrived, which slots were erased and when."
    if units is not None:
        yield "Which records are of one unit: the order of the units' pseudonyms."
    yield (
        "The stream's schema and budget, every setting of this publication, its schedule. The operator vouches that "
        "none of them was computed from the records."
    )
    yield _times(publication)


def _times(publication: Publication) -> str:
    if publication.publish_delay and publication.obligations.get("ticks", True):
        return (
            f"When a release appears: at multiples of {publication.publish_delay.normalize():f} s. A release that is "
            "late tells a little of its records, which ε and δ do not include."
        )
    return "When a release appears. The time tells something of its records, which ε and δ do not include."


def _trust_boundary(publication: Publication) -> Iterator[str]:
    yield "The operator, and everybody who can read or change the machine, the database, the log or the stored records."
    yield "Everybody who sends records, and everybody who can read the service's logs, metrics and backups."
    if publication.asks_people:
        yield "The people who label: they see the records that this publication selects."
