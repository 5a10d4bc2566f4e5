"""Names of columns and classes on the pages: of a stream, of a publication, and for people who label."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.api.test_labels import post, publish, unlabelled
from tests.browser.looking import show, sign_in
from tests.conftest import Service

COLUMNS = [{"name": "height", "unit": "cm", "range": [0, 80]}, {"name": "weight", "unit": "kg"}]
CLASSES = ["cat", "dog"]


@pytest.mark.more
def test_pages_show_names_of_columns_and_classes(service: Service, page: Page):
    stream = unlabelled(service, columns=COLUMNS, class_names=CLASSES)
    publication = publish(service, stream)
    sign_in(page, service.key("read", "label", streams=[stream]))
    for path in (f"streams/{stream}", f"publications/{publication}"):
        page.goto(f"/dashboard/{path}")
        expect(page.locator("main")).to_contain_text("height (cm) from 0 to 80, weight (kg)")
        expect(page.locator("main")).to_contain_text("0 cat, 1 dog")


@pytest.mark.more
def test_a_publication_shows_few_of_many_names_and_its_stream_all(service: Service, reader: Page):
    stream = service.stream(features=25, columns=[f"column {number}" for number in range(25)])
    publication = service.publish(stream, {"kind": "sliding_window", "block": 10, "blocks": 3})
    reader.goto(f"/dashboard/publications/{publication}")
    expect(reader.locator("#names")).to_contain_text("column 19 and 5 more")
    reader.goto(f"/dashboard/streams/{stream}")
    expect(reader.locator("#facts")).to_contain_text("column 23, column 24")


@pytest.mark.more
def test_who_labels_sees_names_and_what_was_sent(service: Service, page: Page):
    stream = unlabelled(service, columns=COLUMNS, class_names=CLASSES)
    publication = publish(service, stream, lease_seconds=3000)
    post(service, stream, [[60, 5], [20, 4], [40, 3], [80, 2]])
    sign_in(page, service.key("read", "label", streams=[stream]))
    page.goto(f"/dashboard/publications/{publication}/label")
    expect(page.locator("#record-title")).to_have_text(re.compile(r"^Record \d"))
    record = int(page.locator("#record-title").inner_text().removeprefix("Record "))
    height, weight = [(60, 5), (20, 4), (40, 3), (80, 2)][record]
    rows = page.locator("#features dl > div")
    expect(rows.nth(0)).to_have_text(f"height{height} cm")
    expect(rows.nth(1)).to_have_text(f"weight{weight} kg")
    expect(page.get_by_role("button", name="1 dog")).to_be_visible()
    page.keyboard.press("1")
    expect(page.locator("#held li")).to_contain_text("1, dog")
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    show(page, "label-names")


@pytest.mark.more
def test_the_records_that_a_stream_suggests_have_names(service: Service, reader: Page):
    stream = service.stream(columns=COLUMNS, class_names=CLASSES)
    reader.goto(f"/dashboard/streams/{stream}")
    expect(reader.locator("pre", has_text="/records")).to_contain_text(
        '{"x":[{"height":0,"weight":0},{"height":1,"weight":1}],"y":["cat","dog"]}'
    )
