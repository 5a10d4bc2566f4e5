"""The cost of a release, recomputed from what it says: right to the last digit, and nothing is believed blindly."""

import json
from fractions import Fraction
from math import exp, log

import pytest

from service.privacy.accounting.events import EVENTS, OpenedInstance, from_json
from service.privacy.accounting.events.objective import curvature
from service.privacy.currency import Currency
from service.privacy.noise.sparse_vector import STEPS

GAUSSIAN = {"distribution": "gaussian", "scale": 4.0, "sensitivity": 2.0, "dimension": 3, "added_to": "weights"}
LAPLACE = GAUSSIAN | {"distribution": "spherical_laplace"}
SAMPLED = LAPLACE | {"added_to": "sampled_weights", "sample": 20}
TILT = LAPLACE | {
    "added_to": "objective",
    "regularization": 0.5,
    "curvature": {"rank": 2, "steepness": 3.0},
    "output": {"distribution": "spherical_laplace", "scale": 8.0, "sensitivity": 0.5, "dimension": 3},
}
STATISTICS = GAUSSIAN | {
    "added_to": "statistics",
    "factor": {"kind": "toeplitz", "bands": 2, "decay": 1.0},  # a column of 1 and 1/2
    "largest": 100.0,
    "weights": {"second": 1.1, "label": 1.0},
}
QUERY = {
    "distribution": "discrete_laplace",
    "scale": 3.0 * STEPS,
    "sensitivity": STEPS,
    "dimension": 1,
    "added_to": "query",
    "instance": {"opened": 7, "scale": 3.0 * STEPS},
    "next": {"opened": 9, "scale": 2.0 * STEPS},
}
COUNTS = {
    "distribution": "discrete_laplace",
    "scale": 4.0,
    "sensitivity": 6.0,
    "dimension": 5,
    "added_to": "evaluation_counts",
    "change": {"counts": 2, "largest": 3},
}
CANDIDATE = GAUSSIAN | {"distribution": "exponential_mechanism", "added_to": "candidates"}
COIN = {"law": "exponential", "epsilon": 0.5, "threshold": 0.75, "norm_bound": 1.0}
ONE_OF_EACH = (
    GAUSSIAN,
    SAMPLED,
    GAUSSIAN | {"added_to": "gradient_sums", "steps": 10},
    GAUSSIAN | {"added_to": "disjoint_gradient_sums"},
    GAUSSIAN | {"added_to": "running_sums", "factor": {"kind": "tree", "steps": 4}, "largest": 9.0},
    STATISTICS,
    GAUSSIAN | {"added_to": "second_moments"},
    GAUSSIAN | {"added_to": "selected_gradients", "selection": COIN},
    TILT,
    CANDIDATE,
    QUERY,
    COUNTS,
    COUNTS | {"added_to": "cell_counts"},
    {"added_to": "comparisons", "opened": 7, "scale": 3.0 * STEPS},
)
OF_A_FIFTH = log(1 + 0.2 * (exp(0.5) - 1))
CURVED = 2 * log(1 + 3 / (2 * 100 * 0.5))


def cost(currency, noise, records=100):
    return from_json(noise).cost(currency, records)


@pytest.mark.parametrize("noise", ONE_OF_EACH, ids=lambda noise: noise["added_to"])
def test_an_event_is_what_its_json_states_and_states_it_again(noise):
    event = from_json(json.loads(json.dumps(noise)))
    assert json.dumps(event.to_json()) == json.dumps(noise)
    assert from_json(event.to_json()) == event
    assert type(event) is EVENTS[noise["added_to"]]


def test_every_event_is_tested_and_has_a_tag_of_its_own():
    assert sorted(EVENTS) == sorted(noise["added_to"] for noise in ONE_OF_EACH)
    assert {tag: event.added_to for tag, event in EVENTS.items()} == {tag: tag for tag in EVENTS}


@pytest.mark.parametrize(
    ("currency", "noise", "expected"),
    [
        (Currency.PURE, LAPLACE, 0.5),
        (Currency.ZCDP, LAPLACE, 0.125),
        (Currency.ZCDP, GAUSSIAN, 0.125),
        pytest.param(
            Currency.ZCDP, GAUSSIAN | {"added_to": "gradient_sums", "steps": 10}, 1.25, id="ten sums of gradients"
        ),
        (Currency.ZCDP, GAUSSIAN | {"added_to": "disjoint_gradient_sums"}, 0.125),
        (Currency.ZCDP, STATISTICS, 0.125 * 1.25),
        (Currency.PURE, STATISTICS | {"distribution": "spherical_laplace"}, 0.5 * 1.5),
        pytest.param(Currency.PURE, SAMPLED, OF_A_FIFTH, id="weights of a sample"),
        (Currency.ZCDP, SAMPLED, OF_A_FIFTH**2 / 2),
        (Currency.PURE, QUERY, 1 / 3),
        (Currency.ZCDP, QUERY | {"distribution": "discrete_gaussian"}, 1 / 18),
        (Currency.PURE, TILT, 0.5 + CURVED + 0.0625),
        (Currency.ZCDP, TILT, (0.5 + CURVED + 0.0625) ** 2 / 2),
    ],
)
def test_the_cost_is_the_formulas(currency, noise, expected):
    charge = cost(currency, noise)
    assert float(charge) == pytest.approx(expected, rel=1e-12)
    assert charge >= Fraction(expected) * (1 - Fraction(1, 2**50))


@pytest.mark.parametrize(
    ("currency", "noise"),
    [
        (Currency.PURE, GAUSSIAN),
        (Currency.PURE, TILT | {"output": GAUSSIAN}),
        (Currency.ZCDP, GAUSSIAN | {"distribution": "uniform"}),
        (Currency.ZCDP, GAUSSIAN | {"added_to": "nothing"}),
        (Currency.ZCDP, GAUSSIAN | {"scale": None}),
        (Currency.ZCDP, GAUSSIAN | {"scale": 0.0}),
        (Currency.ZCDP, GAUSSIAN | {"added_to": "gradient_sums"}),
        (Currency.PURE, {name: TILT[name] for name in TILT if name != "curvature"}),
        (Currency.ZCDP, {name: STATISTICS[name] for name in STATISTICS if name != "factor"}),
        (Currency.PURE, {}),
        (Currency.ZCDP, SAMPLED | {"distribution": "gaussian"}),
        (Currency.PURE, LAPLACE | {"added_to": "sampled_weights"}),
        *((Currency.PURE, SAMPLED | {"sample": sample}) for sample in (0, -1, 0.5, True, 100, 101)),
        (Currency.PURE, QUERY | {"distribution": "discrete_gaussian"}),
        (Currency.ZCDP, QUERY),
        (Currency.PURE, QUERY | {"instance": {"opened": 7, "scale": -2.0}}),
        (Currency.PURE, QUERY | {"next": {"opened": 0, "scale": 2.0 * STEPS}}),
        (Currency.PURE, {name: QUERY[name] for name in QUERY if name != "next"}),
        (Currency.ZCDP, STATISTICS | {"weights": {"second": 1.1, "label": 1.0, "third": 1.0}}),
        (Currency.ZCDP, STATISTICS | {"weights": {"second": 1.1, "label": -1.0}}),
        (Currency.ZCDP, CANDIDATE | {"sensitivity": 0.0099}),
        (Currency.ZCDP, GAUSSIAN | {"added_to": ["weights"]}),
        *((Currency.PURE, QUERY | {"sensitivity": value}) for value in (STEPS // 2, 0, "1")),
        *((Currency.PURE, QUERY | {"scale": value}) for value in (0, -1.0, None, float("inf"))),
        *(
            (Currency.ZCDP, GAUSSIAN | {"added_to": "gradient_sums", "steps": steps})
            for steps in (0, -3, 0.5, "0", True)
        ),
        *((Currency.PURE, LAPLACE | {"sensitivity": value}) for value in (0, -2.0, "0", float("nan"), float("inf"))),
        *((Currency.PURE, LAPLACE | {"scale": value}) for value in (-4.0, "9", float("nan"), float("inf"))),
        *((Currency.PURE, LAPLACE | {"dimension": value}) for value in (0, -1, 0.5, 10**400)),
        *((Currency.PURE, TILT | {"curvature": {"rank": rank, "steepness": 3.0}}) for rank in (0, -1, 0.5)),
        *((Currency.PURE, TILT | {"curvature": {"rank": 2, "steepness": value}}) for value in (0, -3.0, -200.0)),
        *((Currency.PURE, TILT | {"regularization": value}) for value in (0, -1.0, float("inf"), 5e-324)),
        (Currency.ZCDP, GAUSSIAN | {"sensitivity": 1e300, "scale": 1e-150}),
    ],
)
def test_what_has_no_such_cost_is_no_claim(currency, noise):
    with pytest.raises(ValueError, match=r"."):
        cost(currency, noise)


@pytest.mark.parametrize(
    ("noise", "shape", "numbers"),
    [
        (GAUSSIAN, (3, 5), 15),
        (STATISTICS, (3, 5), 15 + 15),
        (QUERY, (1, 5), 1),
        (STATISTICS | {"weights": {"second": 1.1, "first": 0.9, "label": 1.0, "count": 0.5}}, (1, 5), 10 + 4 + 5),
        (STATISTICS | {"rows": 2}, (9, 5), 15 + 10),
    ],
)
def test_noise_is_as_long_as_what_it_is_added_to(noise, shape, numbers):
    """Second moments of five columns, but not the number of records; then the moments of labels."""
    assert from_json(noise).dimension(shape) == numbers


def test_an_instance_costs_what_its_scale_says():
    instance = {"opened": 7, "scale": 3.0 * STEPS}
    opened = OpenedInstance.from_json(instance)
    assert [opened.cost(currency, records=7) for currency in (Currency.PURE, Currency.ZCDP)] == [
        Fraction(2, 3),
        Fraction(2, 9),
    ]
    for wrong in ({"opened": 0}, {"scale": 0.0}, {"scale": "1"}, {"scale": 2.0**60}, {"opened": None}):
        with pytest.raises(ValueError, match=r"."):
            OpenedInstance.from_json(instance | wrong)
    with pytest.raises(ValueError, match="lacks"):
        OpenedInstance.from_json({"opened": 7})
    with pytest.raises(ValueError, match="release no parameters"):
        opened.dimension((1, 5))


def test_statistics_of_no_labels_are_no_claim():
    with pytest.raises(ValueError, match="rows"):
        from_json(STATISTICS | {"rows": 0})


@pytest.mark.parametrize("records", [0, -1])
def test_a_fit_of_no_records_is_no_claim(records):
    with pytest.raises(ValueError, match="records"):
        cost(Currency.PURE, TILT, records)


def test_fewer_records_bend_an_objective_more():
    costs = [curvature(rank=3, steepness=0.75, records=n, regularization=0.1) for n in (1, 10, 1000)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == pytest.approx(3 * log(1 + 0.75 / 0.3))
