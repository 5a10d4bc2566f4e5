"""A model that selects what it learns from, as data."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from service.inputs.refused import Refused
from service.learning.noisy_gradient_descent import FAMILY as DESCENT
from service.learning.optimization.constraint_sets import ConstraintSet
from service.mechanisms import linear_settings
from service.mechanisms.active_learning.active_gradient import ActiveGradient, Falling
from service.mechanisms.active_learning.mechanism import ActiveLearning
from service.mechanisms.active_learning.settings import ActiveLearningMechanism, FallingSetting
from service.mechanisms.family import MechanismFamily
from service.privacy.currency import Currency, round_down
from service.privacy.noise.selection import Exponential, least_threshold
from service.schedules.independent_batches import IndependentBatches
from service.streams.schema import Classification, StreamSchema, Unlabelled

if TYPE_CHECKING:
    from service.learning.linear import Linear
    from service.mechanisms.family import BuildContext

LABEL_SECONDS, LEASE_SECONDS = 3600, 60  # seconds in which a label is awaited, and in which one person may give it


def build(settings: ActiveLearningMechanism, context: BuildContext) -> ActiveLearning:
    """Return the publication. Raises Refused."""
    why = f"{settings.kind} takes steps along noisy gradients"
    learner_settings = linear_settings.settings_of(DESCENT, context, why)
    for name in ("steps", "step", "clip", "momentum"):
        if getattr(learner_settings, name) is not None:
            instead = {"step": "set mechanism.learning_rate", "clip": "set mechanism.clip"}.get(name, "leave it out")
            raise Refused(f"learner.{name}", f"{settings.kind} says how its steps are taken: {instead}")
    linear = linear_settings.linear(_labelled(context.stream), learner_settings)
    learner, spent = _gradient(linear, settings, context)
    how = _asking(settings, context.stream, learner)
    return ActiveLearning(
        learner=learner,
        origin=linear_settings.origin(learner_settings, linear.shape),
        feature_map=context.stream.mapping(),
        schedule=IndependentBatches(batch=how.pop("longest")),
        **context.promise | how | {"capacity": spent},
    )


def _labelled(stream: StreamSchema) -> StreamSchema:
    """Return the schema with the two classes that people label."""
    if not isinstance(stream.task, Unlabelled):
        return stream
    return stream.model_copy(update={"task": Classification(kind="classification", classes=2)})


def _gradient(
    linear: Linear, settings: ActiveLearningMechanism, context: BuildContext
) -> tuple[ActiveGradient, Fraction]:
    """Return the learner that selects and takes steps, and the charges of a record for both. Raises Refused."""
    if linear.shape[0] != 1 or not linear.classes:
        raise Refused(
            "learner.loss", f"{settings.kind} asks about one hyperplane: two classes, and logistic or huber_hinge"
        )
    epsilon, spent = _split(settings, context)
    return ActiveGradient(
        **vars(linear),
        law=settings.selection,
        epsilon_selection=epsilon,
        threshold=_slab(settings, epsilon, linear.norm_bound),
        batch=settings.size,
        learning_rate=None if settings.learning_rate is None else _falling(settings.learning_rate),
        clip=settings.clip,
        constraint=ConstraintSet(name="ball", radius=settings.radius or 1.0 / linear.norm_bound),
    ), spent


def _asking(settings: ActiveLearningMechanism, stream: StreamSchema, learner: ActiveGradient) -> dict[str, Any]:
    """Return how batches are closed and who is asked for labels, as settings of `ActiveLearning`. Raises Refused."""
    asks = isinstance(stream.task, Unlabelled)
    if not asks and (settings.label_seconds is not None or settings.lease_seconds is not None):
        raise Refused("mechanism.label_seconds", "the labels of this stream come with its records: leave it out")
    by_window = settings.batching == "fixed_window"
    return {
        "size": settings.size,
        "by_window": by_window,
        "longest": ActiveLearning.most_slots(learner, settings.size, by_window=by_window),
        "asks": asks,
        "label_seconds": settings.label_seconds or LABEL_SECONDS,
        "lease_seconds": settings.lease_seconds or LEASE_SECONDS,
    }


def _split(settings: ActiveLearningMechanism, context: BuildContext) -> tuple[float, Fraction]:
    """Return the ε of selection, and what a record is charged for selection and updates together, in its currency."""
    selection, update, cap = settings.epsilon_selection, settings.epsilon_update, context.capacity
    if context.currency is Currency.ZCDP:
        if update is not None:
            raise Refused(
                "mechanism.epsilon_update",
                "with a delta, updates have what selection leaves of the budget: leave it out",
            )
        epsilon = float(cap) ** 0.5 if selection is None else float(selection)
        if Fraction(epsilon) ** 2 / 2 >= cap:
            raise Refused(
                "mechanism.epsilon_selection",
                f"its square over 2 leaves nothing of the rho of {_promised(context)}: at most "
                f"{(2 * float(cap)) ** 0.5:.3g} does",
            )
        return epsilon, cap
    given = Fraction(selection or 0) + Fraction(update or 0)
    both = selection is not None and update is not None
    if given > cap or (given == cap and not both):
        raise Refused(
            "mechanism.epsilon_update" if selection is None else "mechanism.epsilon_selection",
            f"selection and updates share the epsilon of {_promised(context)}, and each needs some of it",
        )
    spent = given if both else cap
    if selection is not None:
        return float(selection), spent
    return round_down(cap / 2 if update is None else cap - Fraction(update)), spent


def _promised(context: BuildContext) -> str:
    """Return in words how much a slot may be charged; with units, also how much a unit may."""
    if context.unit is None:
        return f"{float(context.capacity):.6g} that privacy promises"
    factor = context.unit.factor
    whole = f"{float(context.capacity * factor):.6g} that privacy promises a unit"
    return f"{float(context.capacity):.6g} that a slot may be charged, 1/{float(factor):.6g} of the {whole}"


def _slab(settings: ActiveLearningMechanism, epsilon: float, norm_bound: float) -> Falling:
    """Return b, and how it falls. Refused where not being selected would tell more than ε of a record."""
    exponential = settings.selection == "exponential"
    least = least_threshold(epsilon, norm_bound) if exponential else None
    if settings.threshold is None:
        if least is not None and least >= norm_bound:
            raise Refused(
                "mechanism.selection",
                f"with an epsilon_selection of {epsilon:.4g} exponential selection needs a threshold so near to "
                f"norm_bound, {norm_bound:.6g}, that all are selected alike: use bernoulli, or more epsilon",
            )
        return Falling(initial=least or 0.2 * norm_bound)
    slab = _falling(settings.threshold, least)
    if least is None:
        return slab
    for b in (slab.at(1), slab.at(2**62)):
        if b >= norm_bound:
            raise Refused(
                "mechanism.threshold", f"exponential selection needs a threshold below norm_bound, {norm_bound}"
            )
        loss = Exponential(epsilon=epsilon, threshold=b, norm_bound=norm_bound).loss()
        if loss > Fraction(epsilon):
            raise Refused(
                "mechanism.threshold",
                f"with a threshold of {b:.6g}, norm_bound {norm_bound:.6g} and epsilon_selection {epsilon:.6g}, a "
                f"record that is not selected would lose {float(loss):.4g}, which is more than epsilon_selection: "
                f"the least threshold that works is {least:.4g}",
            )
    return slab


def _falling(setting: float | FallingSetting, least: float | None = None) -> Falling:
    """Return a public number that falls, or stays constant; `least`: the default of its lower bound."""
    if isinstance(setting, FallingSetting):
        return Falling(initial=setting.initial, decay=setting.decay, least=setting.least or least or 0.0)
    return Falling(initial=setting)


FAMILY = MechanismFamily(
    settings=ActiveLearningMechanism,
    source="paper E, FLSW and FLMB",
    summary="all records so far, learnt from those that it selected",
    build=build,
    examples={
        f"active_learning, {batching}, {selection}": {
            "kind": "active_learning",
            "batching": batching,
            "size": 4,
            "selection": selection,
        }
        for batching in ("fixed_window", "fixed_batch")
        for selection in ("bernoulli", "exponential")
    },
    accuracy_setting="mechanism.size",
    takes=(DESCENT,),
    has_ticks=False,
    asks_people=True,
    not_evaluated=lambda _: "its releases are due at no public time",
)
