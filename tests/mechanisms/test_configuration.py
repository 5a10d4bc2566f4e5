"""Configurations are taken exactly as written, or refused with the field and what would do."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from pydantic import TypeAdapter, ValidationError

from service.learning.optimization.descent import GradientDescent, PermutationSGD
from service.learning.optimization.losses import HuberHinge, Squared
from service.learning.optimization.solvers import Exact
from service.mechanisms.building import build
from service.mechanisms.configuration import AskedPrivacy, PublicationConfiguration, Refused, RhoPrivacy
from service.privacy.currency import Currency, zcdp_epsilon
from service.schedules.continual import Continual
from service.schedules.improving_black_box import ImprovingBlackBox
from service.schedules.independent_batches import IndependentBatches
from service.schedules.multi_resolution import MultiResolution
from service.schedules.scheduled_black_box import ScheduledBlackBox
from service.schedules.sliding_window import SlidingWindow
from service.streams.schema import StreamSchema

STREAM = {"features": 4, "task": {"kind": "classification", "classes": 3}}
CONTINUAL = {"kind": "continual", "base": 64, "update_every": 16}
SLIDING = {"kind": "sliding_window", "block": 8, "blocks": 7}
LEARNER = {"kind": "output_perturbation"}
PUBLICATION = {"mechanism": CONTINUAL, "learner": LEARNER, "privacy": {"epsilon": 1}}


def changed(document, path, value):
    """A copy with one field, named by a dotted path, set."""
    copy = json.loads(json.dumps(document))
    *parents, last = path.split(".")
    inner = copy
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return copy


def publication(path=None, value=None):
    return PublicationConfiguration.model_validate(changed(PUBLICATION, path, value) if path else PUBLICATION)


def stream(path=None, value=None):
    return StreamSchema.model_validate(changed(STREAM, path, value) if path else STREAM)


def test_defaults():
    assert publication().privacy.delta == 0
    assert publication().learner.loss is None
    assert publication().learner.intercept is True
    assert publication().mechanism.shares == "equal"
    assert stream().norm_bound == 1.0


@pytest.mark.parametrize("epsilon", [0.1, 1, 3.0, 1e-9, 0.123456789012345])
@pytest.mark.parametrize("delta", [0, 1e-6, 1e-100])
def test_budgets_are_the_decimals_as_written_and_survive_json(epsilon, delta):
    document = changed(changed(PUBLICATION, "privacy.epsilon", epsilon), "privacy.delta", delta)
    first = PublicationConfiguration.model_validate(document)
    assert first.privacy.epsilon == Decimal(str(epsilon))
    again = json.loads(first.model_dump_json())
    assert again["privacy"] == {"epsilon": epsilon, "delta": delta}
    assert PublicationConfiguration.model_validate(again) == first
    assert PublicationConfiguration.model_validate_json(first.model_dump_json()) == first


def test_an_origin_survives_json():
    first = publication("learner.origin", [[0.1, 2, -3.5, 0, 1e-9]] * 3)
    assert PublicationConfiguration.model_validate_json(first.model_dump_json()) == first


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(("privacy.epsilon", bad) for bad in (0, -1, NAN, INF, True, "1", None, 1001, 1e-10)),
        ("privacy.epsilon", Decimal("0.1234567890123456")),
        *(("privacy.delta", bad) for bad in (-1e-9, 1, NAN, True, "0", 1e-101)),
        *((f"mechanism.{name}", bad) for name in ("base", "update_every") for bad in (0, -1, True, 1.0, "1", 2**41)),
        *(("learner.regularization", bad) for bad in (0, -1, NAN, INF, True, "0.1", 1e-7, 1e7)),
        *(("learner.intercept", bad) for bad in (1, "true", None)),
        *(("learner.origin", bad) for bad in ([[NAN]], [[True]], [["1"]], 3, [[1e10]])),
        ("learner.loss", "hinge"),
        ("learner.solver", "sgd"),
        ("learner.extra", 1),
        ("mechanism.extra", 1),
        ("extra", 1),
    ],
)
def test_a_publication_is_refused_by_the_name_of_the_field(path, value):
    # json.dumps would not carry a Decimal, so it is set by hand
    document = json.loads(json.dumps(PUBLICATION))
    *parents, last = path.split(".")
    inner = document
    for name in parents:
        inner = inner[name]
    inner[last] = value
    with pytest.raises(ValidationError) as refused:
        PublicationConfiguration.model_validate(document)
    assert all(last in error["loc"] for error in refused.value.errors())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(("features", bad) for bad in (0, True, 2.0, "2", None)),
        *(("norm_bound", bad) for bad in (0, -1.0, NAN, INF, True, "1")),
        *(("task.classes", bad) for bad in (1, True, 2.5)),
        ("task.kind", "ranking"),
        *(("feature_map", bad) for bad in (True, 1, "hog", [], {}, {"kind": "magic"}, {"kind": "hog"})),
        ("extra", 1),
    ],
)
def test_a_stream_is_refused(path, value):
    with pytest.raises(ValidationError):
        stream(path, value)


MULTI = {"kind": "multi_resolution", "base": 64}
BATCHES = {"kind": "independent_batches", "batch": 64}
BLACK_BOX = {"kind": "scheduled_black_box", "first": 64, "growth": 0.1}
IMPROVING = {"kind": "improving_black_box", "first": 64, "every": 16}


@pytest.mark.parametrize(
    ("mechanism", "schedule"),
    [
        (MULTI, MultiResolution(currency=Currency.PURE, base=64)),
        (CONTINUAL, Continual(currency=Currency.PURE, base=64, update_every=16, shares="equal")),
        *(
            (CONTINUAL | {"shares": shares}, Continual(currency=Currency.PURE, base=64, update_every=16, shares=shares))
            for shares in ("equal", "paper", "improving")
        ),
        (SLIDING, SlidingWindow(currency=Currency.PURE, block=8, blocks=7, shares="equal", warm_up=False)),
        (SLIDING | {"shares": "paper"}, SlidingWindow(currency=Currency.PURE, block=8, blocks=7, shares="paper")),
        (SLIDING | {"warm_up": "none"}, SlidingWindow(currency=Currency.PURE, block=8, blocks=7, warm_up=False)),
        (SLIDING | {"warm_up": "continual"}, SlidingWindow(currency=Currency.PURE, block=8, blocks=7, warm_up=True)),
        (BATCHES, IndependentBatches(batch=64, warm_start=False)),
        (BATCHES | {"warm_start": True}, IndependentBatches(batch=64, warm_start=True)),
        (BLACK_BOX, ScheduledBlackBox(currency=Currency.PURE, first=64, growth=Fraction(1, 10))),
        (
            BLACK_BOX | {"growth": None, "accuracy": 0.2, "warm_start": True},
            ScheduledBlackBox(currency=Currency.PURE, first=64, growth=Fraction(1, 4), warm_start=True),
        ),
        (IMPROVING, ImprovingBlackBox(currency=Currency.PURE, first=64, every=16, exponent=Decimal("0.25"))),
        (
            IMPROVING | {"exponent": 0.1, "warm_start": True},
            ImprovingBlackBox(currency=Currency.PURE, first=64, every=16, exponent=Decimal("0.1"), warm_start=True),
        ),
    ],
    ids=str,
)
def test_the_schedule_is_the_one_asked_for(mechanism, schedule):
    built = build(stream(), publication("mechanism", mechanism))
    assert built.schedule == schedule


@pytest.mark.parametrize(
    ("mechanism", "setting", "bad"),
    [
        (mechanism, setting, bad)
        for mechanism, setting, values in [
            (MULTI, "base", (0, True, 1.0, 2**41)),
            (MULTI, "shares", ("equal",)),
            (CONTINUAL, "shares", ("best", None, 1)),
            (SLIDING, "shares", ("improving", None)),
            (SLIDING, "warm_up", ("full", True, None)),
            (SLIDING, "blocks", (0, 4097)),
            (BATCHES, "batch", (0, -1, True, "8")),
            (BATCHES, "warm_start", (1, "yes", None)),
            (BLACK_BOX, "growth", (0.009, 101, "0.1", True)),
            (BLACK_BOX | {"growth": None}, "accuracy", (0, 1, 0.995)),
            (BLACK_BOX, "first", (0, 1.5)),
            (IMPROVING, "exponent", (0, 0.51, None)),
            (IMPROVING, "every", (0, None)),
        ]
        for bad in values
    ],
)
def test_a_schedule_is_refused_by_the_name_of_the_setting(mechanism, setting, bad):
    with pytest.raises(ValidationError) as refused:
        publication("mechanism", mechanism | {setting: bad})
    assert all(setting in error["loc"] for error in refused.value.errors())


@pytest.mark.parametrize("both", [{}, {"growth": 0.25, "accuracy": 0.2}], ids=str)
def test_growth_and_accuracy_are_two_ways_to_say_one_thing(both):
    with pytest.raises(ValidationError, match="either growth or accuracy"):
        publication("mechanism", {"kind": "scheduled_black_box", "first": 64} | both)


DATABASE = {"kind": "small_database", "queries": "points", "accuracy": 0.1}


@pytest.mark.parametrize(
    ("setting", "bad"),
    [*(("accuracy", bad) for bad in (0, 0.009, 1, "0.1", None)), ("queries", "some"), ("regularization", 0.1)],
)
def test_a_small_database_is_refused_by_the_name_of_the_setting(setting, bad):
    assert publication("learner", DATABASE).learner.accuracy == Decimal("0.1")
    with pytest.raises(ValidationError) as refused:
        publication("learner", DATABASE | {setting: bad})
    assert all(setting in error["loc"] for error in refused.value.errors())


@pytest.mark.parametrize(
    ("solver", "settings"),
    [
        ("exact", {"passes": 3}),
        ("gradient_descent", {"batch": 3}),
        ("psgd", {"steps": 3}),
        *(("psgd", {name: bad}) for name in ("passes", "batch") for bad in (0, -1, True, 1.5, "3", 2**41)),
        *(("gradient_descent", {"steps": bad}) for bad in (0, True, 1.5, "3", 100_001)),
    ],
)
def test_a_solver_takes_its_own_settings_only(solver, settings):
    with pytest.raises(ValidationError, match=next(iter(settings))):
        publication("learner", LEARNER | {"solver": solver} | settings)


@pytest.mark.parametrize(
    ("settings", "built"),
    [
        ({}, Exact()),
        ({"solver": "psgd"}, PermutationSGD(passes=10, batch=32)),
        ({"solver": "psgd", "passes": 3, "batch": 1}, PermutationSGD(passes=3, batch=1)),
        ({"solver": "gradient_descent"}, GradientDescent(steps=100)),
        ({"solver": "gradient_descent", "steps": 7}, GradientDescent(steps=7)),
    ],
)
def test_the_solver_is_the_one_asked_for(settings, built):
    assert build(stream(), publication("learner", LEARNER | settings)).learner.solver == built


def test_an_unknown_mechanism_is_told_the_known_ones():
    with pytest.raises(ValidationError, match="'continual', 'sliding_window'"):
        publication("mechanism", {"kind": "magic"})


@pytest.mark.parametrize(
    ("task", "features"),
    [
        ({"kind": "unlabelled"}, 4),
        ({"kind": "categorical", "cardinality": 9}, None),
    ],
)
def test_other_tasks_are_streams_but_have_no_loss_yet(task, features):
    schema = StreamSchema.model_validate({"features": features, "task": task})
    with pytest.raises(Refused, match="no loss for a") as refused:
        build(schema, publication())
    assert refused.value.path == "learner.loss"


def test_a_categorical_stream_has_no_features():
    with pytest.raises(ValidationError, match="categorical stream has no features"):
        stream("task", {"kind": "categorical", "cardinality": 9})


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("learner.loss", "logistic", "learner.loss"),
        ("learner.origin", [[0.0] * 5] * 2, "learner.origin"),
        ("learner.origin", [[0.0] * 4] * 3, "learner.origin"),
        ("learner.origin", [], "learner.origin"),
    ],
)
def test_what_does_not_go_together_is_refused_by_the_name_of_the_field(path, value, where):
    with pytest.raises(Refused) as refused:
        build(stream(), publication(path, value))
    assert refused.value.path == where


def test_a_release_is_no_origin_before_its_weights_are_looked_up():
    with pytest.raises(Refused, match="give its weights here") as refused:
        build(stream(), publication("learner.origin", {"publication": "other", "version": 1}))
    assert refused.value.path == "learner.origin"


REGRESSION = {"features": 4, "task": {"kind": "regression", "bound": 2.5}}


@pytest.mark.parametrize(
    ("schema", "loss", "reason"),
    [
        (STREAM, "squared", "needs a regression stream"),
        (REGRESSION, "logistic", "this stream is a regression: use squared"),
        (REGRESSION, "huber_hinge", "this stream is a regression: use squared"),
    ],
)
def test_a_loss_that_is_not_for_the_task_is_refused(schema, loss, reason):
    with pytest.raises(Refused, match=reason) as refused:
        build(StreamSchema.model_validate(schema), publication("learner.loss", loss))
    assert refused.value.path == "learner.loss"


def test_a_regression_has_the_squared_loss_with_its_bound():
    learner = build(StreamSchema.model_validate(REGRESSION), publication()).learner
    assert learner.loss == Squared(bound=2.5)
    assert learner.shape == (1, 5)


@pytest.mark.parametrize(("settings", "width"), [({}, 0.5), ({"huber_width": 0.1}, 0.1)])
def test_the_width_of_a_hubers_hinge(settings, width):
    learner = build(stream(), publication("learner", LEARNER | {"loss": "huber_hinge"} | settings)).learner
    assert learner.loss == HuberHinge(width=width)
    assert learner.shape == (3, 5)


@pytest.mark.parametrize(
    "settings",
    [{"huber_width": 0.1}, {"loss": "softmax", "huber_width": 1}]
    + [{"loss": "huber_hinge", "huber_width": bad} for bad in (0, -1, True, "1", NAN)],
)
def test_a_width_belongs_to_hubers_hinge_and_is_positive(settings):
    with pytest.raises(ValidationError, match="huber_width"):
        publication("learner", LEARNER | settings)


def test_a_model_of_more_weights_than_can_be_held_is_refused():
    big = {"features": 2**20, "task": {"kind": "classification", "classes": 64}}
    with pytest.raises(Refused, match="weights"):
        build(StreamSchema.model_validate(big), publication())


@pytest.mark.parametrize(("classes", "loss"), [(2, "logistic"), (3, "softmax")])
def test_the_loss_follows_the_number_of_classes(classes, loss):
    assert build(stream("task.classes", classes), publication()).learner.loss.name == loss


def test_two_classes_may_have_two_rows():
    built = build(stream("task.classes", 2), publication("learner.loss", "softmax"))
    assert built.learner.shape == (2, 5)


def test_the_shapes_have_a_json_schema():
    for shape in (StreamSchema, PublicationConfiguration):
        for mode in ("validation", "serialization"):
            json.dumps(shape.model_json_schema(mode=mode))


def test_a_budget_is_by_rho_or_by_epsilon():
    privacy = TypeAdapter(AskedPrivacy)
    assert isinstance(privacy.validate_python({"rho": 0.5}), RhoPrivacy)
    assert isinstance(privacy.validate_python(RhoPrivacy(rho=0.5)), RhoPrivacy)
    assert not isinstance(privacy.validate_python({"epsilon": 0.5}), RhoPrivacy)


@pytest.mark.parametrize("delta", [0, 1e-6])
def test_a_loss_is_never_stated_below_the_charges_that_it_is_of(delta):
    mechanism = build(stream(), publication("privacy", {"epsilon": 1, "delta": delta}))
    for amount in (Fraction(3, 10), Fraction(1, 3)):  # the nearest doubles are below them
        stated = mechanism.loss_of(amount)
        assert stated["rho" if delta else "epsilon"] >= amount
        assert not delta or stated["epsilon"] >= zcdp_epsilon(stated["rho"], delta)


def test_no_momentum_is_no_momentum():
    document = PUBLICATION | {"privacy": {"epsilon": 1, "delta": 1e-6}}
    for settings, momentum in (({}, 0.9), ({"momentum": 0.0}, 0.0)):
        descent = {"learner": {"kind": "noisy_gradient_descent"} | settings}
        assert build(stream(), PublicationConfiguration.model_validate(document | descent)).learner.momentum == momentum


def test_records_without_features_have_none_that_another_publication_maps():
    schema = StreamSchema.model_validate({"task": {"kind": "categorical", "cardinality": 9}})
    document = PUBLICATION | {"mechanism": BATCHES, "learner": DATABASE, "features": {"from": "maps"}}
    with pytest.raises(Refused, match="no features to map"):
        build(schema, PublicationConfiguration.model_validate(document))
