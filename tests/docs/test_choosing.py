"""The page on choosing recommends mechanisms and learners that there are, and that go together."""

import json
import re

import pytest

from service.learning.registry import LEARNERS
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.registry import MECHANISMS
from service.streams.schema import StreamSchema
from tests.docs.pages import blocks, page, rows

PAGE = page("choosing.md")
RECOMMENDED = rows(PAGE, "## One recommendation")
STREAM = StreamSchema.model_validate({"features": 5, "task": {"kind": "classification", "classes": 2}})
NUMBERS = StreamSchema.model_validate({"features": 5, "task": {"kind": "regression", "bound": 1.0}})
CATEGORIES = StreamSchema.model_validate({"task": {"kind": "categorical", "cardinality": 5}})


@pytest.mark.parametrize("stream", RECOMMENDED)
def test_a_recommendation_can_be_published(stream):
    _, mechanism, learner = RECOMMENDED[stream]
    family = MECHANISMS[re.search(r"`(\w+)`", mechanism)[1]]
    kind_of_learner = re.search(r"`(\w+)`", learner)
    configuration = {
        "mechanism": next(iter(family.examples.values())),
        "learner": next(iter(LEARNERS[kind_of_learner[1]].examples.values())) if kind_of_learner else None,
        "privacy": {"epsilon": 1, "delta": 1e-6},
    }
    schema = CATEGORIES if family.kind == "linear_queries" or "small_database" in learner else STREAM
    build(schema, PublicationConfiguration.model_validate(configuration))


def test_the_example_is_what_most_streams_are_recommended():
    (example,) = map(json.loads, blocks(PAGE, "json"))
    for stream in (STREAM, NUMBERS):
        build(stream, PublicationConfiguration.model_validate(example))
    most = RECOMMENDED["anything else: classes or numbers to predict, drifting or not"]
    assert f"**`{example['mechanism']['kind']}`**" in most[1]
