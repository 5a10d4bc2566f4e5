"""`ledger verify` recomputes how far a record moves sums: noise for less is not paid for, whatever the release says."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from service.ledger.verify import arrivals
from service.ledger.verify.released import _counted, paid_for
from service.privacy.currency import Currency
from service.streams.schema import StreamSchema
from service.streams.slots import ALL_SLOTS
from tests.mechanisms import contract
from tests.mechanisms.private_statistics import publish

PRIVACY = {"epsilon": 1, "delta": 1e-6}
WINDOW = {"kind": "window_statistics", "block": 8, "blocks": 3}
TASKS = {"kind": "lifelong", "task_size": 16, "batch": 8}
SCHEMA = StreamSchema.model_validate({"features": 5, "task": {"kind": "classification", "classes": 3}})
FINDING = "its noise is for sums that one record moves less than it can"
TOO_FLAT = "its noise is for an objective that one record bends less than it can"
PULLED = "its noise is for an objective that is regularized more than its publication says"
FOUND = "its noise is for a minimiser that is found better than any can be"
STEPS = "its noise is of another number of steps than its publication takes"
EXPIRES = "its noise lets other records expire than its publication says"
TWO_CLASSES = {"kind": "classification", "classes": 2}
LEADER = {"kind": "online_leader", "batch": 8}
EXPIRING = {"kind": "window_tree", "window": 2, "expiry": "leaf"}
LATER = {"noise": "window_tree", "window": 3, "expiry": "leaf", "acknowledge_declassification": True}
DEFAULTS = {"learner": {"regularization": 0.1}}


def statistics(mechanism, classes=3, **learner):
    return publish(mechanism, PRIVACY, classes, learner)


def whitening():
    return contract.built(
        SCHEMA, contract.configured({"kind": "preparation", "records": 8, "of": "whiten"}, None, 1e-6)
    )


def tilted(classes, **learner):
    schema = StreamSchema.model_validate({"features": 5, "task": {"kind": "classification", "classes": classes}})
    batches, learner = {"kind": "independent_batches", "batch": 8}, {"kind": "objective_perturbation"} | learner
    return contract.built(schema, contract.configured(batches, learner, 0))


SUMS = {
    "window, 3 classes": lambda: statistics(WINDOW),
    "window, 2 classes": lambda: statistics(WINDOW, 2),
    "window, regression": lambda: statistics(WINDOW, 0),
    "window, without intercept": lambda: statistics(WINDOW, intercept=False),
    "lifelong": lambda: statistics(TASKS),
    "lifelong, a head per task": lambda: statistics(TASKS | {"heads": "per_task", "memory": 2}, intercept=True),
    "whitening": whitening,
    "objective, 3 classes": lambda: tilted(3),
    "objective, 2 classes": lambda: tilted(2),
    "objective, hinge": lambda: tilted(3, loss="huber_hinge"),
}


def findings(mechanism, release, configuration=None, paid=None, **changed):
    """Return what is wrong with a release that states something else of its noise, but is charged for that.

    paid: its charge, an epsilon or a rho; None: its own. configuration: of its publication, as far as it matters.
    """
    start, stop = release.fit
    noise = release.perturbation.to_json() | changed
    pure = mechanism.currency is Currency.PURE
    epsilon, rho = paid or ((release.charge, None) if pure else (None, release.charge))
    charged = {"publication_id": 1, "version": 1, "start": start, "stop": stop, "epsilon": epsilon, "rho": rho}
    row = {
        "version": 1,
        "fit_start": start,
        "fit_stop": stop,
        "noise": noise,
        "model": release.model or mechanism.model_description(),
        "shape": list(release.parameters.shape),
        **{f"charged_{name}": value for name, value in charged.items()},
    }
    publication = SimpleNamespace(id=1, obligations={}, configuration=configuration or DEFAULTS)
    return [*paid_for("here", publication, row, ALL_SLOTS.count, at_arrival=False)]


@pytest.mark.parametrize("name", SUMS)
def test_noise_for_less_than_a_record_moves_is_a_finding(name):
    mechanism = SUMS[name]()
    read, _ = contract.reader(SCHEMA)
    (release,) = mechanism.step(mechanism.next_time(0), (), 1, read).releases
    assert findings(mechanism, release) == []
    stated = release.perturbation.sensitivity
    assert findings(mechanism, release, sensitivity=0.99 * stated) == [f"here: {FINDING}"]


@pytest.mark.parametrize("name", [each for each in SUMS if each.startswith("objective")])
def test_a_curvature_said_to_be_less_is_a_finding(name):
    mechanism = SUMS[name]()
    read, _ = contract.reader(SCHEMA)
    (release,) = mechanism.step(mechanism.next_time(0), (), 1, read).releases
    stated = release.perturbation.to_json()["curvature"]
    less = [{"steepness": 0.99 * stated["steepness"]}, *([{"rank": stated["rank"] - 1}] if stated["rank"] > 1 else [])]
    for each in less:
        assert findings(mechanism, release, curvature=stated | each) == [f"here: {TOO_FLAT}"]


@pytest.mark.parametrize("name", [each for each in SUMS if each.startswith("objective")])
def test_a_tilted_objective_that_is_not_its_publications_is_a_finding(name):
    """As if it were regularized more, or the minimiser found better: both cost less."""
    mechanism = SUMS[name]()
    read, _ = contract.reader(SCHEMA)
    (release,) = mechanism.step(mechanism.next_time(0), (), 1, read).releases
    assert findings(mechanism, release, regularization=1.1 * release.perturbation.regularization) == [f"here: {PULLED}"]
    output = release.perturbation.to_json()["output"]
    better = output | {"sensitivity": 0.9 * output["sensitivity"]}
    assert findings(mechanism, release, output=better) == [f"here: {FOUND}"]


def test_noise_of_units_is_for_as_many_as_a_release_states_and_for_one_where_there_is_none():
    stated = [{"model": {"units": units}} for units in (0, 3, 99)]
    assert [_counted(each, 8, of_units=True) for each in stated] == [1, 3, 8]
    assert [_counted(each, 8, of_units=False) for each in stated] == [8, 8, 8]


def test_fewer_steps_than_a_publication_takes_are_a_finding():
    def published(**steps):
        learner = {"kind": "noisy_gradient_descent"} | steps
        configuration = contract.configured({"kind": "independent_batches", "batch": 16}, learner, 1e-6)
        mechanism = contract.built(SCHEMA, configuration)
        read, _ = contract.reader(SCHEMA)
        (release,) = mechanism.step(16, (), 1, read).releases
        return mechanism, release, configuration.stored()

    promised = published(steps=30)
    assert findings(*promised) == []
    assert findings(*promised, steps=29) == [f"here: {STEPS}"]
    chosen = published()
    assert findings(*chosen, steps=chosen[1].perturbation.steps - 1) == [], "nobody promised how many"


@pytest.mark.parametrize("more", [{}, LATER], ids=["expiry", "expiry sooner"])
def test_noise_that_lets_other_records_expire_than_a_publication_says_is_a_finding(more):
    configuration = contract.configured(LEADER | more, {"kind": "noisy_gradient_descent"}, 1e-6)
    mechanism = contract.built(SCHEMA, configuration)
    (release,) = mechanism.step(8, (), 1, contract.reader(SCHEMA)[0]).releases
    assert findings(mechanism, release, configuration.stored()) == []
    stated = {"factor": EXPIRING, "scale": 100.0 * release.perturbation.noise.scale}
    assert findings(mechanism, release, configuration.stored(), **stated) == [f"here: {EXPIRES}"]


LESS_OFTEN = "publication p: its charges at arrival count less often than all records of a unit may cost"
SELECTED = {"kind": "active_learning", "batching": "fixed_window", "size": 4}
CATEGORIES = {"task": {"kind": "categorical", "cardinality": 3}}


@pytest.mark.parametrize("delta", contract.DELTAS)
@pytest.mark.parametrize("name", ["linear_queries", "active_learning"])
def test_charges_of_units_that_count_less_often_are_a_finding_before_any_release(name, delta):
    mechanism, learner, schema = {
        "linear_queries": ({"kind": "linear_queries", "first": 8, "hits": 2}, None, CATEGORIES),
        "active_learning": (SELECTED, {"kind": "noisy_gradient_descent"}, {"features": 2, "task": TWO_CLASSES}),
    }[name]
    units = StreamSchema.model_validate(schema | {"unit": {"max_records": 3}})
    built = contract.built(units, contract.configured(mechanism, learner, delta))
    owes = built.obligations()
    publication = SimpleNamespace(name="p", kind=built.currency, owes=owes)
    assert list(arrivals.units(publication)) == []
    publication.owes = replace(owes, unit=owes.unit | {"factor": "2"})
    assert list(arrivals.units(publication)) == [LESS_OFTEN]


def test_weights_that_are_said_to_be_smaller_are_looked_at_with_the_sensitivity():
    """A release whose stated sensitivity is that of other weights than it states."""
    mechanism = statistics(WINDOW)
    read, _ = contract.reader(SCHEMA)
    (release,) = mechanism.step(8, (), 1, read).releases
    weights = release.perturbation.weights.to_json()
    assert findings(mechanism, release, weights=weights | {"label": 2 * weights["label"]}) == [f"here: {FINDING}"]


COSTS_MORE = "here: its noise costs more than its charge"
ANOTHER_SIZE = "here: its noise is for a sample of another size than its publication draws"


def of_a_sample(sample=4, slots=16):
    """Return a publication of fits of a sample, the configuration that it promises, and its first release."""
    configuration = contract.configured(
        {"kind": "independent_batches", "batch": slots}, {"kind": "output_perturbation", "sample": sample}, 0
    )
    mechanism = contract.built(SCHEMA, configuration)
    read, _ = contract.reader(SCHEMA)
    (release,) = mechanism.step(slots, (), 1, read).releases
    return mechanism, configuration.stored(), release


def test_a_release_of_a_sample_costs_what_the_sample_says():
    mechanism, configuration, release = of_a_sample()

    def changed_to(**changed):
        return findings(mechanism, release, configuration, (release.charge, None), **changed)

    assert changed_to() == []
    assert changed_to(sample=3) == [ANOTHER_SIZE], "as if fewer were drawn, which costs less"
    assert changed_to(sample=5) == [ANOTHER_SIZE, COSTS_MORE]
    assert changed_to(scale=0.99 * release.perturbation.noise.scale) == [COSTS_MORE]


def test_a_release_that_hides_its_sample_is_a_finding():
    mechanism, configuration, release = of_a_sample()
    hidden = findings(mechanism, release, configuration, (release.charge, None), added_to="weights")
    assert hidden == [ANOTHER_SIZE, COSTS_MORE]
    never_promised = findings(mechanism, release, None, (release.charge, None))
    assert never_promised == [ANOTHER_SIZE]


def test_a_range_no_longer_than_the_sample_has_none():
    mechanism, configuration, release = of_a_sample(sample=16)
    assert findings(mechanism, release, configuration, (release.charge, None)) == []
    assert findings(mechanism, release, configuration, (release.charge, None), added_to="sampled_weights", sample=16)
