"""FLSW and FLMB: every slot is charged once, batches close by slots and coins alone, labels may come late or never."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from service.explorer.comparison import releases
from service.learning.records import Records
from service.mechanisms.active_learning import mechanism as active_learning
from service.mechanisms.active_learning.active_gradient import ActiveGradient
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.mechanism import Model, StateLost, StatePart
from service.mechanisms.registry import MECHANISMS
from service.privacy.accounting import events
from service.privacy.accounting.obligations import Labelling
from service.streams.schema import StreamSchema
from service.streams.slots import EvaluationSlots, TrainingSlots
from tests import chance
from tests.mechanisms.steps import FEATURES, GAUSSIAN, PURE, data, nothing, reader

PEOPLE = {"kind": "unlabelled"}
WINDOW = {"batching": "fixed_window", "size": 5}
BATCH = {"batching": "fixed_batch", "size": 5}
BOTH = pytest.mark.parametrize("batching", [WINDOW, BATCH], ids=["fixed_window", "fixed_batch"])


def publication(privacy=PURE, task=None, learner=None, **settings):
    return build(
        StreamSchema.model_validate(
            {"features": FEATURES, "task": task or {"kind": "classification", "classes": 2}, "norm_bound": 2.0}
        ),
        PublicationConfiguration.model_validate(
            {
                "mechanism": {"kind": "active_learning", **(settings or WINDOW)},
                "learner": {"kind": "noisy_gradient_descent", "intercept": False, **(learner or {})},
                "privacy": privacy,
            }
        ),
    )


def steps(mechanism, until, read, between=tuple, *, one_by_one=False):
    """Every step up to a time as a worker takes them, with all records there or as they come.

    between: what becomes of a chain from step to step.
    """
    position, chain, released, taken, awaits = 0, (), 0, [], False
    while awaits or mechanism.next_time(position) <= until:
        due = position if awaits else mechanism.next_time(position)
        there = due if one_by_one else until
        step = mechanism.step(mechanism.taken_at(due, there), between(chain), released + 1, read)
        position, chain, awaits = step.reached, step.chain, step.awaits
        released += len(step.releases)
        taken.append(step)
    return taken


def counts(monkeypatch):
    """How many slots each update counts, and how many records it has."""
    seen, true = [], ActiveGradient.update

    def update(self, records, count, *more):
        seen.append((count, len(records.y)))
        return true(self, records, count, *more)

    monkeypatch.setattr(ActiveGradient, "update", update)
    return seen


@BOTH
@pytest.mark.parametrize("privacy", [PURE, GAUSSIAN], ids=["pure", "gaussian"])
@pytest.mark.parametrize("selection", ["bernoulli", "exponential"])
@pytest.mark.parametrize("task", [None, PEOPLE], ids=["labelled", "people"])
def test_every_slot_is_charged_once_for_its_coin_and_its_update(batching, privacy, selection, task):
    """Selected or not, whatever is released (paper-audit.md 6).

    Each of 200 records is selected with probability 0.377 or more: fewer than 40 are with probability below 1e-6.
    """
    mechanism = publication(privacy, task, selection=selection, **batching)
    paid, made = 0, 0
    for step in steps(mechanism, 200, reader(classes=2)):
        for charge in step.charges:
            assert charge.start == paid < charge.stop
            assert charge.amount <= mechanism.capacity
            paid = charge.stop
        assert paid == step.reached
        for release in step.releases:
            made += 1
            assert (release.version, release.parent) == (made, made - 1 or None)
            assert release.at_arrival
            assert release.time == release.fit[1] == paid
            assert release.window == (0, release.time)
            event = events.from_json(release.perturbation.to_json())
            cost = event.cost(mechanism.currency, records=release.fit[1] - release.fit[0])
            assert 0.999 * release.charge < cost <= release.charge == mechanism.plan()["arrival"]["charge"]
    assert paid == 200
    assert made >= 8


def test_a_window_is_updated_at_its_end_from_what_was_selected_in_it(monkeypatch):
    seen = counts(monkeypatch)
    taken = steps(publication(**WINDOW), 400, reader(classes=2))
    releases = [release for step in taken for release in step.releases]
    assert all(release.fit == (release.time - 5, release.time) for release in releases)
    assert len(taken) == 80
    assert len(seen) == len(releases)
    assert {count for count, _ in seen} <= set(range(1, 6))


def test_a_window_in_which_nothing_is_selected_releases_nothing():
    """And is charged all the same: that nothing came of it says something."""
    far = {"loss": "huber_hinge", "origin": [[1.0, 0, 0, 0, 0]]}
    mechanism = publication({"epsilon": 60}, learner=far, threshold=1e-6, epsilon_selection=50, **WINDOW)
    x = np.zeros((100, FEATURES), dtype=np.float32)
    x[:, 0] = 2.0
    taken = steps(mechanism, 100, lambda start, end: Records(x=x[start:end], y=np.ones(end - start)))
    assert len(taken) == 20
    assert not any(step.releases for step in taken)
    assert [step.charges[0].stop for step in taken] == list(range(5, 101, 5))


def test_a_batch_is_updated_when_it_is_full(monkeypatch):
    seen = counts(monkeypatch)
    releases = [each for step in steps(publication(**BATCH), 400, reader(classes=2)) for each in step.releases]
    assert {count for count, _ in seen} == {5}
    assert [each.fit[0] for each in releases] == [0, *(each.fit[1] for each in releases[:-1])]
    assert min(each.fit[1] - each.fit[0] for each in releases) >= 5


def test_a_batch_that_never_fills_is_closed_at_a_public_slot(monkeypatch):
    """The slot tells how long a batch needs its records. It never changes, since publications rely on it."""
    far = {"loss": "huber_hinge", "origin": [[1.0, 0, 0, 0, 0]], "regularization": 0.0}
    settings = {"threshold": 1e-6, "epsilon_selection": 3, "learning_rate": 1e-6, **BATCH}
    assert publication({"epsilon": 60}, learner=far, **settings).schedule.next_time(0) == 6748  # 64·5·(1 + e³)
    monkeypatch.setattr(active_learning, "PATIENCE", 0.25)
    mechanism = publication({"epsilon": 60}, learner=far, **settings)
    longest = mechanism.schedule.next_time(0)
    assert longest == pytest.approx(0.25 * 5 * (1 + np.exp(3)), abs=1)
    x = np.zeros((400, FEATURES), dtype=np.float32)
    x[:, 0] = 2.0
    seen = counts(monkeypatch)
    taken = steps(mechanism, 400, lambda start, end: Records(x=x[start:end], y=np.ones(end - start)))
    spans = [release.fit[1] - release.fit[0] for step in taken for release in step.releases]
    assert max(spans) == longest
    assert {count for count, _ in seen} & {1, 2, 3}
    assert all(mechanism.needs(after) == max(0, after - longest) for after in (0, 5, 1000))


def test_what_is_still_needed_reaches_back_to_where_a_batch_can_have_begun():
    mechanism = publication(**BATCH)
    starts = [0]
    for step in steps(mechanism, 300, reader(classes=2)):
        position = step.reached
        assert mechanism.needs(position) <= starts[-1]
        starts += [release.time for release in step.releases]


@BOTH
def test_an_erased_slot_is_selected_as_a_record_on_the_hyperplane_and_adds_nothing(batching, monkeypatch):
    """Or R⊥ would not hold: an absent record would never be selected (paper-audit.md 5.1)."""
    seen = counts(monkeypatch)
    mechanism = publication({"epsilon": 60}, epsilon_selection=1, threshold=1e-6, **batching)

    def empty(start, end):
        return Records(x=np.empty((0, FEATURES)), y=np.empty(0), slots=np.empty(0, dtype=np.int64))

    all_steps = steps(mechanism, 1000, empty)
    selected, taken = sum(count for count, _ in seen), max(each.reached for each in all_steps)
    probability = np.e / (1 + np.e)
    assert {records for _, records in seen} == {0}
    chance.assert_count(selected, taken, probability)
    with chance.is_noticed():
        chance.assert_count(int(selected * 0.8), taken, probability)


@BOTH
def test_the_selected_slots_that_are_empty_are_named_with_what_is_asked_for(batching, monkeypatch):
    """A step asks for erased slots and rows that are not finite, and counts them, but has nothing to show people."""
    monkeypatch.setattr(active_learning, "AT_ONCE", 3)
    mechanism = publication(task=PEOPLE, **batching)
    x, _ = data(classes=2)
    x[1::4, 2] = np.inf
    x[2::4, 0] = np.nan
    erased = np.arange(400) % 4 == 3

    def read(start, end):
        slots = np.arange(start, end)[~erased[start:end]]
        return Records(x=x[slots], y=np.full(len(slots), np.nan), slots=slots)

    taken = steps(mechanism, 300, read)
    asks = [slot for step in taken for slot in step.asks]
    empty = [slot for step in taken for slot in step.empty]
    assert empty == [slot for slot in asks if slot % 4]
    assert {slot % 4 for slot in asks} == {0, 1, 2, 3}
    assert not any(step.empty for step in steps(publication(**batching), 300, read))


@BOTH
def test_labels_of_people_are_asked_for_once_and_waited_for(batching):
    mechanism = publication(task=PEOPLE, **batching)
    requests = []
    for step in steps(mechanism, 300, reader(classes=2)):
        requests += step.asks
        if step.releases:
            assert not step.charges
            assert not step.asks
            assert set(range(*step.releases[0].fit)) & set(requests)
        assert step.awaits <= (not step.releases)
    assert max(Counter(requests).values()) == 1
    assert requests == sorted(requests)


@BOTH
def test_a_label_that_never_came_adds_nothing_and_shifts_nothing(batching, monkeypatch):
    seen = counts(monkeypatch)
    x, _ = data(classes=2)
    mechanism = publication(task=PEOPLE, **batching)
    taken = steps(mechanism, 300, lambda start, end: Records(x=x[start:end], y=np.full(end - start, np.nan)))
    releases = [release for step in taken for release in step.releases]
    assert len(releases) > 10
    assert len(seen) == len(releases)
    if batching is WINDOW:
        assert all(release.time % 5 == 0 for release in releases)
    else:
        assert {count for count, _ in seen} == {5}


@BOTH
@pytest.mark.parametrize("task", [None, PEOPLE], ids=["labelled", "people"])
def test_what_was_selected_survives_a_restart(batching, task, monkeypatch):
    """A step goes on from what the database gives back: the coins that were tossed are not tossed again."""
    tossed, true = [], ActiveGradient.select

    def select(self, records, start, end, *more):
        selected = true(self, records, start, end, *more)
        tossed.extend(range(start, selected[1]))
        return selected

    monkeypatch.setattr(ActiveGradient, "select", select)

    def stored(chain):
        return [
            StatePart(number=each.number, values=np.frombuffer(each.values.tobytes()))
            if isinstance(each, StatePart)
            else Model(version=each.version, parameters=each.parameters.copy())
            for each in chain
        ]

    steps(publication(task=task, **batching), 100, reader(classes=2), stored, one_by_one=True)
    assert tossed == list(range(100))


def test_what_was_selected_cannot_be_made_again():
    mechanism = publication(**BATCH)
    model = Model(version=1, parameters=np.zeros((1, FEATURES)))
    for chain in ((model,), (model, StatePart(number=1, values=np.zeros(1)))):
        with pytest.raises(StateLost):
            mechanism.step(30, chain, 2, reader(classes=2))


def test_the_papers_own_setting_is_refused_with_what_it_costs_and_what_would_do():
    """b = 0.2, M = 1, ε = 1 (section 4.5); here M = 2."""
    settings = {"selection": "exponential", "epsilon_selection": 1, "epsilon_update": 1, **WINDOW}
    with pytest.raises(Refused, match=r"1\.171.*least threshold that works is 0\.477") as refused:
        publication({"epsilon": 2}, threshold=0.4, **settings)
    assert refused.value.path == "mechanism.threshold"
    assert publication({"epsilon": 2}, threshold=0.4771, **settings)
    assert publication({"epsilon": 2}, **settings).learner.threshold.at(1) == pytest.approx(0.477, abs=2e-3)
    falling = publication({"epsilon": 2}, threshold={"initial": 1.9}, **settings).learner.threshold
    assert falling.at(2**62) == pytest.approx(0.477, abs=2e-3)


@pytest.mark.parametrize(
    ("given", "selection", "capacity"),
    [
        ({}, 1.0, 2.0),
        ({"epsilon_selection": 0.5}, 0.5, 2.0),
        ({"epsilon_update": 0.5}, 1.5, 2.0),
        ({"epsilon_selection": 0.5, "epsilon_update": 1.25}, 0.5, 1.75),
        ({"epsilon_selection": 0.5, "epsilon_update": 1.5}, 0.5, 2.0),
    ],
)
def test_selection_and_updates_share_the_budget(given, selection, capacity):
    mechanism = publication({"epsilon": 2}, **given, **WINDOW)
    assert mechanism.learner.epsilon_selection == selection
    assert mechanism.capacity == capacity


def test_with_a_delta_selection_has_half_of_rho():
    mechanism = publication(GAUSSIAN, **WINDOW)
    assert mechanism.learner.epsilon_selection**2 / 2 == pytest.approx(float(mechanism.capacity) / 2)


@pytest.mark.parametrize(
    ("path", "settings", "more"),
    [
        ("mechanism.epsilon_selection", {"epsilon_selection": 2}, {}),
        ("mechanism.epsilon_update", {"epsilon_update": 3}, {}),
        ("mechanism.epsilon_selection", {"epsilon_selection": 1.5, "epsilon_update": 1}, {}),
        ("mechanism.epsilon_selection", {"epsilon_selection": 1}, {"privacy": GAUSSIAN}),
        ("mechanism.epsilon_update", {"epsilon_update": 0.1}, {"privacy": GAUSSIAN}),
        ("mechanism.threshold", {"selection": "exponential", "threshold": 2.5}, {}),
        ("mechanism.threshold", {"selection": "exponential", "threshold": {"initial": 1.9, "least": 0.1}}, {}),
        ("mechanism.selection", {"selection": "exponential"}, {"privacy": {"epsilon": 1e-4}}),
        ("mechanism.label_seconds", {"label_seconds": 5}, {}),
        ("mechanism.label_seconds", {"lease_seconds": 5}, {}),
        ("mechanism.size", {"size": 2**25, "radius": 1e6}, {"learner": {"loss": "huber_hinge", "huber_width": 1e-6}}),
        ("learner.kind", {}, {"learner": {"kind": "output_perturbation"}}),
        ("learner.momentum", {}, {"learner": {"momentum": 0.5}}),
        ("learner.clip", {}, {"learner": {"clip": 0.5}}),
        ("learner.loss", {}, {"learner": {"loss": "softmax"}}),
        ("learner.loss", {}, {"task": {"kind": "classification", "classes": 3}}),
        ("learner.loss", {}, {"task": {"kind": "classification", "classes": 3}, "learner": {"loss": "huber_hinge"}}),
        ("learner.loss", {}, {"task": {"kind": "regression", "bound": 1.0}}),
        ("learner.loss", {}, {"task": {"kind": "unlabelled"}, "learner": {"loss": "squared"}}),
        ("privacy.epsilon", {"epsilon_selection": 1.99999999999999}, {}),
        ("mechanism.threshold", {"selection": "exponential", "threshold": 2.0}, {}),
        ("mechanism.threshold", {"selection": "exponential", "threshold": {"initial": 2.5, "least": 0.5}}, {}),
    ],
)
def test_what_does_not_fit_is_refused(path, settings, more):
    with pytest.raises(Refused) as refused:
        publication(**{"privacy": {"epsilon": 2}} | more, **WINDOW | settings)
    assert refused.value.path == path


def test_nothing_is_needed_of_records_that_are_all_erased():
    """A reader that tells of no slots has nothing to tell only of ranges that are whole."""

    def untold(start, end):
        return replace(nothing(start, end), slots=None)

    with pytest.raises(ValueError, match="missing"):
        publication(learner={"origin": [[1.0] * FEATURES]}, **WINDOW).step(5, (), 1, untold)


@BOTH
def test_replayed_each_model_is_the_newest_until_the_next_comes(batching):
    """Nobody knows beforehand when that is."""
    models = list(releases(publication(**batching), reader(classes=2), 300))
    assert len(models) > 10
    assert [following for _, following in models[:-1]] == [release.time for release, _ in models[1:]]
    assert models[-1][1] > 300


def test_a_release_states_the_coin_and_the_noise_of_its_own_batch():
    """A threshold falls from one to the next."""
    settings = {"selection": "exponential", "epsilon_selection": 1, "threshold": {"initial": 0.6}}
    mechanism = publication({"epsilon": 2}, **settings, **WINDOW)
    made = [release for release, _ in releases(mechanism, reader(classes=2), 60)]
    assert len({release.perturbation.selection.threshold for release in made}) > 1
    for release in made:
        charged = mechanism.currency, release.charge, mechanism.learner.batch, mechanism.origin
        assert release.perturbation == mechanism.learner.perturbation(*charged, release.version)


def test_coins_are_tossed_to_the_end_of_a_window_and_no_farther():
    mechanism = publication(**WINDOW)
    assert [mechanism.taken_at(due, 100) for due in (5, 6, 10)] == [5, 10, 10]
    assert mechanism.taken_at(6, 8) == 8


def test_it_is_the_one_that_asks_people():
    assert [family.settings.__name__ for family in MECHANISMS if family.asks_people] == ["ActiveLearningMechanism"]


def test_a_label_is_asked_for_as_long_as_is_said_and_of_the_next_person_sooner():
    mechanism = publication(task=PEOPLE, **WINDOW, label_seconds=100, lease_seconds=7)
    assert mechanism.obligations().labelling == Labelling(seconds=100, lease_seconds=7)
    assert mechanism.plan()["labels"] == {"from": "people", "seconds": 100, "lease_seconds": 7}


@BOTH
def test_nobody_is_asked_about_a_slot_that_is_set_aside(batching):
    """Every second one is: of the other 100, fewer than 10 are selected with probability far below 1e-6."""
    aside = TrainingSlots(evaluation=EvaluationSlots(period=2))
    mechanism, read = replace(publication(task=PEOPLE, **batching), training=aside), reader(classes=2)

    def others(start, end):
        records = read(start, end)
        return records[records.slots % 2 == 0]

    asked_about = [slot for step in steps(mechanism, 200, others) for slot in step.asks]
    assert len(asked_about) >= 10
    assert all(slot % 2 == 0 for slot in asked_about)


def test_a_batch_may_run_over_as_many_slots_as_its_widest_slab_asks_for():
    falling = {"selection": "exponential", "threshold": {"initial": 1.8, "decay": 0.5}}
    learner = publication(**BATCH, **falling).learner
    assert learner.least_probability() == learner.selection(1).least() < learner.selection(2**62).least()
