"""The page of a stream, as people use it."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.looking import DESKTOP, activate, show, sign_in, until
from tests.conftest import Service, ok, publication

pytestmark = pytest.mark.more


def test_who_follows_a_link_to_a_name_of_another_stream_too_is_warned(service: Service, page: Page):
    older, newer = service.stream(), service.stream()
    name = service.publish(older, {"kind": "sliding_window", "block": 10, "blocks": 3})
    limited = service.client(service.key("admin", streams=[newer]))
    body = publication(newer, {"kind": "sliding_window", "block": 10, "blocks": 3}) | {"name": name}
    ok(limited.post("/v1/publications", json=body), 201)
    sign_in(page, service.key("read"), f"/dashboard/streams/{newer}")
    activate(page.get_by_role("link", name=name))
    expect(page.locator("#trouble")).to_contain_text(f"This is the publication of stream {older}")
    expect(page.locator("#trouble")).to_contain_text(f"A key that sees {newer} alone opens the other one")
    page.goto(f"/dashboard/streams/{older}")
    activate(page.get_by_role("link", name=name))
    expect(page.locator("#plan")).to_contain_text("as likely as before")
    expect(page.locator("#trouble")).to_be_empty()


def test_the_ledger_is_drawn_as_it_is_told(service: Service, reader: Page, streams):
    stream = streams[0]
    reader.goto(f"/dashboard/streams/{stream}")
    until(reader, "document.getElementById('ledger').data")
    assert drawn(reader) == ledger_ranges(service, stream)
    reader.get_by_label("From record").fill("5")
    reader.get_by_label("to record").fill("24")
    reader.get_by_role("button", name="Show these").click()
    until(reader, "document.getElementById('ledger').data[0].x[0] === 5")
    assert drawn(reader) == ledger_ranges(service, stream, start=5, end=25)
    reader.get_by_role("button", name="Show all").click()
    until(reader, "document.getElementById('ledger').data[0].x[0] === 0")
    box = reader.locator("#ledger .nsewdrag").bounding_box()
    assert box is not None
    reader.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    reader.mouse.down()
    reader.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] / 2, steps=3)
    reader.mouse.up()
    until(reader, "document.getElementById('ledger').data[0].x[0] > 0")
    start, last = (int(reader.get_by_label(label).input_value()) for label in ("From record", "to record"))
    assert drawn(reader) == ledger_ranges(service, stream, start=start, end=last + 1)


def test_records_that_expired_are_hatched_and_said_to_be_unprotected(service: Service, reader: Page):
    stream = service.stream(epsilon=4, delta=1e-5)
    expiring = {"kind": "online_leader", "batch": 100, "noise": "window_tree", "window": 2, "expiry": "block"}
    learner = {"kind": "noisy_gradient_descent"}
    name = service.publish(
        stream, expiring | {"acknowledge_declassification": True}, learner=learner, epsilon=2, delta=1e-6
    )
    for _ in range(8):
        service.post(stream, [[0.5, -0.5], [-0.5, 0.5]] * 50, [1, 0] * 50)
    service.reaches(name, time=800)
    expired = ok(service.client().get(f"/v1/streams/{stream}"))["declassified"]
    assert expired > 0
    reader.goto(f"/dashboard/streams/{stream}")
    expect(reader.locator("#trouble")).to_contain_text(f"{expired} records no longer protected")
    until(reader, "document.getElementById('ledger').data")
    assert drawn(reader) == ledger_ranges(service, stream)
    show(reader, "stream")


def test_turning_pages_twice_at_once_turns_one_page_back_and_forth(service: Service, reader: Page):
    stream = service.stream(epsilon=100)
    name = service.publish(stream, {"kind": "sliding_window", "block": 1, "blocks": 1})
    service.post(stream, [[0.5, 0.5]] * 50, [0, 1] * 25)
    service.reaches(name, time=50)
    reader.goto(f"/dashboard/publications/{name}")
    rows = reader.locator("#releases tbody tr")
    newer, older = (reader.get_by_role("button", name=each) for each in ("Newer", "Older"))
    expect(rows.first).to_contain_text("version 50")
    older.evaluate("button => { button.click(); button.click(); }")
    expect(rows.first).to_contain_text("version 30")
    newer.click()
    expect(rows.first).to_contain_text("version 50")
    expect(newer).to_be_disabled()


def test_a_long_name_fits_on_a_phone(service: Service, reader: Page):
    """The narrowest one; as wide is a page of 1280 pixels that is shown at four times its size."""
    stream = service.stream(name="s" * 63)
    name = service.publish(stream, {"kind": "sliding_window", "block": 1, "blocks": 1}, name="p" * 63)
    reader.set_viewport_size({"width": 320, "height": 740})
    for path in (f"publications/{name}", f"streams/{stream}"):
        reader.goto(f"/dashboard/{path}")
        expect(reader.locator("main")).to_contain_text(stream)
        expect(reader.locator("[aria-busy]")).to_have_count(0)
        assert reader.evaluate("document.documentElement.scrollWidth") <= 320
    reader.set_viewport_size(DESKTOP)


def test_details_that_somebody_opened_stay_open(service: Service, reader: Page):
    stream = service.stream()
    reader.goto(f"/dashboard/streams/{stream}")
    activate(reader.get_by_text("Schema and settings"))
    expect(reader.get_by_text("Norm bound")).to_be_visible()
    service.post(stream, [[0.5, 0.5]], [0])
    expect(reader.locator("#facts")).to_contain_text("Records1")  # it was looked up and drawn again
    expect(reader.get_by_text("Norm bound")).to_be_visible()


def test_every_charge_with_its_hash(service: Service, reader: Page, streams):
    reader.goto(f"/dashboard/streams/{streams[0]}")
    (newest,) = ok(service.client().get(f"/v1/streams/{streams[0]}/ledger/charges?limit=1"))["items"]
    expect(reader.get_by_role("region", name="Charges").get_by_role("row").nth(1)).to_contain_text(newest["hash"][:12])


def drawn(reader: Page) -> list[tuple[int, int, float | None]]:
    """The ranges of the chart: what they have spent, None where they are hatched."""
    spent, hatched = reader.evaluate("document.getElementById('ledger').data.map(({x, y}) => ({x, y}))")
    assert [(one is None) for one in spent["y"]] == [(other is not None) for other in hatched["y"]]
    return list(zip(spent["x"][::2], spent["x"][1::2], spent["y"][::2], strict=True))


def ledger_ranges(service: Service, stream: str, **part: int) -> list[tuple[int, int, float | None]]:
    ranges = ok(service.client().get(f"/v1/streams/{stream}/ledger", params=part))["ranges"]
    return [(each["start"], each["end"], each["epsilon"]) for each in ranges]
