"""Texts of publications, as JSON: plans, descriptions of models, and a release's description of its noise.

`python -m tests.mechanisms.documents` writes documents.jsonl anew, for whoever changes what is said knowingly.
"""

import json
from decimal import Decimal
from pathlib import Path

import numpy as np

from service.learning.records import Records
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.measured import measured
from service.mechanisms.notes import notes
from service.mechanisms.registry import MECHANISMS as FAMILIES
from service.mechanisms.timing import timing
from service.privacy.accounting.budget import Budget
from service.streams.schema import StreamSchema
from tests.mechanisms import cases, contract
from tests.mechanisms.test_combinations import MECHANISMS

WRITTEN = Path(__file__).with_name("documents.jsonl")
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
ENCODER = "tasks, encoder"  # needs the extra `deep`
ACTIVE = {"kind": "active_learning", "batching": "fixed_window", "size": 4}
FOURIER = {"kind": "compose", "maps": [{"kind": "center"}, {"kind": "random_fourier", "features": 5}]}


def _learner(mechanism):
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
        f"{name}, {'zcdp' if 'delta' in privacy else 'pure'}": (*_learner(mechanism), mechanism, privacy)
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
    **cases.of_families("DOCUMENTS"),
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
    ENCODER: (TWO, EXACT, MECHANISMS["lifelong, encoder"], GAUSSIAN),
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


def _families():
    """Return what each mechanism says of itself, whatever the stream, by the name of the example that it is set as."""
    return {
        name: {
            "takes": None if family.takes is None else [each.kind for each in family.takes],
            "takes features": family.takes_features(settings),
            "adds up": family.adds_up(settings),
            "not evaluated": family.not_evaluated(settings),
            "has ticks": family.has_ticks,
            "asks people": family.asks_people,
            "releases a map": family.releases_map,
            "evaluates": family.evaluates,
            "accuracy setting": family.accuracy_setting,
        }
        for family in FAMILIES
        for name, example in family.examples.items()
        for settings in [family.settings.model_validate(example)]
    }


OF_ALL = {
    "families": _families,
    "schema of a publication": PublicationConfiguration.model_json_schema,
    "schema of a stream": StreamSchema.model_json_schema,
    "measured": lambda: measured(StreamSchema.model_validate(TWO), _configuration(ASKED["psgd"])),
}


def document(name):
    """Return what the publication of that name says, or all of them, as JSON would: numbers to six digits."""
    if name in OF_ALL:
        return json.loads(json.dumps(rounded(OF_ALL[name]())))
    stream, _, mechanism, _ = ASKED[name]
    configuration = _configuration(ASKED[name])
    schema = StreamSchema.model_validate(stream)
    built = contract.built(schema, configuration)
    expected = measured(schema, configuration)
    return json.loads(
        json.dumps(
            rounded(
                {
                    "configuration": configuration.model_dump(
                        mode="json", exclude=None if configuration.features else {"features"}
                    ),
                    "delay": str(configuration.delay),
                    "draws": built.draws(),
                    "plan": (plan := built.plan()),
                    "notes": notes(plan, configuration, schema, LARGE),
                    "timing": timing(built.obligations().fit, configuration.delay, queued=0.12345),
                    "measured": expected and [line["what"] for line in expected["lines"] if line["this"]],
                    "model": built.model_description(),
                    "steps": _steps(built, 5 if "feature_map" in stream else stream.get("features", 0))
                    if mechanism["kind"] not in ("active_learning", "linear_queries")
                    else {"terms": built.terms(0)},
                }
            )
        )
    )


def _configuration(case):
    _, learner, mechanism, privacy = case
    return PublicationConfiguration.model_validate({"mechanism": mechanism, "learner": learner, "privacy": privacy})


def _steps(built, features):
    """Return what the first four steps say, which does not depend on records."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2048, features)), rng.integers(0, 2, 2048)
    time, chain, number, steps = 0, (), 1, []
    for _ in range(4):
        last, time = time, built.next_time(time)
        if time > len(y):
            break
        step = built.step(time, chain, number, lambda start, end: Records(x=x[start:end], y=y[start:end]))
        chain, number = step.chain, number + len(step.releases)
        steps.append(
            {
                "time": time,
                "needs": built.needs(last),
                "declassified": built.declassified(time),
                "terms": built.terms(time),
                "chain": len(chain),
                "releases": [
                    {
                        "number": each.version,
                        "role": each.role,
                        "window": each.window,
                        "fit": each.fit,
                        "parent": each.parent,
                        "shape": each.parameters.shape,
                        "charge": each.charge,
                        "noise": each.perturbation.to_json(),
                        "model": _without_what_was_drawn(each.model),
                    }
                    for each in step.releases
                ],
            }
        )
    return steps


def _without_what_was_drawn(model):
    drawn = {"candidates"} | ({"feature_map"} if model and model["kind"] == "preparation" else set())
    return model and {name: value for name, value in model.items() if name not in drawn}


def rounded(value, digits=6):
    """Return a document whose numbers with a fraction have at most so many digits."""
    if isinstance(value, dict):
        return {name: rounded(each, digits) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


if __name__ == "__main__":
    lines = [json.dumps({"name": name, "says": document(name)}, ensure_ascii=False) for name in (*OF_ALL, *ASKED)]
    WRITTEN.write_text("\n".join(lines) + "\n")
