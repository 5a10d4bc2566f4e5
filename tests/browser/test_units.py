"""Pages of streams with units, and of budgets that are held in ρ: who is protected, and how much each has used."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.looking import activate, enter, show, until
from tests.conftest import Service, ok, publication

FACTOR = 4


@pytest.fixture(scope="module")
def people(service: Service) -> str:
    """A stream with units whose budget is held in ρ."""
    return service.stream(
        budget={"epsilon": 2, "delta": 1e-5, "accounting": "zcdp"},
        unit={"max_records": FACTOR},
        evaluation={"every": 3},
    )


@pytest.fixture(scope="module", params=[{"epsilon": 0.1, "delta": 0}, {"epsilon": 0.4, "delta": 1e-6}])
def fitted(service: Service, people: str, request: pytest.FixtureRequest) -> str:
    """Publishes on it, with one release."""
    body = publication(people, {"kind": "sliding_window", "block": 20, "blocks": 1}) | {"privacy": request.param}
    start = ok(service.client().get(f"/v1/streams/{people}"))["records"]
    name = ok(service.client().post("/v1/publications", json=body | {"start": start}), 201)["name"]
    records = {"x": [[1, 0]] * 20, "y": [0, 1] * 10, "unit": [f"{start}-{each}" for each in range(20)]}
    ok(service.client().post(f"/v1/streams/{people}/records", json=records), 202)
    service.reaches(name, time=20)
    return name


@pytest.mark.more
def test_a_publication_speaks_of_units_and_tells_one_sum(service: Service, page: Page, fitted):
    enter(page.context, service.key("read"))
    page.goto(f"/dashboard/publications/{fitted}")
    plan = page.locator("#plan")
    expect(plan).to_contain_text(f"Take all records of any one unit of the stream, such as a person, of which {FACTOR}")
    expect(plan).to_contain_text(f"{FACTOR} times its charges")
    expect(plan).to_contain_text("if it counts")
    expect(plan).not_to_contain_text("any one record")
    tile = page.locator("#tiles .fact").filter(has_text="Privacy used")
    expect(tile).to_contain_text("the most any unit has used")
    until(page, "document.getElementById('paid').data")
    drawn = page.locator("#paid-said").inner_text()
    assert drawn.endswith(", the most any unit has used")
    used = re.match(r"[ερ] [\d.]+ of [\d.]+", drawn)
    assert used is not None
    expect(tile.locator("dd")).to_contain_text(used[0])
    show(page, "units")


@pytest.mark.more
def test_a_stream_tells_its_unit_and_what_is_set_aside(service: Service, page: Page, people, fitted):
    enter(page.context, service.key("read"))
    page.goto(f"/dashboard/streams/{people}")
    expect(page.locator("#facts")).to_contain_text("Used, the most by any unit")
    activate(page.get_by_text("Schema and settings"))
    expect(page.locator("#facts")).to_contain_text(f"all records of a unit: {FACTOR} count, each at least 1 after")
    expect(page.locator("#facts")).to_contain_text("every 3rd unit is set aside")
    expect(page.locator("#shares")).to_contain_text("Used, the most by any unit")


@pytest.mark.more
def test_a_stream_without_units_tells_that_too(service: Service, page: Page):
    enter(page.context, service.key("read"))
    page.goto(f"/dashboard/streams/{service.stream()}")
    activate(page.get_by_text("Schema and settings"))
    expect(page.locator("#facts")).to_contain_text("each record by itself")
    expect(page.locator("#facts")).to_contain_text("no record is set aside")
