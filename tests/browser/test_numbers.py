"""Pages show the numbers that the HTTP interface answers, each under its own name and in its own unit."""

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser import browsers
from tests.conftest import Service, ok, publication

BATCH = 20


def digits(number: float) -> str:
    """As a page writes an amount."""
    return f"{number:.3g}"


@pytest.fixture(scope="module")
def streams(service: Service) -> dict[str, str]:
    """Publications, by their streams: of ε on a stream of ε, of ρ on one of ρ; each has spent a part of what it may."""
    asked = {
        "ε": ({"epsilon": 8}, {"epsilon": 3}),
        "ρ": ({"epsilon": 8, "delta": 1e-5, "accounting": "zcdp"}, {"rho": 0.5}),
    }
    made = {}
    for unit, (budget, privacy) in asked.items():
        stream = service.stream(budget=budget)
        body = publication(stream, {"kind": "multi_resolution", "base": BATCH}) | {"privacy": privacy}
        made[unit] = ok(service.client().post("/v1/publications", json=body), 201)["name"]
        service.post(stream, [[1, 0]] * BATCH, [0, 1] * (BATCH // 2))
        service.reaches(made[unit], time=BATCH)
    return made


def fact(page: Page, name: str) -> Locator:
    return page.locator(".fact").filter(has_text=name).locator("dd")


@pytest.mark.parametrize("unit", ["ε", "ρ"])
def test_used_and_reserved_are_told_apart_and_in_the_budgets_unit(service: Service, reader: Page, streams, unit):
    name = streams[unit]
    client = service.client()
    stream = ok(client.get(f"/v1/publications/{name}"))["stream"]
    info = ok(client.get(f"/v1/streams/{stream}"))
    part = {"ε": "epsilon", "ρ": "rho"}[unit]
    assert 0 < info["spent"][part] < 0.8 * info["reserved"][part] < 0.8 * info["budget"][part]

    reader.goto(f"/dashboard/streams/{stream}")
    for label, kind in (("Used, the most by any", "spent"), ("Reserved", "reserved"), ("Budget", "budget")):
        value = reader.locator("#facts .fact").filter(has=reader.locator("dt", has_text=label)).locator("dd")
        expect(value).to_contain_text(f"{unit} {digits(info[kind][part])}")
    bar = reader.locator("[role=img].meter").first
    expect(bar).to_have_attribute(
        "aria-label",
        f"Of {unit} {digits(info['budget'][part])}, {digits(info['reserved'][part])} is reserved and "
        f"{digits(info['spent'][part])} is spent",
    )
    widths = [
        bar.locator(f".{kind}").evaluate("part => parseFloat(part.style.width)") for kind in ("spent", "reserved")
    ]
    for width, kind in zip(widths, ("spent", "reserved"), strict=True):
        assert width == pytest.approx(100 * info[kind][part] / info["budget"][part], rel=1e-3)


@pytest.mark.parametrize("unit", ["ε", "ρ"])
def test_what_a_publication_has_used_is_in_the_unit_of_its_charges(service: Service, reader: Page, streams, unit):
    name = streams[unit]
    charged = ok(service.client().get(f"/v1/publications/{name}/releases/latest"))["charge"]
    capacity = ok(service.client().get(f"/v1/publications/{name}"))["plan"]["guarantee"]["capacity"]
    reader.goto(f"/dashboard/publications/{name}")
    used = charged[{"ε": "epsilon", "ρ": "rho"}[unit]]
    assert 0 < used < capacity
    expect(fact(reader, "Privacy used")).to_contain_text(f"{unit} {digits(used)} of {digits(capacity)}")


def test_records_to_come_and_records_that_wait_are_told_apart(
    browser: Browser, service: Service, reader: Page, streams
):
    name = streams["ε"]
    reader.goto(f"/dashboard/publications/{name}")
    expect(fact(reader, "Next release")).to_contain_text(f"in {BATCH} records")
    stream = service.stream()
    waiting = service.publish(stream, {"kind": "independent_batches", "batch": BATCH}, publish_delay=86_400)
    service.post(stream, [[1, 0]] * (BATCH + 7), [0] * (BATCH + 7))
    reader.goto(f"/dashboard/publications/{waiting}")
    expect(fact(reader, "Next release")).to_contain_text("7 behind")
    with browsers.watched(browsers.new_tab(browser, service)) as page:
        browsers.enter(page.context, service.key("read", streams=[stream]))  # of few streams all publications are shown
        page.goto("/dashboard")
        row = page.locator("tr").filter(has=page.get_by_role("link", name=waiting, exact=True))
        expect(row).to_contain_text("7 records behind")
