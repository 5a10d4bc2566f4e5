"""A publication begins only where its nearly exact draws add at most 2^-60 to δ; one that runs goes on."""

from decimal import Decimal
from fractions import Fraction

import pytest

from service.mechanisms.admission import admit
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.lifelong import encoder_pass
from service.privacy.noise.additive import SLACK
from service.privacy.noise.sampler_distance import largest_epsilon
from service.streams.schema import StreamSchema
from tests.mechanisms import cases
from tests.mechanisms.test_combinations import MECHANISMS

STREAM = StreamSchema.model_validate({"features": 3, "task": {"kind": "classification", "classes": 2}})
ONE_WEIGHT = StreamSchema.model_validate({"features": 1, "task": {"kind": "classification", "classes": 2}})
CATEGORIES = StreamSchema.model_validate({"task": {"kind": "categorical", "cardinality": 4}})
OUTPUT, OBJECTIVE, GRADIENT = "output_perturbation", "objective_perturbation", "noisy_gradient_descent"
LAST = 2**63
DRAWS = {  # name: (learner, draws that one record can move)
    "multi_resolution": (OUTPUT, LAST.bit_length() - 3),
    "continual, equal": (OUTPUT, (LAST // 16).bit_length() - 1 + 2),
    "sliding_window": (OUTPUT, 3),
    "sliding_window, warm": (OUTPUT, 4),
    "independent_batches": (OUTPUT, 1),
    "scheduled_black_box": (OUTPUT, 124),
    "improving_black_box": (OUTPUT, 256 + 128 * 53),
    **cases.of_families("DRAWS"),
    "lifelong": (OUTPUT, 1),
    "lifelong, heads": (OUTPUT, 1),
    "online_leader, blt": (GRADIENT, 2**16),
    "online_leader, toeplitz": (GRADIENT, 152),
    "online_leader, tree": (GRADIENT, (LAST // 8).bit_length()),
    "online_leader, window_tree": (GRADIENT, 3),
    "online_leader, leaf": (GRADIENT, 2),
    "active_learning, fixed_window, bernoulli": (GRADIENT, 1),
    "active_learning, fixed_batch, bernoulli": (GRADIENT, 1),
}
STEP = Decimal("1e-6")


def configuration(name, learner, epsilon, delta=0):
    """A publication with that mechanism; learner: its kind, or all of it, or none."""
    return PublicationConfiguration.model_validate(
        {
            "mechanism": MECHANISMS[name],
            "learner": {"kind": learner} if isinstance(learner, str) else learner,
            "privacy": {"epsilon": epsilon, "delta": delta},
        }
    )


@pytest.mark.parametrize("name", DRAWS)
def test_a_plan_states_the_draws_that_a_record_can_move_and_the_delta_that_they_add(name):
    learner, draws = DRAWS[name]
    sampling = build(STREAM, configuration(name, learner, 1)).plan()["guarantee"]["sampling"]
    assert sampling["draws"] == draws
    assert sampling["delta"] == pytest.approx((1 + 2.718281828459045) * draws * SLACK, rel=1e-12)


@pytest.mark.parametrize("name", DRAWS)
def test_just_under_the_cap_is_accepted_and_just_above_is_refused(name):
    learner, draws = DRAWS[name]
    cap = largest_epsilon(draws)
    assert cap > 10, "whoever asks for an ε that protects anything gets it"
    admit(STREAM, configuration(name, learner, 10))
    assert admit(STREAM, configuration(name, learner, cap)).plan()["guarantee"]["sampling"]["delta"] <= 2**-60
    with pytest.raises(Refused) as refused:
        admit(STREAM, configuration(name, learner, cap + STEP))
    assert refused.value.path == "privacy.epsilon"
    assert f"at most {cap}" in refused.value.message
    assert "privacy.delta" in refused.value.message


@pytest.mark.parametrize("delta", [0, 1e-6])
def test_objective_perturbation_draws_twice_whatever_the_delta(delta):
    cap = largest_epsilon(2)
    assert admit(STREAM, configuration("independent_batches", OBJECTIVE, cap, delta)).draws() == 2
    with pytest.raises(Refused, match=f"at most {cap}"):
        admit(STREAM, configuration("independent_batches", OBJECTIVE, cap + STEP, delta))


@pytest.mark.parametrize(
    ("stream", "name", "learner", "delta"),
    [
        (STREAM, "continual, equal", OUTPUT, 1e-6),
        (STREAM, "continual, equal", GRADIENT, 1e-6),
        (STREAM, "online_leader, blt", GRADIENT, 1e-6),
        (STREAM, "lifelong", OUTPUT, 1e-6),
        (STREAM, "active_learning, fixed_batch, bernoulli", GRADIENT, 1e-6),
        (ONE_WEIGHT, "continual, equal", {"kind": OUTPUT, "intercept": False}, 0),
        (CATEGORIES, "linear_queries", None, 0),
        (CATEGORIES, "multi_resolution", {"kind": "small_database", "accuracy": 0.5, "queries": "points"}, 0),
    ],
    ids=["output", "steps", "sums", "statistics", "selected", "one weight", "queries", "histogram"],
)
def test_exact_noise_has_no_cap(stream, name, learner, delta):
    guarantee = admit(stream, configuration(name, learner, 1000, delta)).plan()["guarantee"]
    assert guarantee["sampling"] == {"draws": 0, "delta": 0}


@pytest.mark.skipif(not encoder_pass.available(), reason="needs the extra `deep`")
def test_an_encoder_is_learnt_with_exact_noise():
    assert admit(STREAM, configuration("lifelong, encoder", OUTPUT, 1, 1e-6)).draws() == 0


def test_what_began_before_there_was_a_cap_is_built_and_states_what_is_true():
    """Workers and readers build what runs with `build`, which knows no cap."""
    built = build(STREAM, configuration("independent_batches", OUTPUT, 100))
    assert built.plan()["guarantee"]["sampling"] == {"draws": 1, "delta": 1}
    assert built.capacity == Fraction(100)
