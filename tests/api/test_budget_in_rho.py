"""Streams whose budget is held in ρ: how it is divided, what comes back, and what is said where it is passed."""

from math import sqrt, tanh

import pytest

from tests.api.test_records import refused
from tests.conftest import Service, ok, publication, wait_until

BLOCK = {"kind": "sliding_window", "block": 5, "blocks": 1}
IN_RHO = {"epsilon": 2, "delta": 5e-6, "accounting": "zcdp"}


@pytest.fixture
def stream(service: Service) -> str:
    return service.stream(budget=IN_RHO)


def shown(service: Service, stream: str) -> dict:
    return ok(service.client().get(f"/v1/streams/{stream}"))


def ledger(service: Service, stream: str) -> dict:
    return ok(service.client().get(f"/v1/streams/{stream}/ledger"))


def noise(service: Service, stream: str, **privacy: float) -> float:
    learner = {"kind": "output_perturbation", "regularization": 0.1}  # the same at every charge
    body = publication(stream, BLOCK) | {"privacy": privacy, "learner": learner}
    return ok(service.client().post("/v1/plan", json=body))["fits"][0]["noise"]["scale"]


def ask(service: Service, stream: str, **privacy: float) -> dict:
    body = publication(stream, BLOCK) | {"privacy": privacy}
    return ok(service.client().post("/v1/publications", json=body), 201)


def too_much(service: Service, stream: str, **privacy: float) -> dict:
    body = publication(stream, BLOCK) | {"privacy": privacy}
    return refused(service.client().post("/v1/publications", json=body), 409, "budget-exceeded")


@pytest.mark.more
def test_five_that_share_it_have_half_the_noise_of_basic_accounting(service: Service, stream):
    rho = shown(service, stream)["budget"]["rho"]
    names = [ask(service, stream, rho=rho / 5)["name"] for _ in range(5)]
    assert 2.1 * noise(service, stream, rho=rho / 5) <= noise(service, stream, epsilon=0.4, delta=1e-6)
    summary = shown(service, stream)
    assert rho * (1 - 1e-9) <= summary["reserved"]["rho"] <= rho
    assert summary["reserved"]["epsilon"] <= 2
    assert summary["budget"] == IN_RHO | {"rho": rho}
    problem = too_much(service, stream, rho=rho / 100)
    assert f"rho {summary['reserved']['rho']:.6g} is reserved of {rho:.6g}" in problem["detail"]
    assert problem["asked"]["rho"] == pytest.approx(rho / 100)
    assert problem["left"]["rho"] < rho / 10**9
    service.post(stream, [[1, 0]] * 10, [0, 1] * 5)
    for name in names:
        service.reaches(name, time=10)
    service.verifies(stream)


def test_what_a_stopped_publication_has_not_charged_comes_back_record_by_record(service: Service, stream):
    rho = shown(service, stream)["budget"]["rho"]
    made = ask(service, stream, rho=rho)
    assert made["privacy"]["rho"] == rho
    service.post(stream, [[1, 0]] * 7, [0, 1, 0, 1, 0, 1, 1])
    service.reaches(made["name"], time=5)
    too_much(service, stream, rho=rho / 2)
    stopped = ok(service.client().delete(f"/v1/publications/{made['name']}"))
    assert stopped["state"] == "stopped"
    body = publication(stream, BLOCK, start=4) | {"privacy": {"rho": rho / 2}}
    worst = refused(service.client().post("/v1/publications", json=body), 409, "budget-exceeded")
    assert worst["record"] == 4
    assert worst["spent"] == worst["reserved"]
    ok(service.client().post("/v1/publications", json=body | {"start": 5, "privacy": {"rho": rho}}), 201)
    page = ledger(service, stream)
    assert page["ranges"][0] == {"start": 0, "end": 5, "declassified": False} | page["spent"]
    assert page["ranges"][1]["rho"] == 0
    assert page["tighter"] == page["reserved"] | {"how": "zcdp", "pure": 0} | {
        name: page["tighter"][name] for name in ("zcdp", "gaussian")
    }
    service.verifies(stream)


def test_pure_publications_count_as_tanh_and_hardly_fit(service: Service, stream):
    name = ask(service, stream, epsilon=0.2)["name"]
    assert shown(service, stream)["reserved"]["rho"] == pytest.approx(0.2 * tanh(0.1))
    service.post(stream, [[1, 0]] * 5, [0, 1, 0, 1, 0])
    service.reaches(name, time=5)
    (share,) = ledger(service, stream)["publications"]
    assert share["spent"]["rho"] == pytest.approx(0.2 * tanh(0.1))
    assert "Pure noise hardly fits" in too_much(service, stream, epsilon=1)["detail"]
    service.verifies(stream)


@pytest.mark.more
@pytest.mark.parametrize("unit", [{}, {"unit": {"max_records": 2}}], ids=["records", "units"])
@pytest.mark.parametrize("promise", [{"epsilon": 0.5, "delta": 0}, {"epsilon": 0.5, "delta": 1e-6}])
def test_a_publication_is_never_shown_above_its_own_cap(service: Service, promise, unit):
    stream = service.stream(budget={"epsilon": 4, "delta": 1e-5, "accounting": "zcdp"}, **unit)
    name = ask(service, stream, **promise)["name"]
    records = {"x": [[1, 0]] * 5, "y": [0, 1, 0, 1, 0]} | ({"unit": list("abcde")} if unit else {})
    ok(service.client().post(f"/v1/streams/{stream}/records", json=records), 202)
    service.reaches(name, time=5)
    for state in ("running", "stopped"):
        card = ok(service.client().get(f"/v1/publications/{name}/card"))
        page = ledger(service, stream)
        (share,) = page["publications"]
        for amount in ("reserved", "spent"):
            parts = {part: card[part]["publication"][amount] for part in ("epsilon", "delta", "rho")}
            assert parts == {part: share[amount][part] for part in parts}
            assert parts["epsilon"] <= promise["epsilon"], (state, amount)
            assert parts["epsilon"] >= 0.999 * promise["epsilon"] * (0.5 if unit and promise["delta"] else 1)
            assert parts["delta"] == promise["delta"]
            assert {part: card[part]["stream"][amount] for part in parts} == page[amount], (
                "of the sum what its ρ implies"
            )
        ok(service.client().delete(f"/v1/publications/{name}"))
    assert card["rho"]["stream"]["for_life"] == page["budget"]["rho"]
    printed = service.client().get(f"/v1/publications/{name}/card?format=html").text
    assert f", ρ {card['rho']['publication']['spent']!r}</td>" in printed


def test_what_is_refused_is_told_as_it_was_asked_for(service: Service, stream):
    problem = too_much(service, stream, epsilon=1)
    assert problem["asked"] == {"epsilon": 1, "delta": 0, "rho": pytest.approx(tanh(0.5))}


def test_pure_noise_counts_more_for_a_unit_than_for_a_record(service: Service, stream):
    """It counts ε²/2 in ρ, and ε·tanh(ε/2) for a record."""
    epsilon = round(1.001 * sqrt(2 * shown(service, stream)["budget"]["rho"]), 6)
    people = service.stream(budget=IN_RHO, unit={"max_records": 2})
    assert too_much(service, people, epsilon=epsilon)["record"] == 0
    ask(service, stream, epsilon=epsilon)


def test_all_of_it_may_be_asked_for_in_epsilon_and_delta(service: Service, stream):
    made = ask(service, stream, epsilon=2, delta=5e-6)
    assert 2 * (1 - 1e-9) < made["privacy"]["epsilon"] <= 2
    left = too_much(service, stream, epsilon=1, delta=1e-6)["left"]
    assert left["rho"] < 1e-9


def test_what_is_said_to_be_left_fits(service: Service, stream):
    ask(service, stream, epsilon=1, delta=1e-6)
    left = too_much(service, stream, epsilon=2, delta=5e-6)["left"]
    ask(service, stream, rho=left["rho"] / 2)
    left = too_much(service, stream, epsilon=2, delta=5e-6)["left"]
    ask(service, stream, epsilon=left["epsilon"], delta=left["delta"])


def test_all_draws_together_stay_within_the_slack(service: Service):
    """A draw fits a budget of ε up to 27.7; two fit up to 27.03."""
    large = service.stream(budget={"epsilon": 27.5, "delta": 1e-6, "accounting": "zcdp"})
    ask(service, large, epsilon=1)
    body = publication(large, BLOCK, epsilon=1)
    problem = refused(service.client().post("/v1/publications", json=body), 422, "invalid-request")
    assert "2^-60" in problem["detail"]
    ask(service, large, epsilon=10, delta=1e-6)


@pytest.mark.parametrize(("learner", "delta"), [("output_perturbation", 0), ("objective_perturbation", 1e-6)])
def test_a_plan_says_like_a_publication_which_noise_no_budget_so_large_can_hold(service: Service, learner, delta):
    large = service.stream(budget={"epsilon": 30, "delta": 1e-6, "accounting": "zcdp"})
    body = publication(large, BLOCK, learner={"kind": learner}) | {"privacy": {"epsilon": 0.1, "delta": delta}}
    nameless = {name: body[name] for name in body if name != "name"}
    for path, request in (("publications", body), ("plan", nameless)):
        problem = refused(service.client().post(f"/v1/{path}", json=request), 422, "invalid-request")
        assert "epsilon of 30" in problem["detail"]
        assert "a privacy.delta above 0, with any learner but objective_perturbation" in problem["detail"]
    ask(service, large, epsilon=0.1, delta=1e-7)


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"rho": 0.1, "epsilon": 1}, "privacy.rho: give either a rho, or an epsilon and a delta"),
        ({"rho": 0}, "privacy.rho: must be above 0"),
        ({"rho": 1e-30}, "privacy.rho: is less than"),
        ({"rho": 0.1, "delta": 1e-6}, "privacy.delta"),
        ({}, "privacy.epsilon: must be given"),
    ],
)
def test_what_no_budget_can_hold_is_refused(service: Service, stream, privacy, message):
    body = publication(stream, BLOCK) | {"privacy": privacy}
    problem = refused(service.client().post("/v1/plan", json=body), 422, "invalid-request")
    assert message in problem["detail"]


def test_a_basic_stream_takes_no_rho(service: Service):
    body = publication(service.stream(delta=1e-6), BLOCK) | {"privacy": {"rho": 0.1}}
    problem = refused(service.client().post("/v1/plan", json=body), 422, "invalid-request")
    assert "privacy.rho: the stream's budget is of epsilon and delta" in problem["detail"]


def test_a_budget_without_delta_can_not_be_held_in_rho(service: Service):
    body = {"name": "pure", "features": 1, "task": {"kind": "classification", "classes": 2}}
    budget = {"epsilon": 1, "accounting": "zcdp"}
    problem = refused(service.client().post("/v1/streams", json=body | {"budget": budget}), 422, "invalid-request")
    assert "delta must be at least 1e-18" in problem["detail"]


def test_metrics_tell_rho_of_streams_that_are_held_in_it_alone(service: Service, stream):
    basic = service.stream()

    def look() -> str | None:  # it is looked at once a second
        text = service.client().get("/metrics").text
        return text if f'perennial_budget_epsilon{{stream="{basic}"}}' in text else None

    text = wait_until(look)
    assert f'perennial_budget_rho{{stream="{stream}"}}' in text
    assert f'perennial_budget_rho{{stream="{basic}"}}' not in text


@pytest.mark.more
def test_what_is_not_charged_comes_back_to_units_too(service: Service):
    """A stream with units gets it back slot by slot: the ρ of all slots of a unit add up to at most the budget."""
    people = service.stream(budget=IN_RHO, unit={"max_records": 4})
    rho = shown(service, people)["budget"]["rho"]
    leader = {
        "stream": people,
        "mechanism": {"kind": "online_leader", "batch": 4},
        "learner": {"kind": "noisy_gradient_descent"},
        "publish_delay": 0,
    }
    made = ok(service.client().post("/v1/publications", json=leader | {"name": "one", "privacy": {"rho": rho}}), 201)
    ids = ["a", "a", "b", "c", "a", "b", "a", "a"]
    ok(service.client().post(f"/v1/streams/{people}/records", json={"x": [[1, 0]] * 8, "y": [1] * 8, "unit": ids}), 202)
    service.reaches(made["name"], time=8)
    spent = ok(service.client().get(f"/v1/streams/{people}/units/a"))["spent"]["rho"]
    assert rho * (1 - 1e-9) <= spent <= rho
    assert ok(service.client().get(f"/v1/streams/{people}/units/c"))["spent"]["rho"] == pytest.approx(rho / 4)
    again = leader | {"name": "two", "privacy": {"rho": rho}}
    refused(service.client().post("/v1/publications", json=again | {"start": 8}), 409, "budget-exceeded")
    ok(service.client().delete(f"/v1/publications/{made['name']}"))
    refused(service.client().post("/v1/publications", json=again | {"start": 7}), 409, "budget-exceeded")
    ok(service.client().post("/v1/publications", json=again | {"start": 8}), 201)
    service.verifies(people)
    pure = refused(
        service.client().post("/v1/publications", json=again | {"name": "pure", "privacy": {"epsilon": 0.2}}),
        409,
        "budget-exceeded",
    )
    assert pure["asked"]["rho"] == pytest.approx(0.02)


@pytest.mark.more
def test_evaluation_slots_have_the_whole_rho_and_training_slots_too(service: Service):
    stream = service.stream(budget=IN_RHO, evaluation={"every": 2})
    rho = shown(service, stream)["budget"]["rho"]
    learns = ask(service, stream, rho=0.6 * rho)["name"]
    figures = {"name": f"of-{stream}", "stream": stream, "publish_delay": 0, "privacy": {"rho": 0.9 * rho}}
    figures["mechanism"] = {"kind": "evaluation", "of": [learns], "block": 5}
    ok(service.client().post("/v1/publications", json=figures), 201)
    more = figures | {"name": f"more-of-{stream}", "privacy": {"rho": 0.2 * rho}}
    assert refused(service.client().post("/v1/publications", json=more), 409, "budget-exceeded")["reserved"][
        "rho"
    ] == pytest.approx(0.9 * rho)
    ask(service, stream, rho=0.3 * rho)
    service.post(stream, [[1, 0]] * 10, [0, 1] * 5)
    service.reaches(figures["name"], time=10)
    for sums in (shown(service, stream), ledger(service, stream)):
        assert sums["reserved"]["rho"] == pytest.approx(0.9 * rho)
        assert sums["reserved"]["evaluation"]["rho"] == pytest.approx(0.9 * rho)
        assert sums["spent"]["evaluation"]["rho"] == pytest.approx(0.9 * rho)
    assert ledger(service, stream)["tighter"]["zcdp"] == pytest.approx(0.9 * rho)
    ok(service.client().delete(f"/v1/publications/{figures['name']}"))
    assert shown(service, stream)["reserved"]["rho"] == pytest.approx(0.9 * rho), "its records stay charged"
    service.verifies(stream)


def test_an_evaluation_adds_to_the_other_publications(service: Service, stream):
    rho = shown(service, stream)["budget"]["rho"]
    evaluated = ask(service, stream, rho=0.6 * rho)["name"]
    body = {
        "name": "figures",
        "stream": stream,
        "mechanism": {"kind": "evaluation", "of": [evaluated], "block": 5},
        "privacy": {"rho": 0.5 * rho},
    }
    over = refused(service.client().post("/v1/publications", json=body), 409, "budget-exceeded")
    assert over["reserved"]["rho"] == pytest.approx(0.6 * rho)
    ok(service.client().post("/v1/publications", json=body | {"privacy": {"rho": 0.3 * rho}}), 201)
    assert shown(service, stream)["reserved"]["rho"] == pytest.approx(0.9 * rho)
    assert "evaluation" not in shown(service, stream)["reserved"]
    service.verifies(stream)
