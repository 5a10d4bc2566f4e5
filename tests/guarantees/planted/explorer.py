"""Bugs in advice on a public sample."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_BEST = "tests/explorer/test_advice.py::test_the_best_mean_score_with_noise_is_recommended_whatever_is_best_without"


@bug(_BEST)
def advice_by_scores_without_noise() -> None:
    """The mechanism that is recommended is the best one for those who need no privacy."""
    from service.explorer import advice

    rewrite(advice.advise, ("key=lambda each: each.score", "key=lambda each: each.without_noise"))


@bug(_BEST)
def advice_whose_price_of_privacy_is_measured_with_noise() -> None:
    """It says that privacy costs nothing."""
    from service.explorer import advice

    rewrite(advice.advise, ("_scores(schema, candidate, HARDLY_ANY_NOISE,", "_scores(schema, candidate, epsilon,"))
