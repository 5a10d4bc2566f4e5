"""The learners that there are."""

from __future__ import annotations

from typing import Annotated, Any

from service.inputs.registry import FamilySettings, OneOf, Registry
from service.learning import noisy_gradient_descent, objective_perturbation, output_perturbation, small_database
from service.learning.family import LearnerFamily

LEARNERS: Registry[LearnerFamily[Any]] = Registry(
    output_perturbation.FAMILY,
    objective_perturbation.FAMILY,
    noisy_gradient_descent.FAMILY,
    small_database.FAMILY,
    example=output_perturbation.EXAMPLE,
)
LearnerSettings = Annotated[FamilySettings, OneOf(LEARNERS)]
