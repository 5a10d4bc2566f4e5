"""The parts of `GET …/ledger` beside the ranges, which tests/guarantees adds up from outside."""

import pytest

from service.store import streams
from service.store.database import Database
from tests.api.test_records import refused
from tests.conftest import Service, ok, publication, wait_until

WINDOW = {"kind": "sliding_window", "block": 5, "blocks": 2}


@pytest.fixture
def stream(service: Service) -> str:
    return service.stream(epsilon=3, delta=1e-5)


def ledger(service: Service, stream: str, query: str = "") -> dict:
    return ok(service.client().get(f"/v1/streams/{stream}/ledger{query}"))


@pytest.mark.more
def test_each_publication_says_what_it_reserved_why_that_suffices_and_how_far_it_is(service: Service, stream):
    pure = service.publish(stream, WINDOW, epsilon=1)
    gaussian = service.publish(stream, WINDOW, epsilon=1, delta=1e-6)
    unused = service.publish(stream, WINDOW, epsilon=0.5)
    service.post(stream, [[1, 0]] * 30, [0, 1] * 15)
    for name in (pure, gaussian):
        service.reaches(name, time=30)
    ok(service.client().delete(f"/v1/publications/{unused}"))
    page = ledger(service, stream)
    shares = {each["name"]: each for each in page["publications"]}
    charges = ok(service.client().get(f"/v1/streams/{stream}/ledger/charges?limit=1000"))["items"]
    for name, currency in ((pure, "epsilon"), (gaussian, "rho")):
        each = shares[name]
        plan = ok(service.client().get(f"/v1/publications/{name}"))["plan"]
        assert each["lifetime"] == plan["lifetime"]
        assert each["running"]
        spent = {
            record: sum(c[currency] for c in charges if c["publication"] == name and c["start"] <= record < c["end"])
            for record in range(30)
        }
        assert spent[each["spent"]["record"]] == max(spent.values()) == pytest.approx(each["spent"][currency])
        assert each["spent"]["epsilon"] <= each["reserved"]["epsilon"] == 1
    assert shares[gaussian]["reserved"]["delta"] == shares[gaussian]["spent"]["delta"] == 1e-6
    assert shares[pure]["spent"]["rho"] is None
    assert not shares[unused]["running"] or shares[unused]["reserved"]["epsilon"] == 0.5
    assert page["reserved"]["epsilon"] == pytest.approx(2 + shares[unused]["reserved"]["epsilon"])

    def all_is_confirmed() -> bool:
        (each,) = (each for each in ledger(service, stream)["publications"] if each["name"] == unused)
        return each["spent"]["epsilon"] == each["reserved"]["epsilon"]

    wait_until(all_is_confirmed)


def test_many_gaussian_publications_cost_less_than_their_sum_and_it_is_said_how(service: Service):
    stream = service.stream(epsilon=10, delta=1e-4)
    assert ledger(service, stream)["tighter"] == {
        "epsilon": 0,
        "delta": 0,
        "how": "sum",
        "pure": 0,
        "zcdp": 0,
        "gaussian": 0,
    }
    for _ in range(8):
        service.publish(stream, WINDOW, epsilon=1, delta=1e-6)
    page = ledger(service, stream)
    assert page["reserved"] == {"epsilon": 8, "delta": 8e-6}
    assert page["tighter"]["how"] == "zcdp"
    assert page["tighter"]["delta"] == 8e-6
    assert 1 < page["tighter"]["epsilon"] < 5


def test_a_part_of_the_records_can_be_asked_for(service: Service, stream):
    name = service.publish(stream, WINDOW)
    service.post(stream, [[1, 0]] * 30, [0, 1] * 15)
    service.reaches(name, time=30)
    whole = ledger(service, stream)
    assert whole["exact"]
    assert (whole["ranges"][0]["start"], whole["ranges"][-1]["end"]) == (0, 30)

    def of(page: dict, record: int) -> float:
        (here,) = [each["epsilon"] for each in page["ranges"] if each["start"] <= record < each["end"]]
        return here

    part = ledger(service, stream, "?start=3&end=28")
    assert (part["ranges"][0]["start"], part["ranges"][-1]["end"]) == (3, 28)
    assert all(of(part, record) == of(whole, record) for record in range(3, 28))
    assert part["spent"] == whole["spent"]
    assert ledger(service, stream, "?start=30")["ranges"] == []
    assert ledger(service, stream, "?start=20&end=10")["ranges"] == []
    assert ledger(service, stream, "?end=99")["ranges"] == whole["ranges"]
    refused(service.client().get(f"/v1/streams/{stream}/ledger?start=-1"), 422, "invalid-request")


def test_a_stream_whose_ledger_does_not_verify_says_so_and_so_do_its_publications(service: Service, stream):
    name = service.publish(stream, WINDOW)
    service.first_release(name, stream, records=10)
    database = Database(str(service.settings.database_url))
    try:
        for reason in ("charge 7: its hash is not that of its content", None):
            with database.transaction() as connection:
                streams.distrust(connection, streams.find(connection, stream), reason)
            shown = ok(service.client().get(f"/v1/publications/{name}"))
            assert ok(service.client().get(f"/v1/streams/{stream}"))["distrusted"] == reason
            assert shown["state"] == ("running" if reason is None else "halted")
            assert (shown["reason"] or "").endswith(reason or "")
    finally:
        database.close()


def declassified(page: dict) -> set[int]:
    """Which records are; a range tells of no other loss where it is unbounded."""
    records = set()
    position = page["ranges"][0]["start"]
    for each in page["ranges"]:
        assert each["start"] == position < each["end"]
        position = each["end"]
        assert (each["epsilon"] is None) == (each["delta"] is None) == each["declassified"]
        records |= set(range(each["start"], each["end"])) if each["declassified"] else set()
    return records


@pytest.mark.parametrize(("expiry", "leaves"), [("leaf", [0, 0, 1, 2, 3, 4]), ("block", [0, 0, 0, 2, 2, 4])])
def test_records_are_declassified_by_the_release_that_has_them_in_the_clear_and_stay_so(
    service: Service, stream, expiry, leaves
):
    """A window of 2 batches of 3 records from record 4 on; so many batches are past it after each release."""
    service.post(stream, [[1, 0]] * 4, [0, 1] * 2)
    mechanism = {
        "kind": "online_leader",
        "batch": 3,
        "noise": "window_tree",
        "window": 2,
        "expiry": expiry,
        "acknowledge_declassification": True,
    }
    learner = {"kind": "noisy_gradient_descent"}
    name = service.publish(stream, mechanism, epsilon=2, delta=1e-6, learner=learner)
    other = service.publish(stream, {"kind": "independent_batches", "batch": 5}, epsilon=1)
    assert declassified({"ranges": [{**ledger(service, stream)["ranges"][0]}]}) == set()
    for number, gone in enumerate(leaves, 1):
        service.post(stream, [[1, 0]] * 3, [0, 1, 1])
        service.reaches(name, time=4 + 3 * number)
        page = ledger(service, stream)
        assert declassified(page) == set(range(4, 4 + 3 * gone))
        shown_of = {each["name"]: each["declassified"] for each in page["publications"]}
        assert shown_of == {name: 3 * gone, other: 0}
        assert page["declassified"] == ok(service.client().get(f"/v1/streams/{stream}"))["declassified"] == 3 * gone
        assert page["spent"]["epsilon"] <= 3
        assert page["reserved"] == {"epsilon": 3, "delta": 1e-6}
    before = set(range(4, 4 + 3 * leaves[-1]))
    assert declassified(ledger(service, stream, "?start=5&end=9")) == before & set(range(5, 9))
    service.reaches(other, time=19)
    ok(service.client().delete(f"/v1/publications/{name}"))
    service.post(stream, [[1, 0]] * 9, [0, 1, 1] * 3)
    service.reaches(other, time=29)
    page = ledger(service, stream)
    assert declassified(page) == before
    counted = f'perennial_declassified_records{{stream="{stream}"}} {len(before):.1f}'
    wait_until(lambda: counted in service.client().get("/metrics").text)  # it is looked at once a second
    assert max(each["epsilon"] or 0 for each in page["ranges"]) <= page["spent"]["epsilon"]
    service.verifies(stream)


def test_without_an_acknowledgement_nothing_is_declassified(service: Service, stream):
    mechanism = {"kind": "online_leader", "batch": 3, "noise": "window_tree", "window": 2, "expiry": "leaf"}
    learner = {"kind": "noisy_gradient_descent"}
    body = publication(stream, mechanism, delta=1e-6, learner=learner)
    for path in ("publications", "plan"):
        problem = refused(service.client().post(f"/v1/{path}", json=body), 422, "invalid-request")
        assert "no longer protected at all" in str(problem)
        assert "acknowledge_declassification" in str(problem)
