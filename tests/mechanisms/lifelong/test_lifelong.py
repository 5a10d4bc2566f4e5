"""Tasks one after another: each record counted once, remembered as private statistics, whatever is learnt from them."""

from dataclasses import replace

import numpy as np
import pytest

from service.learning.records import Records
from service.mechanisms.lifelong.task_statistics import DECAY, TaskStatistics, forgotten
from service.mechanisms.linear import predict
from service.mechanisms.mechanism import StatePart
from service.privacy.noise.additive import Gaussian, SphericalLaplace
from service.streams.schema import StreamSchema
from tests import chance
from tests.mechanisms.private_statistics import (
    IN_EITHER_CURRENCY,
    NOT_THE_LEARNERS,
    assert_spherical_laplace_each,
    assert_white_and_of_the_right_size,
    charged_everything_once,
    is_refused,
    never_made_up,
    publish,
    running_sums_column,
    sums_with_labels,
    tells_its_noise,
)
from tests.mechanisms.steps import (
    FEATURES,
    GAUSSIAN,
    PURE,
    Placed,
    goes_on_exactly,
    reader,
    run,
    without,
)

TASKS = [10, 16]
BATCH = 6
ENDS = [5, 10, 15, 20, 26, 31, 36, 42]
VARIANTS = {
    "joint": {},
    "joint, memory": {"memory": 2},
    "joint, few codes": {"hidden": 2},
    "agem": {"training": "agem", "epochs": [3, 5]},
    "agem, memory": {"training": "agem", "memory": 2, "hidden": 3},
    "heads": {"heads": "per_task", "memory": 2},
    "features": {"features": 7, "width": 2.0},
}


def publication(privacy=GAUSSIAN, classes=3, learner=None, columns=FEATURES, feature_map=None, **settings):
    mechanism = {"kind": "lifelong", "task_size": TASKS, "batch": BATCH, **settings}
    return publish(mechanism, privacy, classes, learner, columns, feature_map)


@pytest.fixture
def silent(monkeypatch):
    """No noise at all."""
    for law in (Gaussian, SphericalLaplace):
        monkeypatch.setattr(law, "sample", lambda self: np.zeros(self.dimension, dtype=np.int64))


@IN_EITHER_CURRENCY
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_record_is_read_with_its_batch_only_and_charged_everything_once(privacy, variant):
    mechanism = publication(privacy, **VARIANTS[variant])
    batches = list(zip([0, *ENDS], ENDS, strict=False))
    for number, release in enumerate(charged_everything_once(mechanism, batches, 6)):
        assert release.window == (0, ENDS[number])
        assert release.parent == (number or None if "agem" in variant else None)
    assert [mechanism.next_time(4), mechanism.next_time(5), mechanism.needs(29)] == [5, 10, 26]


def test_without_noise_all_tasks_are_in_the_model_and_of_a_memory_those_remembered(silent):
    read = reader()
    sizes = [10, *[16] * 5]
    starts = np.cumsum([0, *sizes])
    batches = 2 + 3 * 5

    def exact(learner, tasks):
        total = sum(learner.statistics(read(starts[t], starts[t + 1]), sizes[t]) for t in tasks)
        return learner.solve(total, sum(sizes[t] for t in tasks), 0.05, np.zeros(learner.shape))

    for memory in (None, 2):
        mechanism = publication(ridge=0.05, memory=memory)
        released, _ = run(mechanism, batches, read)
        remembered = []
        for task in range(5):
            if memory is not None and len(remembered) == memory:
                if (left := forgotten(task)) >= memory:
                    continue
                del remembered[left]
            remembered.append(task)
        tasks = [*remembered, 5]
        assert len(tasks) == (6 if memory is None else 3)
        np.testing.assert_allclose(released[-1].parameters, exact(mechanism.learner, tasks), rtol=0, atol=1e-9)


def two_tasks(rng, size=4000):
    """Classes 0 and 1 near one place, then 2 and 3 near another; what is learnt last must not be all that is known."""
    centers = np.array([[1, 0.4, 0], [1, -0.4, 0], [0, 0.4, 1], [0, -0.4, 1]])
    y = np.concatenate((rng.integers(0, 2, size), rng.integers(2, 4, size)))
    return (centers[y] + rng.normal(0, 0.15, (len(y), 3))).astype(np.float32), y


@pytest.mark.parametrize("training", ["joint", "agem"])
def test_it_learns_and_does_not_forget(training):
    """Real noise; and a model of the last task alone, which knows nothing of the first."""
    x, y = two_tasks(np.random.default_rng(1))
    normal = {"kind": "normalize"}
    settings = {"classes": 4, "columns": 3, "feature_map": normal, "task_size": 4000, "batch": None}
    mechanism = publication({"epsilon": 20, "delta": 1e-6}, training=training, **settings)
    mapped = x / np.linalg.norm(x, axis=1, keepdims=True)
    released, _ = run(mechanism, 2, lambda start, end: Records(x=mapped[start:end], y=y[start:end]))
    description = mechanism.model_description()
    first, last = (
        (predict(description, each.parameters, x[:4000])[0] == y[:4000]).mean() for each in (released[0], released[-1])
    )
    measured = {"spread": 0.001, "runs": 200}  # and no less than that
    second = (predict(description, released[-1].parameters, x[4000:])[0] == y[4000:]).mean()
    chance.assert_above(second, 0.8, mean=0.995, **measured)
    chance.assert_above(first, 0.9, mean=0.997, **measured)
    chance.assert_above(last - first, -0.1, mean=0.0, **measured)
    alone, _ = run(mechanism, 1, lambda start, end: Records(x=mapped[start + 4000 : end + 4000], y=y[4000:]))
    unknown = (predict(description, alone[0].parameters, x[:4000])[0] == y[:4000]).mean()
    chance.assert_below(unknown, 0.1, mean=0.0, **measured)


@IN_EITHER_CURRENCY
@pytest.mark.parametrize("near", ["shared", "origin"])
def test_heads_of_their_own_learn_what_contradicts_and_tell_the_tasks(privacy, near):
    """The same question with opposite answers, told apart by where it is asked; one linear model cannot have both."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(6000, 3)).astype(np.float32) * 0.3
    x[:, 1] = np.where(np.arange(6000) < 3000, 0.8, -0.8)
    y = (x[:, 0] > 0).astype(int) ^ (np.arange(6000) >= 3000)
    common = {"classes": 2, "columns": 3, "task_size": 3000, "batch": None}
    accuracies = {}
    for heads in ("shared", "per_task"):
        of_tasks = {} if heads == "shared" else {"near": near}
        mechanism = publication(privacy | {"epsilon": 20}, heads=heads, memory=3, **common, **of_tasks)
        released, _ = run(mechanism, 2, lambda start, end: Records(x=x[start:end], y=y[start:end]))
        labels, scores = predict(mechanism.model_description(), released[-1].parameters, x)
        accuracies[heads] = (labels == y).mean()
        assert scores.shape == (6000, 2)
    assert released[-1].parameters.shape == (4, 4)
    chance.assert_above(accuracies["per_task"], 0.9, mean=0.993, spread=0.0025, runs=200)
    chance.assert_below(accuracies["shared"], 0.68, mean=0.587, spread=0.006, runs=200)


def test_a_task_s_model_is_near_what_it_is_said_to_be_near(silent):
    x, y = two_tasks(np.random.default_rng(4), 40)
    origin = np.random.default_rng(5).normal(size=(4, 4))
    learner = {"origin": origin.tolist()}
    common = {"classes": 4, "columns": 3, "task_size": 40, "batch": None, "memory": 3, "learner": learner}

    def released(ridge, **settings):
        mechanism = publication(ridge=ridge, **common, **settings)
        return run(mechanism, 2, lambda start, end: Records(x=x[start:end], y=y[start:end]))[0][-1].parameters

    shared, near_shared, near_origin = (
        released(0.05),
        released(0.05, heads="per_task"),
        released(0.05, heads="per_task", near="origin"),
    )
    own = [near[:4] for near in (near_shared, near_origin)]
    alone = publication(**common).learner
    total = alone.statistics(Records(x=x[:40], y=y[:40]), 40)
    for weights, center in zip(own, (shared, origin), strict=True):
        np.testing.assert_allclose(weights, alone.solve(total, 40, 0.05, center), rtol=0, atol=1e-9)


@pytest.mark.more
@IN_EITHER_CURRENCY
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_restart_goes_on_exactly(privacy, variant, monkeypatch):
    goes_on_exactly(publication(privacy, **VARIANTS[variant]), 14, monkeypatch)


@pytest.mark.more
@IN_EITHER_CURRENCY
@pytest.mark.parametrize("variant", VARIANTS)
def test_parts_are_written_once_and_memory_does_not_grow(privacy, variant):
    mechanism = publication(privacy, **VARIANTS[variant] | {"task_size": 4, "batch": 2})
    chain, time, most = (), 0, 0
    for number in range(60):
        time = mechanism.next_time(time)
        before = {part.number: part.values for part in chain}
        chain = mechanism.step(time, chain, number + 1, reader()).chain
        numbers = [part.number for part in chain]
        assert numbers == sorted(set(numbers))
        for part in chain:
            assert part.values is before[part.number] if part.number in before else part.number > max(before, default=0)
        most = max(most, sum(part.values.size for part in chain))
        assert len(chain) <= 5
    least = 0.2 if privacy == PURE and mechanism.learner.adds_up else 0.95
    assert least * mechanism.learner.most_remembered < most <= mechanism.learner.most_remembered


@IN_EITHER_CURRENCY
def test_what_was_forgotten_is_never_made_up(privacy):
    never_made_up(
        publication(privacy, memory=2),
        (5, 10, 31),
        lambda chain: (*chain, StatePart(number=99, values=chain[0].values)),
    )


@pytest.mark.parametrize("memory", [None, 50], ids=["sum", "memory"])
def test_from_released_models_comes_white_noise_of_the_right_size(memory):
    """The memory is a sum that goes on, or batches one by one."""
    mechanism = publication(classes=2, ridge=1e6, memory=memory, task_size=8, batch=4)
    batches = np.diff(sums_with_labels(mechanism, 12, 4 * np.arange(1, 13)), axis=1, prepend=0)
    column = running_sums_column(0.97) if memory is None else np.array([1.0])
    assert_white_and_of_the_right_size(mechanism, column, batches)


@pytest.mark.parametrize("variant", ["joint, memory", "agem, memory", "heads"])
def test_every_batch_has_spherical_laplace_noise_of_its_own(variant):
    """Tasks have one batch each; the memory of them comes first."""
    mechanism = publication(PURE, **VARIANTS[variant], task_size=4)
    assert_spherical_laplace_each(mechanism, lambda chain: chain[:2])


def test_epochs_are_as_many_as_the_task_has(monkeypatch):
    counted = []
    true = TaskStatistics.gradient

    def gradient(self, encoder, classifier, means):
        counted.append(1)
        return true(self, encoder, classifier, means)

    monkeypatch.setattr(TaskStatistics, "gradient", gradient)
    mechanism = publication(training="agem", epochs=[2, 5, 3], batch=None)
    time, chain, steps = 0, (), []
    for number in range(4):
        time = mechanism.next_time(time)
        chain = mechanism.step(time, chain, number + 1, reader()).chain
        steps.append(len(counted))
    assert np.diff(steps, prepend=0).tolist() == [2, 10, 6, 6]  # and as many of older tasks


@pytest.mark.parametrize("stream", [None, {"kind": "normalize"}, {"kind": "compose", "maps": [{"kind": "center"}] * 2}])
def test_a_map_of_its_own_is_told_with_every_release(stream):
    """A client who knows the release alone maps as the mechanism did: the stream's map, then its own."""
    mechanism = publication(feature_map=stream, features=9, width=2.0)
    description = mechanism.model_description()
    maps = description["feature_map"]["maps"]
    assert [each["kind"] for each in maps[:-1]] == [
        each["kind"] for each in (stream or {}).get("maps", [stream]) if each
    ]
    assert maps[-1] == {"kind": "random_fourier", "version": 1, "features": 9, "width": 2.0, "seed": 0}
    x = reader()(0, 30).x
    schema = {"features": FEATURES, "task": {"kind": "classification", "classes": 3}, "feature_map": stream}
    mapped = mechanism.own_map(StreamSchema.model_validate(schema).mapping()(x))
    weights = np.random.default_rng(2).normal(size=mechanism.learner.shape)
    np.testing.assert_allclose(
        predict(description, weights, x)[1], mechanism.learner.predict(weights, mapped)[1], rtol=0, atol=1e-5
    )


def test_no_record_moves_the_features_of_others(monkeypatch):
    """Erased or not: each record is mapped in its slot's place, among as many rows as there are slots."""
    seen = []

    def statistics(self, records, n):
        seen.append(records.x)
        return np.zeros(self.entries)

    monkeypatch.setattr(TaskStatistics, "statistics", statistics)
    for read in (reader(), without(7)):
        run(replace(publication(), own_map=Placed()), 2, read)
    _, all_there, _, others = seen
    np.testing.assert_array_equal(others, np.delete(all_there, 7 - 5, axis=0))


@pytest.mark.more
def test_a_thousand_small_tasks_run_through():
    """A step takes and leaves as much at the end as at the beginning."""
    mechanism = publication(memory=4, task_size=2, batch=None)
    released, chain = run(mechanism, 1000, lambda start, end: reader()(start % 400, start % 400 + end - start))
    assert [len(released), len(chain)] == [1000, 4]
    assert released[-1].window == (0, 2000)


@pytest.mark.parametrize("settings", [{}, {"memory": 1}], ids=["sum", "memory"])
def test_batches_of_unequal_sizes_have_one_noise(settings):
    """It is for the largest of them: noise of a run must be alike, and whoever verifies the ledger looks."""
    mechanism = publication(task_size=[3, 4], batch=2, **settings)
    released, _ = run(mechanism, 5, reader())
    assert {each.fit[1] - each.fit[0] for each in released} == {1, 2}
    first, *others = (each.perturbation.to_json() for each in released)
    assert all(each == first for each in others)
    assert all(mechanism.terms(each.time) == first for each in released[1:])


@IN_EITHER_CURRENCY
def test_the_plan_tells_the_noise_of_each_task_s_batches(privacy):
    mechanism = publication(privacy)
    plan = mechanism.plan()
    assert plan["lifetime"]["share"] == "1"
    assert plan["first_releases"] == ENDS
    assert [(fit["records"], fit["when"]) for fit in plan["fits"]] == [
        (5, "task 1: 2 of 10 records"),
        (6, "task 2 and all that follow: 3 of 16 records"),
    ]
    tells_its_noise(mechanism, plan["fits"][0])
    assert plan["model"]["training"] == "joint"


@pytest.mark.parametrize(
    ("path", "learner", "settings"),
    [
        *NOT_THE_LEARNERS,
        ("learner.intercept", {"intercept": False}, {"heads": "per_task", "memory": 2}),
        ("learner.origin", {"origin": [[0.0] * 6] * 3}, {"training": "agem"}),
        ("mechanism.batch", {}, {"task_size": 2**40, "batch": None}),
        ("mechanism.memory", {}, {"features": 300, "memory": 4096}),
        ("mechanism.features", {}, {"features": 2**13}),
        ("mechanism.features", {}, {"features": 2**21}),
    ],
)
def test_what_the_mechanism_says_the_learner_does_not(path, learner, settings):
    is_refused(path, publication, learner=learner, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"task_size": []},
        {"task_size": [4, 0]},
        {"memory": 0},
        {"width": 1.0},
        {"heads": "per_task"},
        {"heads": "per_task", "memory": 2, "training": "agem"},
        {"epochs": 3},
        {"near": "origin"},
        {"tasks": 3},
    ],
)
def test_settings_that_do_not_fit_are_refused(settings):
    with pytest.raises(ValueError, match="validation error"):
        publication(**settings)


@pytest.mark.parametrize("hidden", [None, 2])
def test_the_scores_of_tasks_fit_what_tells_them_apart(silent, hidden):
    """Below the tasks' own rows: least squares of which task a record is of, less the mean, along as many codes."""
    x, y = two_tasks(np.random.default_rng(4), 40)
    settings = {"classes": 4, "columns": 3, "task_size": 40, "batch": None, "memory": 3, "hidden": hidden}
    mechanism = publication(heads="per_task", ridge=0.05, **settings)
    released = run(mechanism, 2, lambda start, end: Records(x=x[start:end], y=y[start:end]))[0][-1].parameters
    learner = mechanism.learner
    tasks = [
        learner.sums(learner.statistics(Records(x=x[first : first + 40], y=y[first : first + 40]), 40), 40)[0]
        for first in (0, 40)
    ]
    firsts = np.array([second[:, 3] for second in tasks])  # the intercept's: sums of the records themselves
    codes = firsts - firsts.mean(axis=0)
    expected = learner.minimiser(sum(tasks), codes, 80, 0.05, np.zeros((2, 4)), rank=hidden)
    np.testing.assert_allclose(released[-2:], expected, rtol=0, atol=1e-9)


def test_the_pull_is_by_the_noise_of_all_batches_together():
    """Its deviation by hand: of the running sums of C⁻¹z, which grow less than those of noise of each batch's own."""
    mechanism, steps = publication(), 12
    column = running_sums_column(DECAY)[:steps]
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    running = np.cumsum(np.linalg.inv(np.where(lags >= 0, column[np.abs(lags)], 0.0)), axis=0)
    pulls = [mechanism.learner.pull(mechanism.noise_of_batches(), BATCH, batches + 1) for batches in range(steps)]
    np.testing.assert_allclose(np.divide(pulls, pulls[0]), np.linalg.norm(running, axis=1), rtol=1e-6)


def test_a_step_decomposes_as_many_matrices_as_it_has_heads_and_three_more():
    assert publication().learner.solutions == 1
    assert publication(heads="per_task", memory=2).learner.solutions == 2 + 3
