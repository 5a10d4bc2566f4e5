"""The mechanisms that there are."""

from __future__ import annotations

from typing import Annotated, Any

from service.inputs.registry import FamilySettings, OneOf, Registry
from service.mechanisms.active_learning import family as active_learning
from service.mechanisms.evaluation import family as evaluation
from service.mechanisms.family import MechanismFamily
from service.mechanisms.lifelong import family as lifelong
from service.mechanisms.linear_queries import family as linear_queries
from service.mechanisms.online_leader import family as online_leader
from service.mechanisms.preparation import family as preparation
from service.mechanisms.scheduled import families as scheduled
from service.mechanisms.window_statistics import family as window_statistics

MECHANISMS: Registry[MechanismFamily[Any]] = Registry(
    *scheduled.FAMILIES,
    window_statistics.FAMILY,
    lifelong.FAMILY,
    online_leader.FAMILY,
    linear_queries.FAMILY,
    active_learning.FAMILY,
    evaluation.FAMILY,
    preparation.FAMILY,
    example=online_leader.EXAMPLE,
)
MechanismSettings = Annotated[FamilySettings, OneOf(MECHANISMS)]
