"""Publications of every mechanism, learner and setting, for tests of what all of them plan and owe."""

from decimal import Decimal

from service.mechanisms.configuration import PublicationConfiguration
from service.privacy.accounting.budget import Budget
from tests.mechanisms import cases
from tests.mechanisms.test_combinations import MECHANISMS

LARGE = Budget(epsilon=Decimal(1000), delta=Decimal("0.5"))
TWO = {"features": 3, "task": {"kind": "classification", "classes": 2}}
THREE = {"features": 3, "task": {"kind": "classification", "classes": 3}, "norm_bound": 2.0}
REGRESSION = {"features": 3, "task": {"kind": "regression", "bound": 2.0}}
NAMED = TWO | {"columns": ["height", "weight", "age"], "class_names": ["no", "yes"]}
CATEGORIES = {"task": {"kind": "categorical", "cardinality": 4}}
NAMED_CATEGORIES = CATEGORIES | {"class_names": ["north", "east", "south", "west"]}
UNLABELLED = {"features": 3, "task": {"kind": "unlabelled"}}
EXACT, PSGD = {"kind": "output_perturbation"}, {"kind": "output_perturbation", "solver": "psgd"}
DESCENT = {"kind": "output_perturbation", "solver": "gradient_descent"}
OBJECTIVE, NOISY = {"kind": "objective_perturbation"}, {"kind": "noisy_gradient_descent"}
PURE, GAUSSIAN = {"epsilon": 1}, {"epsilon": 1.5, "delta": 1e-6}
LEADER = {"kind": "online_leader", "batch": 8}
TASKS = {"kind": "lifelong", "task_size": [16, 24], "batch": 8}
SAMPLE = "of a sample"
ACTIVE = {"kind": "active_learning", "batching": "fixed_window", "size": 4}
FOURIER = {"kind": "compose", "maps": [{"kind": "center"}, {"kind": "random_fourier", "features": 5}]}


def learner_of(mechanism):
    """Return a stream and a learner that go with a mechanism."""
    if mechanism["kind"] == "linear_queries":
        return CATEGORIES, None
    if mechanism["kind"] == "evaluation":
        return TWO, None
    if mechanism["kind"] == "preparation":
        return THREE, None
    if mechanism["kind"] in ("online_leader", "active_learning"):
        return TWO, NOISY
    return (TWO, EXACT | {"intercept": True}) if mechanism["kind"] == "lifelong" else (THREE, EXACT)


def _small(queries):
    return {"kind": "small_database", "accuracy": 0.5, "queries": queries}


ASKED = {  # name: (stream, mechanism, learner, privacy)
    **{
        f"{name}, {'zcdp' if 'delta' in privacy else 'pure'}": (*learner_of(mechanism), mechanism, privacy)
        for name, mechanism in MECHANISMS.items()
        for privacy in (PURE, GAUSSIAN)
        if "encoder" not in name
    },
    "psgd": (TWO, PSGD, MECHANISMS["multi_resolution"], PURE),
    SAMPLE: (THREE, EXACT | {"sample": 3}, MECHANISMS["continual, equal"], PURE),
    "gradient descent": (THREE, DESCENT | {"steps": 7}, MECHANISMS["sliding_window"], GAUSSIAN),
    "objective": (TWO, OBJECTIVE, MECHANISMS["continual, equal"], PURE),
    "objective, gaussian": (THREE, OBJECTIVE | {"intercept": False}, MECHANISMS["independent_batches, warm"], GAUSSIAN),
    "score_noise": (THREE, EXACT | {"score_noise": 0.2}, MECHANISMS["sliding_window"], GAUSSIAN),
    "huber": (TWO, EXACT | {"loss": "huber_hinge"}, MECHANISMS["independent_batches"], GAUSSIAN),
    "noisy": (THREE, NOISY, MECHANISMS["scheduled_black_box"], GAUSSIAN),
    **{
        f"noisy {name}": (TWO, NOISY, MECHANISMS[name], GAUSSIAN)
        for name in (
            "independent_batches",
            "independent_batches, warm",
            "continual, equal",
            "continual, improving",
            "sliding_window",
        )
    },
    "leader, all averaged": (TWO, NOISY, LEADER | {"averaging": True}, GAUSSIAN),
    "leader, not averaged": (TWO, NOISY, LEADER | {"averaging": False}, GAUSSIAN),
    "noisy, with settings": (
        TWO,
        NOISY | {"steps": 5, "step": 0.5, "clip": 0.3, "momentum": 0.5, "regularization": 0.1},
        MECHANISMS["improving_black_box"],
        GAUSSIAN,
    ),
    **cases.of_families("PUBLICATIONS"),
    "regression, noisy": (REGRESSION, NOISY, MECHANISMS["independent_batches"], GAUSSIAN),
    **{
        f"small {queries}": (CATEGORIES, _small(queries), MECHANISMS["multi_resolution"], PURE)
        for queries in ("points", "intervals", "all")
    },
    "small, gaussian": (CATEGORIES, _small("points"), MECHANISMS["independent_batches"], GAUSSIAN),
    "mapped": (TWO | {"feature_map": FOURIER}, EXACT, MECHANISMS["multi_resolution"], PURE),
    "mapped twice": (TWO | {"feature_map": FOURIER}, EXACT, TASKS | {"features": 6, "width": 2.0}, GAUSSIAN),
    "leader, strongly convex": (TWO, NOISY, LEADER | {"strong_convexity": 0.2}, GAUSSIAN),
    "leader, in the simplex": (
        TWO,
        NOISY,
        LEADER | {"strong_convexity": 0.2, "constraint": "l1_ball", "radius": 3.0, "step": "conditional_gradient"},
        GAUSSIAN,
    ),
    "leader, with settings": (
        THREE,
        NOISY | {"momentum": 0.5, "regularization": 0.1},
        LEADER | {"learning_rate": 0.5, "clip": 0.5, "averaging": False, "radius": 2.0},
        GAUSSIAN,
    ),
    "tasks, remembered": (TWO, EXACT, TASKS | {"memory": 3, "heads": "per_task", "near": "origin"}, GAUSSIAN),
    "tasks, agem": (THREE, EXACT, TASKS | {"training": "agem", "hidden": 2, "epochs": [3, 4]}, GAUSSIAN),
    "tasks, encoder": (TWO, EXACT, MECHANISMS["lifelong, encoder"], GAUSSIAN),
    "tasks, ridge": (TWO, EXACT | {"intercept": False}, TASKS | {"ridge": 0.5}, PURE),
    "queries, accurate": (CATEGORIES, None, {"kind": "linear_queries", "first": 10**6, "accuracy": 0.1}, GAUSSIAN),
    "queries, both": (CATEGORIES, None, {"kind": "linear_queries", "first": 10**6, "accuracy": 0.1, "hits": 3}, PURE),
    "queries, named": (NAMED_CATEGORIES, None, MECHANISMS["linear_queries"], PURE),
    "small, named": (NAMED_CATEGORIES, _small("points"), MECHANISMS["independent_batches"], PURE),
    "named": (NAMED, EXACT, MECHANISMS["independent_batches"], PURE),
    "asking": (UNLABELLED, NOISY, ACTIVE, GAUSSIAN),
    "asking, with settings": (
        UNLABELLED,
        NOISY,
        ACTIVE
        | {
            "batching": "fixed_batch",
            "label_seconds": 50,
            "lease_seconds": 5,
            "threshold": {"initial": 0.5, "decay": 0.5, "least": 0.1},
            "learning_rate": {"initial": 0.5},
        },
        PURE,
    ),
    "active, shares": (
        TWO,
        NOISY,
        ACTIVE | {"epsilon_selection": 0.25, "clip": 0.5, "radius": 2.0, "threshold": 0.3},
        PURE,
    ),
}


def configuration(name):
    """Return the configuration of the publication of that name."""
    _, learner, mechanism, privacy = ASKED[name]
    return PublicationConfiguration.model_validate({"mechanism": mechanism, "learner": learner, "privacy": privacy})
