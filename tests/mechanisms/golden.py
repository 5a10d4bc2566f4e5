"""Golden files of what people read of a publication: a file for each mechanism and learner, and one of what all say.

`python -m tests.mechanisms.golden` writes them anew: run it after you changed a word or a number knowingly.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from service.learning.records import Records
from service.learning.registry import LEARNERS
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.lifelong import encoder_pass
from service.mechanisms.notes import notes
from service.mechanisms.registry import MECHANISMS
from service.mechanisms.timing import timing
from service.streams.schema import StreamSchema
from tests.golden import readable, rounded
from tests.mechanisms import contract, publications
from tests.mechanisms.publications import EXACT, GAUSSIAN, PURE, THREE, TWO

FOLDER = Path(__file__).with_name("golden")
COMMON = "all"
BATCHES = MECHANISMS["independent_batches"].examples["independent_batches"]


def names() -> list[str]:
    """Return the names of all files."""
    return [COMMON, *MECHANISMS.kinds(), *LEARNERS.kinds()]


def text(name: str) -> str:
    """Return what a file holds."""
    if name == COMMON:
        document = _of_all()
    elif name in MECHANISMS.kinds():
        family = MECHANISMS[name]
        document = _of_family(family) | {example: _of_mechanism(example) for example in _examples_of(family)}
    else:
        document = {example: _of_learner(settings) for example, settings in LEARNERS[name].examples.items()}
    return readable(rounded(json.loads(json.dumps(document))))


def written(name: str) -> Path:
    return FOLDER / f"{name}.json"


def _examples_of(family: Any) -> list[str]:
    """Return the first example and the last one that needs nothing to be installed."""
    names = [name for name in family.examples if "encoder" not in name or encoder_pass.available()]
    return list(dict.fromkeys([names[0], names[-1]]))


def _of_all() -> dict[str, Any]:
    """Return what a plan says whatever its mechanism."""
    schema, configuration, built = _built(THREE, BATCHES, EXACT, PURE)
    plan = built.plan()
    return {
        "guarantee": plan["guarantee"],
        "notes": notes(plan, configuration, schema, publications.LARGE),
        "timing": timing(built.obligations().fit, configuration.delay, queued=0.12345),
        "description": built.model_description(),
    }


def _of_family(family: Any) -> dict[str, Any]:
    """Return what a mechanism says of itself, whatever its settings."""
    flags = ("has_ticks", "asks_people", "releases_map", "evaluates", "accuracy_setting")
    takes = None if family.takes is None else [learner.kind for learner in family.takes]
    return {"takes": takes} | {flag: getattr(family, flag) for flag in flags}


def _of_mechanism(name: str) -> dict[str, Any]:
    """Return a plan, less what all plans say, and the steps at the first two times, which no record changes."""
    mechanism = next(family.examples[name] for family in MECHANISMS if name in family.examples)
    stream, learner = publications.learner_of(mechanism)
    schema, _, built = _built(stream, mechanism, learner, GAUSSIAN)
    said_by_all = {"guarantee"} | ({"model"} if MECHANISMS[mechanism["kind"]].takes is None else set())
    waits_for_others = mechanism["kind"] in ("active_learning", "linear_queries")
    return {
        "draws": built.draws(),
        "plan": {part: text for part, text in built.plan().items() if part not in said_by_all},
        **({"terms": built.terms(0)} if waits_for_others else {"steps": _steps(built, schema)}),
    }


def _of_learner(learner: dict[str, Any]) -> dict[str, Any]:
    """Return what a plan of independent batches says of its fit and of its model."""
    of_categories = learner["kind"] == "small_database"
    privacy = PURE if of_categories or "sample" in learner else GAUSSIAN
    stream = publications.CATEGORIES if of_categories else TWO
    _, _, built = _built(stream, BATCHES, learner, privacy)
    plan = built.plan()
    fit = {part: text for part, text in plan["fits"][0].items() if part not in ("what", "when")}
    return {"model": plan["model"], "fit": fit} | ({"description": built.model_description()} if of_categories else {})


def _built(stream: dict, mechanism: dict, learner: dict | None, privacy: dict) -> tuple[Any, Any, Any]:
    schema = StreamSchema.model_validate(stream)
    asked = {"mechanism": mechanism, "learner": learner, "privacy": privacy}
    configuration = PublicationConfiguration.model_validate(asked)
    return schema, configuration, contract.built(schema, configuration)


def _steps(built: Any, schema: StreamSchema) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2048, schema.features or 0)), rng.integers(0, 2, 2048)
    time, chain, number, steps = 0, (), 1, []
    while len(steps) < 2 and (time := built.next_time(time)) <= len(y):
        step = built.step(time, chain, number, lambda start, end: Records(x=x[start:end], y=y[start:end]))
        chain, number = step.chain, number + len(step.releases)
        releases = [
            {
                "version": release.version,
                "role": release.role,
                "window": release.window,
                "fit": release.fit,
                "parent": release.parent,
                "charge": release.charge,
                "noise": release.perturbation.to_json(),
            }
            for release in step.releases
        ]
        steps.append(
            {"time": time, "declassified": built.declassified(time), "terms": built.terms(time)}
            | {"releases": releases}
        )
    return steps


if __name__ == "__main__":
    for name in names():
        written(name).write_text(text(name))
