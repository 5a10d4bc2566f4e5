"""The publications that an evaluation counts: which of them it may, how far they have come, and what they predict.

These answers depend on confirmed, visible releases alone. So every worker that evaluates a block, now or after a crash,
waits for the same releases and uses the same versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select

from service.inputs.refused import Refused
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.mechanism import StateLost
from service.mechanisms.predicting import predictions
from service.mechanisms.registry import MECHANISMS
from service.mechanisms.released_models import Made, Progress
from service.store import publications, releases
from service.store.tables import releases as released

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from sqlalchemy import Connection

    from service.inputs.registry import FamilySettings
    from service.mechanisms.mechanism import Mechanism
    from service.mechanisms.released_models import Predictions
    from service.store.database import Database
    from service.store.publications import Publication
    from service.store.streams import Stream


def check(connection: Connection, stream: Stream, mechanism: FamilySettings) -> None:
    """Check that what a mechanism evaluates, if it does, are publications of the stream that may be.

    Raises:
        Refused: one is none.
    """
    if MECHANISMS.of(mechanism).evaluates:
        names: Sequence[str] = getattr(mechanism, "of")  # noqa: B009 - the family says that it has them
        _check(connection, stream, names)


def _check(connection: Connection, stream: Stream, names: Sequence[str]) -> None:
    known = {each.name: each for each in publications.of_stream(connection, stream.id)}
    for name in names:
        if name not in known:
            raise Refused("mechanism.of", f"the stream has no publication {name}: name publications of the same stream")
        mechanism = PublicationConfiguration.model_validate(known[name].configuration).mechanism
        if (why := MECHANISMS.of(mechanism).not_evaluated(mechanism)) is not None:
            raise Refused("mechanism.of", f"{name} can't be evaluated: {why}")


def with_models(mechanism: Mechanism, database: Database, stream: Stream) -> Mechanism:
    """Return the mechanism with a reader of the models that it counts, if it counts any."""
    return mechanism.with_models(ReleasedModels(database=database, stream=stream))


@dataclass(frozen=True, kw_only=True)
class ReleasedModels:
    """The visible releases of a stream's publications."""

    database: Database
    stream: Stream

    def progress(self, name: str, first_slot: int) -> Progress:
        """Return how far a publication has come.

        All its releases up to a slot are made once its next step is due after it. One that has ended makes no more;
        while some of it is committed and not visible yet, nobody knows which is its newest.
        """
        with self.database.transaction() as connection:
            publication = _named(connection, self.stream, name)
            return Progress(
                releases=_newest(connection, publication, first_slot),
                passed=publication.visible_due - 1,
                ended=publication.state != "running" and (publication.visible_version or 0) == publication.version,
            )

    def predict(self, name: str, version: int, x: NDArray[np.floating]) -> Predictions:
        """Return what a release predicts for x, shape (n, mapped features of the stream)."""
        with self.database.transaction() as connection:
            release = releases.find(connection, _named(connection, self.stream, name).id, version)
        if release is None:
            raise StateLost(f"version {version} of {name}, which this block was to count, is not there any more")
        return predictions(release.model, release.parameters, self.stream.parsed_schema.mapping(), x)


def _named(connection: Connection, stream: Stream, name: str) -> Publication:
    publication = publications.find(connection, name, visible=frozenset({stream.name}))
    if publication is None:
        raise StateLost(f"the publication {name}, which this one counts, is not there any more")
    return publication


def _newest(connection: Connection, publication: Publication, first_slot: int) -> tuple[Made, ...]:
    """Return the newest visible release that predicts, of those made from slots below that one."""
    query = (
        select(released.c.version, released.c.time)
        .where(
            released.c.publication_id == publication.id,
            released.c.time <= first_slot,
            released.c.role == "model",
            released.c.model["kind"].as_string() == "linear",
            releases.is_visible(),
        )
        .order_by(released.c.time.desc(), released.c.version.desc())
        .limit(1)
    )
    return tuple(Made(version=row.version, time=row.time) for row in connection.execute(query))
