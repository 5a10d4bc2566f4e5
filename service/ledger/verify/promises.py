"""Promises: of a stream, and of a publication, which must also be as it was left."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from service.privacy.accounting.composition import Slots
from service.store import publications, streams
from service.store.publications import Publication
from service.store.streams import Stream


def of_stream(stream: Stream) -> Iterator[str]:
    if streams.promised(stream) != stream.promise:
        yield f"stream {stream.name}: what it promises, its budget or its schema, is not what its digest is of"


def of_publication(publication: Publication) -> Iterator[str]:
    """Check that a publication promises what it did when it was made, and is as it was left."""
    where = f"publication {publication.name}"
    if publications.promised(publication) != publication.promise:
        yield f"{where}: what it promises, its settings or its stream's, is not what its digest is of"
    if publications.obligations_digest(publication) != publication.obligations_digest:
        yield f"{where}: its obligations are not what their digest is of"
    if not publications.is_untampered(publication):
        yield f"{where}: it is not as it was left"
    if publication.publish_delay != _delay(publication):
        yield f"{where}: its publish_delay is not the one that it was made with"


def of_slots(stream: Stream, publication: Publication) -> Iterator[str]:
    """Check that evaluations of such a stream are charged to these, and other publications to the rest."""
    evaluates = isinstance(publication.configuration["mechanism"].get("of"), list)  # names of publications
    expected = Slots.EVALUATION if evaluates and stream.evaluation_period is not None else Slots.TRAINING
    if publication.slots is not expected:
        yield f"publication {publication.name}: its charges are counted on slots that it does not read"


def of_units(stream: Stream, publication: Publication) -> Iterator[str]:
    """Check that a publication counts charges for a unit where its stream has units, and for that stream's units."""
    unit = publication.obligations.get("unit")
    bound = None if unit is None else {name: value for name, value in unit.items() if name != "factor"}
    if bound != stream.schema.get("unit"):
        yield f"publication {publication.name}: its charges are not counted for the units of its stream"


def of_features(of_stream: Sequence[Publication], publication: Publication) -> Iterator[str]:
    """Check that a publication has its features from the publication of its stream that its settings name, if any."""
    named = publication.configuration.get("features")
    source = next((each.name for each in of_stream if each.id == publication.features_from), None)
    if source != (named and named["from"]) or (source is None) != (publication.features_from is None):
        yield f"publication {publication.name}: its features are not of the publication that its settings name"


def _delay(publication: Publication) -> Decimal:
    """The publish_delay that was asked for, else the default, which is 0 for a publication without ticks."""
    if "publish_delay" in publication.configuration:
        return Decimal(str(publication.configuration["publish_delay"]))
    return Decimal(1) if publication.owes.ticks else Decimal(0)
