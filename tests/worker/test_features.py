"""A publication with another one's features uses its confirmed release alone, and waits for it without spinning."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, update

from service.ledger import open_entry
from service.ledger.verify import verify
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.publishing import confirmation
from service.store import parked, publications, releases, tables
from service.store.due_fits import due_fits
from service.store.due_steps import due_steps
from service.store.publications import NewPublication
from service.streams.schema import StreamSchema
from service.worker import fits
from service.worker.publication_state import PublicationState
from tests.conftest import World
from tests.worker.published import Bench, number, published

SCHEMA = {"features": 2, "task": {"kind": "classification", "classes": 2}}
PRIVACY = {"epsilon": 1, "delta": 1e-6}
SCALE = {"mechanism": {"kind": "preparation", "records": 20}, "privacy": PRIVACY}
MODELS = {
    "mechanism": {"kind": "independent_batches", "batch": 4},
    "learner": {"kind": "output_perturbation"},
    "privacy": {"epsilon": 1, "delta": 0},
    "features": {"from": "p", "version": 1},
}


def columns(count: int) -> dict[str, Any]:
    drawn = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    return {"x": drawn * np.float32(1000), "y": np.arange(count, dtype=np.int32) % 2}


@pytest.fixture
def bench(world: World) -> Iterator[Bench]:
    """A preparation that is not due yet."""
    with published(world, SCHEMA, SCALE, columns(8), epsilon=3) as bench:
        yield bench


def add_models(bench: Bench, delay: Decimal = Decimal(0), batch: int = 4) -> int:
    """Start a publication that has its features from `bench`'s, and return its id."""
    mechanism = MODELS["mechanism"] | {"batch": batch}
    configuration = MODELS | {"mechanism": mechanism, "publish_delay": float(delay)}
    built = build(StreamSchema.model_validate(SCHEMA), PublicationConfiguration.model_validate(configuration))
    with bench.database.transaction() as connection:
        new = NewPublication(
            name="q",
            start=0,
            configuration=configuration,
            plan=built.plan(),
            obligations=built.obligations(),
            kind=built.currency,
            epsilon=Decimal(1),
            delta=Decimal(0),
            due=built.next_time(0),
            publish_delay=delay,
            features_from=bench.identity,
        )
        return publications.create(connection, 1, new).id


def of(bench: Bench, identity: int) -> publications.Publication:
    with bench.database.transaction() as connection:
        return publications.get(connection, identity)


def due(bench: Bench) -> set[str]:
    with bench.database.transaction() as connection:
        return {each.name for each in due_steps(connection)}


def shown_as_due(bench: Bench, *identities: int) -> set[int]:
    with bench.database.transaction() as connection:
        return set(due_fits(connection, identities))


def turn(bench: Bench, identity: int) -> PublicationState:
    with bench.database.transaction() as connection:
        return PublicationState.begin(connection, identity)


def complete(bench: Bench) -> None:
    """The records that the preparation waits for."""
    number(bench.database, bench.files, 1, columns(12))


def test_what_waits_for_features_is_not_due_until_their_release_is_confirmed(bench: Bench, monkeypatch):
    models = add_models(bench)
    assert due(bench) == set()
    assert not bench.publisher().step(threading.Event())
    complete(bench)
    assert due(bench) == {"p"}
    with monkeypatch.context() as patched:
        patched.setattr(confirmation.Confirmer, "confirm", lambda *_: None)
        bench.publish_all()
        assert bench.now().version == 1
        assert due(bench) == set()
        assert turn(bench, models).released is None
        assert not turn(bench, models).is_due()
        assert shown_as_due(bench, models) == set()
    bench.context().audit.confirm()
    assert due(bench) == {"q"}
    assert shown_as_due(bench, models) == {models}
    bench.publish_all()
    assert of(bench, models).version == 5
    assert bench.now().state == "stopped"
    with bench.database.transaction() as connection:
        assert verify(connection, isolated=False).findings == []


def test_a_step_in_a_process_of_its_own_reads_the_same_features(bench: Bench, monkeypatch):
    models = add_models(bench, batch=20)
    complete(bench)
    monkeypatch.setattr(fits, "SMALL_BYTES", -1)
    bench.publish_all()
    publication = of(bench, models)
    assert (publication.version, publication.state) == (1, "running")
    begun = turn(bench, models)
    read = begun.reading(partial(fits.read_records, bench.database, bench.files, begun.stream, 0))
    assert np.abs(read(0, 20).x).max() <= 3.0


def test_whoever_waits_halts_once_when_the_features_will_never_come(bench: Bench):
    models = add_models(bench)
    with bench.database.transaction() as connection:
        open_entry(connection, publications.get(connection, bench.identity)).end("halted", "for a test")
    assert due(bench) == {"q"}
    bench.publish_all()
    publication = of(bench, models)
    assert (publication.state, publication.version) == ("halted", 0)
    assert "its features come from p" in publication.reason


def test_the_tick_of_a_fit_that_waited_counts_from_the_release_of_its_features(bench: Bench):
    delay = Decimal(3600)
    models = add_models(bench, delay)
    complete(bench)
    bench.publish_all()
    with bench.database.transaction() as connection:
        made = releases.find(connection, bench.identity, 1)
        waiting = parked.of_publication(connection, models)
    assert len(waiting) == 5
    assert {each.tick.timestamp() % 3600 for each in waiting} == {0}
    assert all(3600 <= (each.tick - made.published_at).total_seconds() < 7200 for each in waiting)
    with bench.database.transaction() as connection:  # as if all but the features had been there for long
        connection.execute(update(tables.entries).values(numbered_at=func.to_timestamp(0)))
        old = replace(of(bench, models), created_at=made.published_at - timedelta(days=1))
        tick, _ = parked.tick_of(connection, old, 20)
    assert tick == waiting[-1].tick


def test_features_of_another_publication_than_was_promised_are_refused(bench: Bench):
    models = add_models(bench)
    complete(bench)
    bench.publish_all()
    begun = turn(bench, models)
    assert begun.has_promised_features()
    maps = begun.source
    assert maps is not None
    for changed in ({"name": "another"}, {"stream_id": begun.publication.stream_id + 1}):
        begun.source = replace(maps, publication=replace(maps.publication, **changed))
        assert not begun.has_promised_features(), changed
    begun.source = None
    assert not begun.has_promised_features()
