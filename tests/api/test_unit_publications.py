"""Publications on streams with units over HTTP: what a unit is charged, what is held of it, and its erasure."""

from urllib.parse import quote

import pytest

from tests.api.test_units import IDS, done, held, post
from tests.conftest import Service, publication, unique, wait_until

BATCHES = {"kind": "independent_batches", "batch": 4}
KINDS = {
    "output_perturbation": (BATCHES, {"kind": "output_perturbation"}),
    "objective_perturbation": (BATCHES, {"kind": "objective_perturbation"}),
    "lifelong": ({"kind": "lifelong", "task_size": 4}, {"kind": "output_perturbation"}),
    "active_learning": (
        {"kind": "active_learning", "batching": "fixed_window", "size": 4},
        {"kind": "noisy_gradient_descent"},
    ),
}


def people(service: Service, **settings) -> str:
    body = {"name": unique("people"), "budget": {"epsilon": 20, "delta": 1e-4}, "unit": {"max_records": 4}}
    body |= {"features": 1, "task": {"kind": "classification", "classes": 2}} | settings
    return done(service.client().post("/v1/streams", json={k: v for k, v in body.items() if v is not None}))["name"]


def await_step(service: Service, name: str, records: int) -> None:
    """Wait for a step. It need not release anything: active learning may select nothing."""
    wait_until(lambda: done(service.client().get(f"/v1/publications/{name}"))["due"] > records)


@pytest.mark.more
def test_publications_of_every_kind_charge_a_unit_and_go_on_when_it_is_erased(service: Service):
    stream, names = people(service), {}
    for kind, (mechanism, learner) in KINDS.items():
        body = publication(stream, mechanism, learner=learner, delta=1e-6, start=0)
        body["learner"] = learner
        names[kind] = done(service.client().post("/v1/publications", json=body))["name"]
    done(post(service, stream, [IDS[1], "b", IDS[1], "c"]))
    for kind, name in names.items():
        await_step(service, name, 4)
        if kind != "active_learning":
            newest = done(service.client().get(f"/v1/publications/{name}/releases/latest"))
            assert newest["model"]["units"] == 3
    spent = held(service, stream, IDS[1])["spent"]
    assert 0 < spent["epsilon"] <= len(KINDS)
    assert done(service.client().get(f"/v1/streams/{stream}/ledger"))["spent"]["epsilon"] >= spent["epsilon"]
    path = f"/v1/streams/{stream}/units/{quote(IDS[1], safe='')}"
    assert done(service.client().delete(path)) == {"records": [0, 2]}
    done(post(service, stream, [IDS[1], "b", "b", IDS[1]]))
    for name in names.values():
        await_step(service, name, 8)
    newest = done(service.client().get(f"/v1/publications/{names['lifelong']}/releases/latest"))
    assert newest["model"]["units"] == 1
    assert held(service, stream, IDS[1]) == held(service, stream, IDS[1]) | {"records": [0, 2], "erased": True}


def test_queries_are_answered_for_a_unit(service: Service):
    stream = people(service, features=None, task={"kind": "categorical", "cardinality": 3})
    body = {"y": [0, 1, 1, 2, 1, 0, 1, 1], "unit": ["a", "b", "a", "c", "a", "b", "a", "a"]}
    done(service.client().post(f"/v1/streams/{stream}/records", json=body))
    mechanism = {"kind": "linear_queries", "first": 8, "hits": 1}
    settings = publication(stream, mechanism, start=0)
    settings.pop("learner")
    path = f"/v1/publications/{done(service.client().post('/v1/publications', json=settings))['name']}/queries"
    wait_until(lambda: done(service.client().post(path, json={"categories": []}))["time"] == 8)
    assert -1 <= done(service.client().post(path, json={"weights": [1, 0, 0]}))["answer"] <= 2
    assert held(service, stream, "a")["counting"] == 4
    wait_until(lambda: 0 < held(service, stream, "a")["spent"]["epsilon"] <= 1)


@pytest.mark.more
def test_every_second_unit_is_set_aside_and_evaluated(service: Service):
    """Models and evaluations read different units, so that either pays from the whole budget."""
    stream = people(service, budget={"epsilon": 1, "delta": 0}, evaluation={"every": 2})
    ids = [f"person {each}" for each in range(60)]  # all are of one kind once in 2^59 times
    model = publication(stream, {"kind": "independent_batches", "batch": 60}, epsilon=1, start=0)
    learns = done(service.client().post("/v1/publications", json=model))["name"]
    judge = publication(stream, {"kind": "evaluation", "of": [learns], "block": 30}, epsilon=0.5, start=0)
    judge.pop("learner")
    judges = done(service.client().post("/v1/publications", json=judge))["name"]
    for more in (model, judge):
        refused = service.client().post("/v1/publications", json=more | {"privacy": {"epsilon": 0.6}, "name": "more"})
        assert refused.status_code == 409, refused.text
    for _ in range(2):
        done(post(service, stream, ids))
    for name in (learns, judges):
        service.reaches(name, time=120)
    release = done(service.client().get(f"/v1/publications/{learns}/releases/latest"))
    fitted = release["model"]["units"]
    evaluated = done(service.client().get(f"/v1/publications/{judges}/releases/latest"))
    assert release["fit"] == evaluated["fit"] == {"start": 60, "end": 120}
    assert learns in evaluated["evaluation"]
    spent = [held(service, stream, each)["spent"]["epsilon"] for each in ids]
    fits = [each > 3 / 8 for each in spent]  # two of four records: half of 1, or of 1/2
    assert all(each == pytest.approx(1 / 2 if fit else 1 / 4) for each, fit in zip(spent, fits, strict=True))
    assert 0 < fitted == sum(fits) < len(ids)
    aside = done(service.client().delete(f"/v1/streams/{stream}/units/{quote(ids[0], safe='')}"))
    assert aside == {"records": [0, 60]}
    done(post(service, stream, ids))
    service.reaches(judges, time=180)
    service.reaches(learns, time=180)
    newest = done(service.client().get(f"/v1/publications/{learns}/releases/latest"))
    assert newest["model"]["units"] == fitted - fits[0], "an erased unit is in no later n"


@pytest.mark.parametrize(("delta", "most"), [(0, 1), (1e-6, 2)], ids=["pure", "gaussian"])
def test_no_unit_has_spent_more_than_is_said_of_all(service: Service, delta: float, most: float):
    """Each of its records is in a range of another publication; only pure charges of one record show what both cost."""
    stream = people(service, unit={"max_records": 2})
    for start in (0, 4):
        body = publication(stream, BATCHES, delta=delta, start=start)
        name = done(service.client().post("/v1/publications", json=body))["name"]
        done(post(service, stream, ["a", "b", "c", "d"]))
        service.reaches(name, time=start + 4)
        card = done(service.client().get(f"/v1/publications/{name}/card"))
        done(service.client().delete(f"/v1/publications/{name}"))
    page = done(service.client().get(f"/v1/streams/{stream}/ledger"))
    unit = held(service, stream, "a")["spent"]
    shown = {part: card[part]["stream"]["spent"] for part in ("epsilon", "delta")}
    assert shown == page["spent"] == done(service.client().get(f"/v1/streams/{stream}"))["spent"]
    for part, amount in shown.items():
        assert unit[part] <= amount <= page["reserved"][part]
    assert shown == {"epsilon": most, "delta": 2 * delta}
    assert [each["epsilon"] for each in page["ranges"]] == [1]
