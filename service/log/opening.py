"""Open the log that the setting `redis_url` names: one primary, a list of them, or a cluster."""

from collections.abc import Sequence

from service.addresses import primaries_of
from service.log.cluster import SCHEMES, ClusterPrimaries, ClusterReader
from service.log.primaries import ListedPrimaries, Primaries
from service.log.reader import Reader


def read_primaries(url: str) -> Primaries:
    """Return the primaries that the setting `redis_url` names."""
    if url.startswith(SCHEMES):
        return ClusterPrimaries(url)
    return ListedPrimaries(primaries_of(url))


def open_readers(primaries: Primaries) -> Sequence[Reader]:
    """Return a reader for each primary. LogUnavailable: nobody says which there are."""
    if isinstance(primaries, ClusterPrimaries):
        return [ClusterReader(primaries, primary.number) for primary in primaries.every()]
    return [Reader(primary) for primary in primaries.every()]
