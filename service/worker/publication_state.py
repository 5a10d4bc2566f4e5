"""One publication as a publisher works on it: its state after all steps that are committed or parked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.features import ReleasedMap
from service.mechanisms.mechanism import CarriedState, Mechanism, Model, StatePart
from service.publishing.prepared import PendingStep, remembered_after, unpacked
from service.store import features, lineage, parked, parts, publications, releases, streams
from service.store.database import read_together

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from service.learning.optimization.losses import Floats
    from service.learning.records import Records
    from service.store.features import Source
    from service.store.publications import Publication
    from service.store.step_records import SavedState
    from service.store.streams import Stream


@dataclass
class PublicationState:
    """What the next step of a publication starts from: `publication`, `memory` (its saved state) and `models`."""

    publication: Publication
    stream: Stream
    mechanism: Mechanism
    memory: SavedState
    models: dict[int, Floats]
    source: Source | None = None
    """Where the publication has its features from; None: it needs none."""
    hashes: dict[int, str] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    """The steps that wait for their tick."""

    @classmethod
    def begin(cls, connection: Connection, identity: int) -> PublicationState:
        """Read it, in one view of the database."""
        mine = {"publication": identity}
        read = [(each, mine) for each in (publications.one(), streams.OF_PUBLICATION, parked.CHAIN)]
        (its_row,), (stream_row,), chain, *remembered = read_together(connection, *read, *parts.needed(identity))
        publication, stream = publications.of_row(its_row), streams.of_row(stream_row)
        configuration = PublicationConfiguration.model_validate(publication.configuration)
        source = features.source(connection, publication)
        mechanism = build(stream.parsed_schema, configuration, _map_of(source), publication.start)
        models = {version: releases.parameters(connection, identity, version) for version in publication.chain}
        state = cls(publication, stream, mechanism, parts.of_rows(*remembered), models, source)
        for waiting in chain:
            step = unpacked(waiting.content)
            state.go_on(step.following(state.publication), step)
        return state

    @property
    def chain(self) -> list[CarriedState]:
        """Return what earlier steps left, as a mechanism takes it."""
        return [
            *(Model(version=version, parameters=self.models[version]) for version in self.publication.chain),
            *(StatePart(number=number, values=values) for number, values in self.memory.parts.items()),
        ]

    @property
    def lineage(self) -> str:
        """The digest of what the next step starts from."""
        for version in self.publication.chain:
            if version not in self.hashes:
                content = self.models[version].astype("<f8").tobytes()
                self.hashes[version] = hashlib.sha256(content).hexdigest()
        return lineage.of(self.publication, self.memory.digest, self.hashes)

    def after(self, step: PendingStep) -> PublicationState:
        """Return the state once a step is parked or committed; its publication's seal is not of that state."""
        following = replace(self, models=dict(self.models), hashes=dict(self.hashes), sizes=list(self.sizes))
        following.go_on(step.following(self.publication), step)
        return following

    def is_due(self) -> bool:
        """Return whether the next step has all its records, and may be taken."""
        return (
            self.publication.state == "running"
            and (self.source is None or self.source.model is not None)
            and len(self.sizes) < parked.MAX_WAITING
            and sum(self.sizes) < parked.MAX_BYTES
            and self.publication.due <= self.stream.records
            and self.stream.distrusted is None
            and self.mechanism.is_ready(self.time_due())
        )

    def waits(self) -> bool:
        """Return whether all records of the next step are there, and others' releases that it needs are not."""
        return self.publication.due <= self.stream.records and not self.mechanism.is_ready(self.time_due())

    @property
    def released(self) -> ReleasedMap | None:
        """The map that makes the publication's features; None: it needs none, or waits for it."""
        return _map_of(self.source)

    def reading(self, read: Callable[[int, int], Records]) -> Callable[[int, int], Records]:
        """Return what reads records as the mechanism takes them; `read` reads them as segments hold them."""
        return read if self.released is None else self.released.reading(self.stream.parsed_schema, read)

    def has_promised_features(self) -> bool:
        """Return whether its features are of the publication that its configuration names."""
        named = self.publication.configuration.get("features")
        source = None if self.source is None else self.source.publication
        if named is None or source is None:
            return named is None and source is None
        return (named["from"], self.publication.stream_id) == (source.name, source.stream_id)

    def time_due(self) -> int:
        """Return the time of the next step, counted from the publication's start."""
        start = self.publication.start
        return self.mechanism.taken_at(self.publication.due - start, self.stream.records - start)

    def go_on(self, publication: Publication, step: PendingStep) -> None:
        """Go on to the state that a step leaves."""
        known = self.models | {each.version: each.parameters for each in step.releases}
        self.publication = publication
        if publication.publish_delay:
            self.sizes.append(step.size)
        self.hashes = {version: known for version, known in self.hashes.items() if version in publication.chain}
        self.models = {version: known[version] for version in publication.chain}
        self.memory = remembered_after(self.memory, [step])


def _map_of(source: Source | None) -> ReleasedMap | None:
    return None if source is None or source.model is None else ReleasedMap.of(source.model)
