"""Notes of a plan: settings that were left out, and the size of noise beside the effect of records.

In one direction of the weights, which is all that a score depends on, noise has the deviation σ = scale (Gaussian) or
about scale·√D (spherical Laplace, of D dimensions). To replace a record moves what noise is added to by at most the
sensitivity, so n records can move it by at most n·sensitivity/2. In k steps of a fit that adds up to k times as much in
one direction, and noise to √k·σ only. So

    ratio = σ/(√k·n·sensitivity/2)

compares noise in a score with the largest score that the fit could give: from 1 on noise drowns every model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from service.learning.registry import LEARNERS
from service.mechanisms.registry import MECHANISMS
from service.privacy.accounting.budget import cap
from service.privacy.accounting.events import NoisyCounts
from service.streams.feature_maps import StandardizeMap
from service.streams.schema import Classification

if TYPE_CHECKING:
    from collections.abc import Mapping

    from service.mechanisms.configuration import PublicationConfiguration
    from service.privacy.accounting.budget import Budget
    from service.streams.schema import StreamSchema

PURE_IN_RHO = (
    "Pure noise hardly fits a budget that is held in rho, where its epsilon counts as epsilon·tanh(epsilon/2), or "
    "epsilon²/2 for units: a privacy.delta above 0 makes it Gaussian."
)
# Where a model sums up records for ever, noise this many times as large as what one batch adds drowns it.
DROWNED_BATCHES = 1000.0


def notes(
    plan: Mapping[str, Any], configuration: PublicationConfiguration, stream: StreamSchema, budget: Budget
) -> list[str]:
    """Return notes on a plan, as sentences. budget: of the stream."""
    classes = stream.task.classes if isinstance(stream.task, Classification) else 1
    of_noise = _of_noise(plan, _hopeless_from(configuration), classes)
    of_ranges = _of_ranges(stream) if configuration.features is None else []
    of_privacy = [*_of_budget(configuration, stream, budget), *_of_delta(plan, configuration)]
    return [*_of_features(configuration), *of_ranges, *of_privacy, *of_noise]


def _of_ranges(stream: StreamSchema) -> list[str]:
    """Return how `norm_bound` compares with the longest record within public ranges, where these are all of the map."""
    ranged = stream.columns is not None and all(column.range is not None for column in stream.columns)
    if not ranged or not isinstance(stream.feature_map, StandardizeMap):
        return []
    longest = math.sqrt(stream.features or 0)
    sentence = f"A record within the public ranges of its columns is at most {longest:.3g} long"
    if stream.norm_bound < longest:
        shortened = (
            f"{sentence}, and norm_bound is {stream.norm_bound:g}: longer records are shortened to it, and only their"
        )
        how_many = "See on public data how many these are, or privately by an evaluation with `shortened`."
        return [f"{shortened} direction counts. {how_many}"]
    if stream.norm_bound > longest:
        return [f"{sentence}: a norm_bound of {stream.norm_bound:g} only adds noise, and {longest:.3g} is enough."]
    return []


def _of_features(configuration: PublicationConfiguration) -> list[str]:
    named = configuration.features
    if named is None:
        return []
    sentence = (
        f"Its features come from {named.publication}: fits that are due before that is released wait for it, and the "
        "norm of a record is then that of the released map. Both charge the records that both read."
    )
    return [sentence]


def _of_budget(configuration: PublicationConfiguration, stream: StreamSchema, budget: Budget) -> list[str]:
    """Say so where the stream could not hold such a publication even if there were no other."""
    privacy = configuration.privacy
    cost = cap(budget.accounting, privacy.epsilon, privacy.delta, units=stream.unit is not None)
    if cost.within(budget.limit):
        return []
    whole, more = (
        f"epsilon {float(promise.epsilon):g} and delta {float(promise.delta):g}" for promise in (budget, privacy)
    )
    reason = f"This can't start on the stream: its whole budget is {whole}, which can't hold {more}."
    advice = "Ask for less, or make a stream with a larger budget."
    return [f"{reason} {PURE_IN_RHO if budget.in_rho and not privacy.delta else advice}"]


def _of_delta(plan: Mapping[str, Any], configuration: PublicationConfiguration) -> list[str]:
    learner = configuration.learner
    if "delta" in configuration.privacy.model_fields_set:
        return []
    pure = "privacy.delta was left out, so it is 0: the guarantee is pure epsilon."
    if learner is None or not LEARNERS.of(learner).has_weights:
        return [pure]
    gain = (
        "A delta far below one over the number of records, such as 1e-6, brings Gaussian noise, which is "
        f"shorter for models of more than about 20 weights; this one has {plan['model']['dimension']}."
    )
    return [f"{pure} {gain} The stream's budget needs a delta for that, too."]


def _hopeless_from(configuration: PublicationConfiguration) -> float:
    """Return from which ratio on noise drowns all models, also those for which the records of many batches add up."""
    mechanism = configuration.mechanism
    return float(MECHANISMS.of(mechanism).adds_up(mechanism) or DROWNED_BATCHES)


def _of_noise(plan: Mapping[str, Any], hopeless_from: float, classes: int) -> list[str]:
    """Return one sentence about the kind of fit whose noise is largest beside its records."""
    ratios = [(ratio, fit) for fit in plan.get("fits", ()) if (ratio := noise_ratio(fit)) is not None]
    if not ratios:
        return []
    ratio, fit = max(ratios, key=lambda pair: pair[0])
    what, records, length = fit["what"], fit["records"], fit["noise"]["expected_norm"]
    compared = f"In a score, the noise of each {what} is about {{}} the most that its {records} records can do"
    if length is not None:
        compared += f" (expected_norm, {_plain(length)}, is its length over all the numbers that it is added to)"
    if ratio < 1.0:
        return [f"{compared.format(f'{_plain(100 * ratio)} % of')}.{_of_classes(ratio, classes)}"]
    compared = compared.format(f"{_plain(ratio)} times")
    if min(ratios, key=lambda pair: pair[0])[0] < hopeless_from:
        return [f"{compared}: models become useful only as the records of many add up."]
    advice = "ask for a larger epsilon or delta, for more records at a time, or for a model of fewer weights"
    return [f"Hopeless: noise drowns every model that this can publish; {advice}. {compared}."]


def _of_classes(ratio: float, classes: int) -> str:
    """Return how noise compares with the records of an average class, where there are many and noise drowns it."""
    if classes <= 2 or ratio * classes < 1.0:
        return ""
    return (
        f" An average one of {classes} classes has 1/{classes} of the records, and noise is about "
        f"{_plain(ratio * classes)} times the most that those can do: without more records at a time or a larger "
        "epsilon, expect the commonest classes at best."
    )


def noise_ratio(fit: Mapping[str, Any]) -> float | None:
    """Return how large noise is in a score beside the most that records can do; None where a plan does not tell.

    fit: a kind of fit, as a plan describes it.
    """
    noise = fit["noise"]
    if noise["expected_norm"] is None and "at_least" not in fit:  # no noise is added to values, as in `small_database`
        return None
    if noise.get("added_to") == NoisyCounts.added_to:  # the noise is on counts, not on a model
        return None
    stated = fit.get("at_least") or {"scale": noise.get("scale"), "sensitivity": fit["sensitivity"]}
    spread = math.sqrt(noise["dimension"]) if noise["distribution"] == "spherical_laplace" else 1.0
    read = noise.get("sample") or fit["records"]
    moved: float = math.sqrt(noise.get("steps") or stated.get("steps") or 1) * read * stated["sensitivity"] / 2
    return float(stated["scale"]) * spread / moved


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
