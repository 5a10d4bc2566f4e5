"""Online learning with the noise of running sums, as data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from service.inputs.refused import Refused
from service.learning.noisy_gradient_descent import FAMILY as DESCENT
from service.learning.noisy_gradient_descent import logit
from service.learning.optimization.constraint_sets import ConstraintSet
from service.mechanisms.family import MechanismFamily
from service.mechanisms.linear_settings import linear_model, settings_of
from service.mechanisms.linear_settings import origin as origin_of
from service.mechanisms.online_leader.mechanism import OnlineLeader
from service.mechanisms.online_leader.online_gradient import OnlineGradient
from service.mechanisms.online_leader.settings import OnlineLeaderMechanism
from service.privacy.noise.correlated import Blt, Toeplitz, Tree
from service.privacy.noise.running_sums import Doubling, Repeated
from service.privacy.noise.window_tree import WindowTree
from service.schedules.independent_batches import IndependentBatches

if TYPE_CHECKING:
    from service.mechanisms.family import BuildContext
    from service.privacy.noise.running_sums import Runs

FARTHEST = 1e4  # logits that a ball without a radius allows in a score: farther than any model goes
DECAY = 0.97  # decay of the noise's factor: gradients forget steps of long ago anyway


def build(settings: OnlineLeaderMechanism, context: BuildContext) -> OnlineLeader:
    """Return the publication. Raises Refused."""
    linear = linear_model(context, settings.kind)
    learner_settings = settings_of(DESCENT, context, f"{settings.kind} takes steps along noisy gradients")
    for name, instead in (("steps", None), ("step", "learning_rate"), ("clip", "clip")):
        if getattr(learner_settings, name) is not None:
            advice = f"set mechanism.{instead}" if instead else "there is one for every batch"
            raise Refused(f"learner.{name}", f"{settings.kind} says how its steps are taken: {advice}")
    if settings.strong_convexity is not None:
        for name in ("momentum", "regularization"):
            if getattr(learner_settings, name):
                raise Refused(f"learner.{name}", "the leader is followed without: only strong_convexity pulls")
    reach = FARTHEST * (logit(linear) if settings.reach == "logits" else 1.0)
    constraint = ConstraintSet(name=settings.constraint, radius=settings.radius or reach / linear.norm_bound)
    origin = origin_of(learner_settings, linear.shape)
    if not constraint.holds(origin, origin):
        raise Refused(
            "learner.origin",
            f"the first iterate is the origin, so it has to lie in the simplex: all of {origin.size} weights at "
            f"{constraint.radius / origin.size:.6g} do",
        )
    learner = OnlineGradient(
        **vars(linear),
        runs=_runs(settings),
        clip=settings.clip,
        learning_rate=settings.learning_rate,
        strong_convexity=settings.strong_convexity,
        momentum=learner_settings.momentum or 0.0,
        averaging=settings.averaging,
        constraint=constraint,
        projected=settings.step == "projection",
    )
    leader = OnlineLeader(
        learner=learner,
        origin=origin,
        feature_map=context.stream.mapping(),
        schedule=IndependentBatches(batch=settings.batch, warm_start=True),
        **context.promise,
    )
    if settings.steps == "auto":
        return leader if context.stream.unit else replace(leader, steps=leader.most_steps())
    return replace(leader, steps=_of_batch(settings.steps or 1, settings.batch))


def _of_batch(steps: int, batch: int) -> int:
    if steps > batch:
        raise Refused("mechanism.steps", f"a batch of {batch} records has no {steps} parts: ask for fewer steps")
    return steps


def _runs(settings: OnlineLeaderMechanism) -> Runs:
    decay = settings.decay or DECAY
    match settings.noise:
        case "blt":
            return Repeated(factor=Blt.decaying(decay))
        case "toeplitz":
            return Repeated(factor=Toeplitz.for_ever(decay))
        case "tree":
            return Doubling()
        case "window_tree":
            window = settings.window or 1
            if settings.expiry == "never":
                return Repeated(factor=Tree(steps=1 << (window - 1).bit_length()))
            return Repeated(factor=WindowTree(window=window, expiry=settings.expiry))


_KIND = {"kind": "online_leader"}
_WINDOW_TREE = _KIND | {"batch": 8, "noise": "window_tree"}
EXAMPLE = _KIND | {"batch": 100}
FAMILY = MechanismFamily(
    settings=OnlineLeaderMechanism,
    source="paper B's setting, Kairouz et al. 2021",
    summary="all records so far, each read once",
    build=build,
    examples={
        **{f"online_leader, {noise}": _KIND | {"batch": 8, "noise": noise} for noise in ("blt", "toeplitz", "tree")},
        "online_leader, two steps": _KIND | {"batch": 8, "steps": 2},
        "online_leader, window_tree": _WINDOW_TREE | {"window": 3},
        **{
            f"online_leader, {expiry}": _WINDOW_TREE
            | {"window": 2, "expiry": expiry, "acknowledge_declassification": True}
            for expiry in ("leaf", "block")
        },
    },
    accuracy_setting="learner.step",
    takes=(DESCENT,),
)
