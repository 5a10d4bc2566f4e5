"""The card of a publication: its numbers against the charges, what it says, and its formats."""

import random
import re
from decimal import Decimal
from fractions import Fraction

import httpx
import pytest

from service.privacy.accounting.composition import Component, PrivacyLoss, worst
from service.privacy.currency import Currency
from service.store import streams
from service.store.database import Database
from tests.api.test_records import refused
from tests.conftest import EXPIRING, Service, ok

HEADINGS = ("Unit", "Epsilon", "Delta", "Public", "Protected", "Trust boundary", "Operator")


def card(service: Service, name: str) -> dict:
    return ok(service.client().get(f"/v1/publications/{name}/card"))


def page(service: Service, name: str) -> str:
    return service.client().get(f"/v1/publications/{name}/card?format=html").text


def decimal(number: float) -> Decimal:
    return Decimal(repr(number))


def added_up(service: Service, stream: str, newest: int | None, records: int) -> dict[str, dict[str, PrivacyLoss]]:
    """Return what each publication of a stream, and all together, may lose, reserve and spent, from charges alone."""
    charges = ok(service.client().get(f"/v1/streams/{stream}/ledger/charges?limit=1000"))["items"]
    listed = ok(service.client().get("/v1/publications?limit=1000"))["items"]
    spent, reserved = [PrivacyLoss()] * (records + 1), [PrivacyLoss()] * (records + 1)
    of_each = {}
    for each in (each for each in listed if each["stream"] == stream):
        amounts = [Fraction(0)] * (records + 1)
        for charge in charges:
            if charge["publication"] == each["name"] and charge["id"] <= (newest or 0):
                for record in range(charge["start"], charge["end"]):
                    amounts[record] += Fraction(charge["epsilon"] or charge["rho"])
        privacy = each["privacy"]
        component = Component(
            id=each["id"],
            currency=Currency.ZCDP if privacy["delta"] else Currency.PURE,
            cap=PrivacyLoss.of(decimal(privacy["epsilon"]), decimal(privacy["delta"])),
            start=each["start"],
            running=each["state"] == "running",
        )
        for record, amount in enumerate(amounts):
            spent[record] += component.loss(amount)
            if not component.running:
                reserved[record] += component.reserved_after_end(amount)
            elif record >= component.start:
                reserved[record] += component.cap
        of_each[each["name"]] = {
            "for_life": component.cap,
            "reserved": component.cap if component.running else worst(map(component.reserved_after_end, amounts)),
            "spent": worst(map(component.loss, amounts)),
        }
    return of_each | {"": {"reserved": worst(reserved), "spent": worst(spent)}}


@pytest.mark.more
def test_every_number_is_that_of_the_charges_over_a_random_history(service: Service):
    draw = random.Random(11)
    stream, budget = service.stream(epsilon=6, delta=1e-5), PrivacyLoss.of(Decimal(6), Decimal("1e-5"))
    names, running, records, seen = [], [], 0, set()
    for step in range(8):
        if step < 4:
            mechanism = draw.choice(
                ({"kind": "independent_batches", "batch": 5}, {"kind": "sliding_window", "block": 5, "blocks": 2})
            )
            epsilon, delta = draw.choice((0.1, 0.25, 0.7)), draw.choice((0, 1e-6))
            names.append(service.publish(stream, mechanism, epsilon=epsilon, delta=delta))
            running.append(names[-1])
        elif draw.random() < 0.6 and len(running) > 1:
            ok(service.client().delete(f"/v1/publications/{running.pop(draw.randrange(len(running)))}"))
        records = service.post(stream, [[1, 0]] * 10, [0, 1] * 5)[1]
        service.reaches(running[0], time=records)
        name = draw.choice(names)
        shown = card(service, name)
        expected = added_up(service, stream, shown["ledger"]["charge"], records)
        expected[""]["for_life"] = budget
        assert shown["ledger"]["records"] == records
        for subject, key in (("publication", name), ("stream", "")):
            for amount, loss in expected[key].items():
                for parameter in ("epsilon", "delta"):
                    assert shown[parameter][subject][amount] == loss.shown()[parameter], (step, subject, amount)
        printed = page(service, name)
        assert f"ε = {shown['epsilon']['publication']['for_life']:g} for life" in printed
        assert f"δ = {shown['delta']['publication']['for_life']:g} for life" in printed
        seen.add((shown["state"], shown["delta"]["publication"]["for_life"] > 0))
    assert len(seen) > 1
    (newest,) = ok(service.client().get(f"/v1/streams/{stream}/ledger/charges?limit=1"))["items"]
    assert card(service, names[0])["ledger"]["hash"] == newest["hash"]


def test_where_a_budget_is_held_in_rho_each_number_is_its_own(service: Service):
    """Of eight numbers none equals another, so that none can stand in another's place."""
    stream = service.stream(budget={"epsilon": 6, "delta": 1e-5, "accounting": "zcdp"})
    shape = {"kind": "multi_resolution", "base": 20}
    first, second = (service.publish(stream, shape, epsilon=epsilon, delta=1e-6) for epsilon in (1, 2))
    service.post(stream, [[1, 0]] * 20, [0, 1] * 10)
    for name in (first, second):
        service.reaches(name, time=20)
    client = service.client()
    charges = ok(client.get(f"/v1/streams/{stream}/ledger/charges"))["items"]
    spent = {charge["publication"]: charge["rho"] for charge in charges}
    capacity = ok(client.get(f"/v1/publications/{first}"))["plan"]["guarantee"]["capacity"]
    whole = ok(client.get(f"/v1/streams/{stream}"))
    shown = card(service, first)["rho"]
    assert shown["publication"]["for_life"] == shown["publication"]["reserved"] == pytest.approx(capacity)
    assert shown["publication"]["spent"] == pytest.approx(spent[first])
    assert shown["stream"]["for_life"] == pytest.approx(whole["budget"]["rho"])
    assert shown["stream"]["reserved"] == pytest.approx(whole["reserved"]["rho"])
    assert shown["stream"]["spent"] == pytest.approx(spent[first] + spent[second])
    numbers = [capacity, spent[first], *shown["stream"].values()]
    assert len(set(numbers)) == len(numbers)
    printed = page(service, first)
    for amount, heading in (
        ("for_life", "may lose for life"),
        ("reserved", "reserved now"),
        ("spent", "charged so far"),
    ):
        row = re.search(rf">{heading}</th><td>(.*?)</td><td>(.*?)</td>", printed)
        assert row is not None
        for cell, of in zip(row.groups(), ("publication", "stream"), strict=True):
            assert cell.endswith(f"ρ {shown[of][amount]}"), (amount, of)


@pytest.fixture(scope="module")
def name(service: Service) -> str:
    return service.publish(service.stream(epsilon=3), {"kind": "independent_batches", "batch": 5}, publish_delay=2.5)


def test_the_page_has_each_part_under_its_heading_and_loads_nothing(service: Service, name):
    answer = service.client().get(f"/v1/publications/{name}/card", headers={"Accept": "text/html"})
    assert answer.headers["content-type"].startswith("text/html")
    assert tuple(re.findall(r"<h2>(.*?)</h2>", answer.text)) == HEADINGS
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"<script|<link|<img|https?://|\sstyle=", answer.text)
    shown = card(service, name)
    for text in (shown["unit"]["text"], *shown["public"], *shown["protected"], *shown["trust_boundary"]):
        assert text.replace("'", "&#x27;") in answer.text
    assert any("multiples of 2.5 s" in each for each in shown["public"])
    assert shown["warnings"] == []
    assert shown["rho"] is None
    assert "ρ" not in answer.text


@pytest.mark.parametrize(
    ("accept", "query", "media_type"),
    [
        ("*/*", "", "application/json"),
        ("application/json", "", "application/json"),
        ("text/html,application/xml;q=0.9,*/*;q=0.8", "", "text/html"),
        ("text/html", "?format=json", "application/json"),
        ("application/json", "?format=html", "text/html"),
    ],
)
def test_accept_or_the_parameter_chooses_the_format(service: Service, name, accept, query, media_type):
    answer = service.client().get(f"/v1/publications/{name}/card{query}", headers={"Accept": accept})
    assert answer.headers["content-type"].partition(";")[0] == media_type
    assert answer.headers["vary"] == "Accept"


def test_other_formats_are_refused(service: Service, name):
    client, url = service.client(), f"/v1/publications/{name}/card"
    refused(client.get(url, headers={"Accept": "application/pdf"}), 406, "not-acceptable")
    refused(client.get(f"{url}?format=pdf"), 422, "invalid-request")


def test_it_warns_of_a_ledger_that_does_not_verify_and_of_records_that_expire(service: Service):
    stream = service.stream(epsilon=3, delta=1e-5)
    learner = {"kind": "noisy_gradient_descent"}
    name = service.publish(stream, EXPIRING, delta=1e-6, learner=learner)
    assert [each.partition(":")[0] for each in card(service, name)["warnings"]] == ["Records expire"]
    service.first_release(name, stream, records=3)
    database = Database(str(service.settings.database_url))
    with database.transaction() as connection:
        streams.distrust(connection, streams.find(connection, stream), "charge <7>: its hash is another")
    shown = card(service, name)
    assert shown["state"] == "halted"
    assert "charge <7>" in shown["warnings"][0]
    assert "charge &lt;7&gt;" in page(service, name)
    with database.transaction() as connection:
        streams.distrust(connection, streams.find(connection, stream), None)
    database.close()


def test_on_a_stream_with_units_the_promise_is_about_a_unit(service: Service):
    stream = service.stream(epsilon=3, delta=1e-5, unit={"max_records": 4, "min_separation": 2})
    learner = {"kind": "noisy_gradient_descent"}
    name = service.publish(stream, {"kind": "online_leader", "batch": 4}, epsilon=1, delta=1e-6, learner=learner)
    shown = card(service, name)
    assert {key: shown["unit"][key] for key in ("kind", "max_records", "min_separation")} == {
        "kind": "unit",
        "max_records": 4,
        "min_separation": 2,
    }
    assert "4 of its records count, each at least 2 records after" in shown["unit"]["text"]
    assert "with one unit as with any other" in shown["epsilon"]["text"]
    assert shown["epsilon"]["publication"]["for_life"] == 1
    assert any("of one unit" in each for each in shown["public"])
    assert "for the unit with the most" in page(service, name)


def test_a_browser_opens_it_with_its_session(service: Service, name):
    with httpx.Client(base_url=service.url) as client:
        key = service.key("read")
        ok(client.post("/v1/session", headers={"Authorization": f"Bearer {key}"}), 201)
        answer = client.get(f"/v1/publications/{name}/card", headers={"Accept": "text/html"})
        assert answer.status_code == 200
