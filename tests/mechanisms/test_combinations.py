"""Every schedule from a given origin, with every learner, loss and kind of guarantee: it works, or says why not."""

from decimal import Decimal
from itertools import combinations, product

import pytest

from service.learning.output_perturbation import FAMILY as OUTPUT
from service.learning.registry import LEARNERS as REGISTERED_LEARNERS
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.lifelong import encoder_pass
from service.mechanisms.registry import MECHANISMS as REGISTERED
from service.privacy.accounting import events
from service.privacy.currency import Currency
from service.streams.schema import StreamSchema
from tests.mechanisms import contract

MECHANISMS = contract.mechanisms()
LEARNERS = list(contract.linear_learners().values())
OF_CATEGORIES = [
    example for family in REGISTERED_LEARNERS for example in family.examples.values() if example not in LEARNERS
]
LOSSES = [("logistic", 2), ("softmax", 3), ("huber_hinge", 2), ("huber_hinge", 3), ("squared", 0)]
DELTAS = [0, 1e-6]
FEATURES = 3


def configured(mechanism, learner, loss, delta):
    name, classes = loss
    task = {"kind": "classification", "classes": classes} if classes else {"kind": "regression", "bound": 2.0}
    rows = classes if classes > 2 else 1
    origin = [[0.5] * (FEATURES + 1)] * rows
    return (
        StreamSchema.model_validate({"features": FEATURES, "task": task}),
        PublicationConfiguration.model_validate(
            {
                "mechanism": MECHANISMS[mechanism],
                "learner": learner | {"loss": name, "origin": origin},
                "privacy": {"epsilon": 1, "delta": delta},
            }
        ),
    )


def reason(mechanism, learner, loss, delta):
    """Why a combination can't be: the setting that is refused, and a word of why."""
    takes = REGISTERED[MECHANISMS[mechanism]["kind"]].takes
    if takes == ():
        return "learner", "leave learner out"
    if takes == (OUTPUT,):
        return reason_of_statistics(mechanism, learner, loss, delta)
    if mechanism.startswith(("active_learning", "online_leader")):
        if learner["kind"] != "noisy_gradient_descent":
            return "learner.kind", "use noisy_gradient_descent"
        fits = mechanism.startswith("online_leader") or loss in (("logistic", 2), ("huber_hinge", 2))
        return None if fits else ("learner.loss", "two classes")
    if learner["kind"] == "objective_perturbation" and loss[0] == "squared":
        return "learner.kind", "slope"
    if learner["kind"] == "noisy_gradient_descent" and not delta:
        return "learner.kind", "privacy.delta"
    return ("learner.sample", "privacy.delta to 0") if "sample" in learner and delta else None


def reason_of_statistics(mechanism, learner, loss, delta):
    if learner["kind"] != "output_perturbation":
        return "learner.kind", "use output_perturbation"
    if learner["solver"] != "exact":
        return "learner.solver", "leave it out"
    if "sample" in learner:
        return "learner.sample", "leave it out"
    if "score_noise" in learner:
        return "learner.score_noise", "set mechanism.ridge"
    if loss[0] == "huber_hinge":
        return "learner.loss", "use logistic or softmax"
    if mechanism == "lifelong, agem":
        return "learner.origin", "leave it out"
    if mechanism == "lifelong, encoder" and not delta:
        return "mechanism.encoder", "privacy.delta"
    missing = mechanism == "lifelong, encoder" and not encoder_pass.available()
    return ("mechanism.encoder", "perennial.deep.") if missing else None


def name(value):
    if not isinstance(value, dict):
        return str(value)
    own = "score_noise" if "score_noise" in value else value.get("solver", value["kind"])
    return own + (", of a sample" if "sample" in value else "")


def every_combination():
    """Yield every combination; without --long one of those in which the same two settings meet, working or refused."""
    met = set()
    for combination in product(MECHANISMS, LEARNERS, LOSSES, DELTAS):
        works = reason(*combination) is None
        pairs = {(works, *pair) for pair in combinations(map(str, combination), 2)}
        yield pytest.param(*combination, marks=pytest.mark.long if pairs <= met else ())
        met |= pairs


@pytest.mark.more
@pytest.mark.parametrize(("mechanism", "learner", "loss", "delta"), list(every_combination()), ids=name)
def test_every_combination_publishes_for_its_charge_or_says_why_not(mechanism, learner, loss, delta):
    schema, publication = configured(mechanism, learner, loss, delta)
    if (refusal := reason(mechanism, learner, loss, delta)) is not None:
        path, why = refusal
        with pytest.raises(Refused, match=why) as refused:
            build(schema, publication)
        assert refused.value.path == path
        return
    assert publication.privacy.delta == Decimal(str(delta))
    scheduled, _ = contract.keeps_its_promise(schema, publication)
    assert scheduled.schedule.lifetime().share <= 1


@pytest.mark.parametrize(("mechanism", "learner", "delta"), list(product(MECHANISMS, OF_CATEGORIES, DELTAS)), ids=name)
def test_a_learner_of_categories_works_where_each_fit_stands_for_what_it_read_or_says_why_not(
    mechanism, learner, delta
):
    schema = StreamSchema.model_validate({"task": {"kind": "categorical", "cardinality": 3}})
    publication = PublicationConfiguration.model_validate(
        {"mechanism": MECHANISMS[mechanism], "learner": learner, "privacy": {"epsilon": 1, "delta": delta}}
    )
    kind = MECHANISMS[mechanism]["kind"]
    takes = REGISTERED[kind].takes
    if mechanism.endswith("warm") or kind in ("continual", "sliding_window"):
        why = "is of more than its fit"
    elif takes == (OUTPUT,) or kind == "online_leader":
        why = "makes linear models"
    elif kind == "active_learning":
        why = "use noisy_gradient_descent"
    else:
        why = "leave learner out" if takes == () else None
    if why is not None:
        with pytest.raises(Refused, match=why):
            build(schema, publication)
        return
    scheduled, released = contract.keeps_its_promise(schema, publication, records=64)
    for release in released:
        assert release.window == release.fit
        assert release.parent is None
        assert (release.parameters >= 0).all()
        assert release.parameters.sum() <= 1
    (fit,) = scheduled.plan()["fits"]
    assert fit["error_bound"] > learner["accuracy"] / 2


@pytest.mark.parametrize("mechanism", ["scheduled_black_box", "linear_queries"])
def test_categories_are_for_learners_of_categories_and_only_for_these(mechanism):
    numbers = StreamSchema.model_validate({"features": 3, "task": {"kind": "classification", "classes": 3}})
    categories = StreamSchema.model_validate({"task": {"kind": "categorical", "cardinality": 3}})
    learner = None if mechanism == "linear_queries" else OF_CATEGORIES[0]
    settings = {"mechanism": MECHANISMS[mechanism], "privacy": {"epsilon": 1}}
    with pytest.raises(Refused, match="needs a categorical stream"):
        build(numbers, PublicationConfiguration.model_validate(settings | {"learner": learner}))
    if learner is not None:
        with pytest.raises(Refused, match="small_database is for categories") as refused:
            build(categories, PublicationConfiguration.model_validate(settings | {"learner": LEARNERS[0]}))
        assert refused.value.path == "learner.loss"


def test_more_databases_than_can_be_looked_at_are_refused():
    schema = StreamSchema.model_validate({"task": {"kind": "categorical", "cardinality": 40}})
    publication = PublicationConfiguration.model_validate(
        {"mechanism": MECHANISMS["multi_resolution"], "learner": OF_CATEGORIES[2], "privacy": {"epsilon": 1}}
    )
    with pytest.raises(Refused, match="too many databases of 41 records over 40 categories") as refused:
        build(schema, publication)
    assert refused.value.path == "learner.accuracy"


@pytest.mark.parametrize(
    "wrong",
    [{"sensitivity": 0.01}, {"distribution": "gaussian"}, {"scale": 0.0}, {"dimension": 0}],
    ids=lambda each: next(iter(each)),
)
@pytest.mark.parametrize("kind", Currency)
def test_a_selection_that_claims_what_it_can_not_costs_nothing_that_is_believed(kind, wrong):
    event = {
        "distribution": "exponential_mechanism",
        "scale": 0.5,
        "sensitivity": 0.1,
        "dimension": 3,
        "added_to": "candidates",
    }
    assert events.from_json(event).cost(kind, records=10) == pytest.approx(0.4 if kind is Currency.PURE else 0.02)
    with pytest.raises(ValueError, match=r"moves by 1/n|needs"):
        events.from_json(event | wrong).cost(kind, records=10)


@pytest.mark.parametrize("learner", ["output_perturbation", "objective_perturbation"])
def test_a_budget_too_small_for_so_many_weights_is_refused(learner):
    schema = StreamSchema.model_validate({"features": 100_000, "task": {"kind": "classification", "classes": 10}})
    publication = PublicationConfiguration.model_validate(
        {"mechanism": MECHANISMS["multi_resolution"], "learner": {"kind": learner}, "privacy": {"epsilon": 1e-9}}
    )
    with pytest.raises(Refused, match="too small") as refused:
        build(schema, publication)
    assert refused.value.path == "privacy.epsilon"


def test_gradients_of_more_records_than_doubles_can_add_up_are_refused():
    schema = StreamSchema.model_validate({"features": 3, "task": {"kind": "classification", "classes": 3}})
    publication = PublicationConfiguration.model_validate(
        {
            "mechanism": {"kind": "multi_resolution", "base": 2**40},
            "learner": {"kind": "noisy_gradient_descent"},
            "privacy": {"epsilon": 1, "delta": 1e-6},
        }
    )
    with pytest.raises(Refused, match="add up") as refused:
        build(schema, publication)
    assert refused.value.path == "learner.step"


def test_noisy_gradient_descent_has_the_settings_that_were_asked_for():
    settings = {"steps": 5, "step": 0.25, "clip": 0.3, "momentum": 0.5, "regularization": 0.1}
    schema, publication = configured(
        "independent_batches", {"kind": "noisy_gradient_descent", **settings}, ("logistic", 2), 1e-6
    )
    learner = build(schema, publication).learner
    assert {name: getattr(learner, name) for name in settings} == settings
