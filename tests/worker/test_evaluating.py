"""An evaluation beside the publications that it counts: what it waits for, which versions it uses, what it costs."""

import threading
import time
from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pytest
from sqlalchemy import select

from service.ledger import open_entry, open_ledger, reservations, spending
from service.ledger.verify import verify
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.privacy.accounting.composition import PrivacyLoss, Slots
from service.publishing.confirmation import Confirmer
from service.publishing.evaluated import ReleasedModels, with_models
from service.store import erasing, publications, releases, tables
from service.store.publications import NewPublication
from service.worker.publication_state import PublicationState
from tests.conftest import World, wait_until
from tests.worker.published import Bench, number, published

EVERY, BATCH, BLOCK = 4, 20, 5
SCHEMA = {"features": 1, "task": {"kind": "classification", "classes": 2}, "evaluation": {"every": EVERY}}
CONFIGURATION = {
    "mechanism": {"kind": "independent_batches", "batch": BATCH},
    "learner": {"kind": "output_perturbation"},
    "privacy": {"epsilon": 50, "delta": 0},
}
LARGE = {"epsilon": 500, "delta": 0}
"""Noise of this ε is 0, but for a probability far below any that a test may fail with."""


def columns(start: int, stop: int) -> dict[str, np.ndarray]:
    """The label is whether the slot number is odd, and x says so."""
    slots = np.arange(start, stop)
    return {"x": (2.0 * (slots % 2) - 1.0).astype(np.float32)[:, None], "y": (slots % 2).astype(np.int32)}


@pytest.fixture
def bench(world: World) -> Iterator[Bench]:
    """Forty records, and a publication that releases after every twenty."""
    with published(world, SCHEMA, CONFIGURATION, columns(0, 40), epsilon=1000) as bench:
        yield bench


def make(bench: Bench, name: str, configuration: dict, start: int = 0) -> publications.Publication:
    with bench.database.transaction() as connection:
        ledger = open_ledger(connection, bench.stream().id)
        checked = PublicationConfiguration.model_validate({"publish_delay": 0} | configuration)
        mechanism = build(ledger.stream.parsed_schema, checked, start=start)
        new = NewPublication(
            name=name,
            start=start,
            configuration=checked.stored(),
            plan=mechanism.plan(),
            obligations=mechanism.obligations(),
            kind=mechanism.currency,
            epsilon=checked.privacy.epsilon,
            delta=checked.privacy.delta,
            due=start + mechanism.next_time(0),
            publish_delay=Decimal(0),
        )
        return ledger.admit(new)


def evaluate(bench: Bench, of=("p",), privacy=LARGE, start: int = 0, block: int = BLOCK) -> publications.Publication:
    mechanism = {"kind": "evaluation", "of": list(of), "block": block}
    return make(bench, "e", {"mechanism": mechanism, "privacy": privacy}, start)


def released(bench: Bench, publication: publications.Publication) -> list[releases.ReleaseInfo]:
    with bench.database.transaction() as connection:
        return releases.page(connection, publication.id, limit=100, before=None)[::-1]


def versions(bench: Bench, publication: publications.Publication) -> list[list[int | None]]:
    return [each.model["versions"] for each in released(bench, publication)]


def verified(bench: Bench) -> None:
    with bench.database.transaction() as connection:
        assert verify(connection).findings == []


def test_the_version_is_the_newest_that_was_made_before_the_block(bench: Bench):
    """Blocks begin at slots 3, 23 and 43; models are made at 20, 40 and 60."""
    evaluation = evaluate(bench)
    number(bench.database, bench.files, bench.stream().id, columns(40, 60))
    bench.publish_all()
    assert versions(bench, evaluation) == [[None], [1], [2]]
    assert [each.fit for each in released(bench, evaluation)] == [(0, 20), (20, 40), (40, 60)]
    assert [each.model["slots"] for each in released(bench, evaluation)] == [5, 5, 5]
    verified(bench)


def test_a_block_of_one_slot_can_be_all_that_a_release_read(bench: Bench):
    """The evaluation begins at slot 3, which is set aside: its first block has no training slot."""
    evaluation = evaluate(bench, start=3, block=1)
    bench.publish_all()
    assert [each.fit for each in released(bench, evaluation)][:2] == [(3, 4), (4, 8)]
    verified(bench)


def test_counts_are_those_of_the_evaluation_slots_that_are_there(bench: Bench):
    """All evaluation slots have odd numbers, so label 1; the model with hardly any noise is right."""
    evaluation = evaluate(bench)
    with bench.database.transaction() as connection:
        erasing.erase(connection, bench.stream().id, 27, 28)
    bench.publish_all()
    first, second = released(bench, evaluation)
    assert first.counts is not None
    assert second.counts is not None
    assert not first.counts.any(), "before its first model a publication is counted as nothing"
    assert second.counts[0, :4].tolist() == [0, 0, 0, 4]
    assert second.model["slots"] == 4, "that a slot was erased is public"


def test_a_block_waits_until_every_publication_has_passed_its_first_slot(bench: Bench):
    evaluation = evaluate(bench)
    publisher, stop = bench.publisher(), threading.Event()
    with bench.database.transaction() as connection:
        turn = PublicationState.begin(connection, evaluation.id)
    turn.mechanism = with_models(turn.mechanism, bench.database, turn.stream)
    assert turn.mechanism.is_ready(20), "at slot 3 no model can have been made"
    assert not turn.mechanism.is_ready(40)
    publisher._dispatcher._in_progress.add(bench.identity)  # nobody publishes p meanwhile
    wait_until(lambda: (publisher.step(stop), versions(bench, evaluation) == [[None]])[1])
    began = time.monotonic()
    looks = 0
    while time.monotonic() < began + 3.0:
        looks += publisher.step(stop)
    assert looks <= 12, "it looks again after a second, not at once"
    assert versions(bench, evaluation) == [[None]]
    publisher._dispatcher._in_progress.discard(bench.identity)
    bench.publish_all()
    assert versions(bench, evaluation) == [[None], [1]]


@pytest.mark.parametrize("state", ["stopped", "halted"])
def test_of_a_publication_that_has_ended_the_newest_model_is_counted(bench: Bench, monkeypatch, state):
    with monkeypatch.context() as patched:
        patched.setattr(Confirmer, "confirm", lambda *_: None)
        bench.publish_all()
    with bench.database.transaction() as connection:
        open_entry(connection, bench.now()).end(state, "because" if state == "halted" else None)
    models = ReleasedModels(database=bench.database, stream=bench.stream())
    assert not models.progress("p", 40).ended, "until its releases are confirmed"
    bench.context().audit.confirm()
    assert models.progress("p", 40).ended
    evaluation = evaluate(bench)
    number(bench.database, bench.files, bench.stream().id, columns(40, 100))
    bench.publish_all()
    assert versions(bench, evaluation) == [[None], [1], [2], [2], [2]]
    verified(bench)


@pytest.mark.more
def test_one_that_starts_later_is_counted_as_nothing_until_its_first_model(bench: Bench):
    later = make(bench, "q", CONFIGURATION | {"privacy": {"epsilon": 5, "delta": 0}}, start=30)
    evaluation = evaluate(bench, of=("p", "q"))
    number(bench.database, bench.files, bench.stream().id, columns(40, 80))
    bench.publish_all()
    assert versions(bench, evaluation) == [[None, None], [1, None], [2, None], [3, 1]]
    assert later.start == 30
    verified(bench)


def test_a_record_pays_to_fits_or_to_evaluations(bench: Bench):
    evaluate(bench)
    bench.publish_all()
    with bench.database.transaction() as connection:
        stream = bench.stream().id
        training, evaluated, both = (
            spending.exact(connection, stream, 0, 40, slots) for slots in (Slots.TRAINING, Slots.EVALUATION, None)
        )
        of_stream = publications.of_stream(connection, stream)
        reserved = [reservations.reserved(connection, stream, of_stream, slots) for slots in Slots]
    assert all(0.99 * 50 < loss.epsilon <= 50 for _, _, loss in training)
    assert all(0.99 * 500 < loss.epsilon <= 500 for _, _, loss in evaluated)
    assert all(loss.epsilon <= 500 for _, _, loss in both)
    assert reserved == [PrivacyLoss.of(Decimal(each), Decimal(0)) for each in (50, 500)]
    shown = bench.stream()
    assert shown.visible_epsilon == shown.visible_evaluation_epsilon
    verified(bench)


def test_without_slots_of_its_own_an_evaluation_adds_up_like_any_publication(world: World):
    schema = {name: each for name, each in SCHEMA.items() if name != "evaluation"}
    with published(world, schema, CONFIGURATION, columns(0, 40), epsilon=1000) as bench:
        evaluation = evaluate(bench, block=20)
        bench.publish_all()
        assert versions(bench, evaluation) == [[None], [1]]
        assert [each.model["slots"] for each in released(bench, evaluation)] == [20, 20]
        with bench.database.transaction() as connection:
            exact = spending.exact(connection, bench.stream().id, 0, 40)
            assert all(0.99 * 550 < loss.epsilon <= 550 for _, _, loss in exact)
        verified(bench)


def test_verify_finds_noise_for_one_publication_of_several(bench: Bench):
    evaluation = evaluate(bench, of=("p",))
    bench.publish_all()
    table = tables.releases
    with bench.database.transaction() as connection:
        row = connection.execute(
            select(table.c.model).where(table.c.publication_id == evaluation.id).limit(1)
        ).scalar_one()
    pretended = row | {"of": ["p", "q"], "versions": [1, 1]}
    walk = releases.walk

    def changed(connection, identity):
        for each in walk(connection, identity):
            yield each | ({"model": pretended} if identity == evaluation.id else {})

    with pytest.MonkeyPatch.context() as patched, bench.database.transaction() as connection:
        patched.setattr(releases, "walk", changed)
        findings = verify(connection).findings
    assert any("its noise is for counts that one record changes otherwise" in each for each in findings)
