"""A histogram that answers linear queries, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.inputs.refused import Refused
from service.mechanisms.family import MechanismFamily
from service.mechanisms.histogram import MAX_CARDINALITY
from service.mechanisms.linear_queries.mechanism import LinearQueries
from service.mechanisms.linear_queries.settings import LinearQueriesMechanism
from service.streams.schema import Categorical

if TYPE_CHECKING:
    from service.mechanisms.family import BuildContext


def build(settings: LinearQueriesMechanism, context: BuildContext) -> LinearQueries:
    """Return the publication. Raises Refused."""
    task = context.stream.task
    if not isinstance(task, Categorical):
        raise Refused("mechanism.kind", f"{settings.kind} counts categories: it needs a categorical stream")
    if task.cardinality > MAX_CARDINALITY:
        raise Refused("mechanism.kind", f"{settings.kind} keeps a histogram of at most {MAX_CARDINALITY} categories")
    return LinearQueries(cardinality=task.cardinality, **settings.model_dump(exclude={"kind"}), **context.promise)


FAMILY = MechanismFamily(
    settings=LinearQueriesMechanism,
    source="paper C, PMWG",
    summary="a histogram of all records so far, corrected where queries show it wrong",
    build=build,
    examples={"linear_queries": {"kind": "linear_queries", "first": 8, "hits": 2}},
    accuracy_setting="mechanism.accuracy",
    takes=(),
    has_ticks=False,
    not_evaluated=lambda _: "a histogram predicts no labels",
)
