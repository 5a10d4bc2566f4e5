"""Somebody who is no expert asks what privacy costs, and sees curves, a table, and files to take away."""

import csv
import io
import json

import pytest
from playwright.sync_api import Dialog, Page, Route, expect

from tests.browser.looking import show, until
from tests.conftest import Service

TABLE = "".join(f"{row % 7},{(row * 3) % 11},{'up' if row % 7 > 3 else 'down'}\n" for row in range(400))


def choose(page: Page, name: str, content: str = TABLE) -> None:
    """Upload a table, which becomes the data that are compared on."""
    if not page.get_by_label("CSV or npz file").is_visible():
        page.get_by_text("Use data of your own").click()
    page.get_by_label("CSV or npz file").set_input_files(
        {"name": name, "mimeType": "text/csv", "buffer": content.encode()}
    )
    page.get_by_role("button", name="Upload").click()


def upload(page: Page, name: str) -> None:
    """Choose the table as the data, 20 records of it a release."""
    choose(page, name)
    expect(page.get_by_text(f"{name} is there")).to_be_visible()
    for batch in page.get_by_label("Records a release").all():
        batch.fill("20")


@pytest.mark.more
def test_a_comparison_is_asked_for_and_its_curves_and_table_appear(reader: Page, service: Service):
    page = reader
    page.goto("/dashboard/explorer")
    expect(page.get_by_text("Nothing shown here is private")).to_be_visible()
    upload(page, "up.csv")
    page.get_by_label("Privacy, ε").fill("1, 10")
    page.get_by_label("Runs of each").fill("2")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#progress")).to_have_text("10 of 10 runs", timeout=200_000)
    expect(page.locator("#state")).to_have_text("Done")
    rows = page.locator("#scores tbody tr")
    expect(rows).to_have_count(6)
    expect(rows.first).to_contain_text("without noise")
    until(page, "document.querySelectorAll('#curves .scatterlayer .trace').length >= 6")
    until(page, "document.querySelectorAll('#tradeoff .scatterlayer .trace').length >= 4")
    show(page, "explorer")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV", exact=True).click()
    lines = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert {line["line"] for line in lines} == {"online leader, 20", "window statistics, 20"}
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON", exact=True).click()
    assert json.loads(download.value.path().read_text())["done"] == 10
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG", exact=True).click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


@pytest.mark.more
def test_what_is_wrong_is_said_and_what_runs_can_be_cancelled(reader: Page):
    page = reader
    page.goto("/dashboard/explorer")
    upload(page, "another.csv")
    page.get_by_text("The map as JSON").click()
    page.get_by_label("Feature map as JSON").fill("{not json")
    page.get_by_role("button", name="Compare").click()
    for _ in range(2):
        with page.expect_response("**/explorations?limit=20"):  # the page looks regularly, and says so still
            expect(page.locator("#problem")).to_contain_text("no JSON: the feature map")
    expect(page.locator("#problem")).to_contain_text("This was not done")
    page.get_by_label("Features", exact=True).select_option("fourier")
    page.get_by_label("Privacy, ε").fill("1, 2, 3, 4, 5, 6, 7, 8")
    page.get_by_label("Runs of each").fill("10")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("button", name="Cancel").press("Enter")  # a mouse misses it where the page moves meanwhile
    expect(page.locator("#state")).to_have_text("Cancelled")
    expect(page.locator("#before tbody tr").first).to_contain_text("Cancelled")


@pytest.mark.more
def test_sizes_suit_the_data_set_and_a_line_that_releases_nothing_says_why(reader: Page):
    page = reader
    page.goto("/dashboard/explorer")
    batches = page.get_by_label("Records a release")
    expect(batches).to_have_count(2)
    assert [each.input_value() for each in batches.all()] == ["256", "256"]
    batches.nth(1).fill("250")
    choose(page, "few.csv", "".join(TABLE.splitlines(keepends=True)[:300]))
    expect(batches.first).to_have_value("10")
    expect(page.get_by_label("Name").first).to_have_value("online leader, 10")
    expect(batches.nth(1)).to_have_value("250")  # it was chosen by hand
    page.get_by_label("Privacy, ε").fill("1, 10")
    page.get_by_label("Runs of each").fill("1")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#progress")).to_have_text("6 of 6 runs", timeout=200_000)
    expect(page.locator("#scores tbody tr")).to_have_count(3)
    problem = page.locator("#bar").get_by_text("window statistics, 250")
    expect(problem).to_have_count(1)
    expect(problem).to_contain_text("240 records")


@pytest.mark.more
def test_what_could_not_be_looked_up_at_first_comes_later(reader: Page):
    page = reader
    listing = "**/v1/explorer/datasets"
    page.route(listing, lambda route: route.abort())
    page.goto("/dashboard/explorer")
    expect(page.locator("#problem")).to_contain_text("Not up to date")
    page.unroute(listing)
    expect(page.get_by_label("Records a release")).to_have_count(2)
    expect(page.get_by_label("Data set", exact=True)).to_have_value("weather")
    expect(page.locator("#problem")).to_be_empty()


@pytest.mark.more
def test_what_was_uploaded_stays_chosen_though_the_first_list_comes_late(reader: Page):
    page, late = reader, []
    listing = "**/v1/explorer/datasets"

    def hold(route: Route) -> None:
        late.append((route, route.fetch()))

    page.route(listing, hold, times=1)
    page.goto("/dashboard/explorer")
    until(page, "document.getElementById('dataset').options.length === 0")
    choose(page, "early.csv")
    expect(page.get_by_text("early.csv is there")).to_be_visible()
    ((route, answer),) = late
    with page.expect_response(listing):
        route.fulfill(response=answer)
    with page.expect_response("**/explorations?limit=20"):  # what came before that is drawn
        pass
    expect(page.get_by_label("Data set", exact=True).locator("option:checked")).to_have_text("early.csv")


@pytest.mark.more
def test_a_data_set_is_deleted_after_a_question(reader: Page):
    page = reader
    page.goto("/dashboard/explorer")
    listed = page.get_by_label("Data set", exact=True)
    delete = page.get_by_role("button", name="Delete this data set")
    expect(listed).to_have_value("weather")
    expect(delete).to_be_hidden()
    choose(page, "deleted.csv")
    expect(listed.locator("option:checked")).to_have_text("deleted.csv")
    questions: list[str] = []

    def answer(dialog: Dialog, yes: bool) -> None:
        questions.append(dialog.message)
        dialog.accept() if yes else dialog.dismiss()

    page.once("dialog", lambda dialog: answer(dialog, yes=False))
    delete.click()
    expect(listed.locator("option:checked")).to_have_text("deleted.csv")
    page.once("dialog", lambda dialog: answer(dialog, yes=True))
    delete.click()
    expect(listed.locator("option", has_text="deleted.csv")).to_have_count(0)
    expect(listed).to_have_value("weather")
    expect(page.get_by_label("Records a release").first).to_have_value("256")
    expect(delete).to_be_hidden()
    assert len(questions) == 2
    assert "deleted.csv" in questions[0]


@pytest.mark.more
def test_mistakes_are_not_called_out_of_date(reader: Page):
    page = reader
    page.goto("/dashboard/explorer")
    expect(page.get_by_label("Records a release")).to_have_count(2)
    choose(page, "semicolons.csv", TABLE.replace(",", ";"))
    problem = page.locator("#problem")
    expect(problem).to_contain_text("separated by commas")
    expect(problem).to_contain_text("This was not done")


@pytest.mark.more
def test_names_of_lines_are_text_in_charts_too(reader: Page):
    page = reader
    page.goto("/dashboard/explorer")
    upload(page, "names.csv")
    name = '<b>bold</b> <a href="https://example.org">link</a> &amp; more'
    page.get_by_label("Name").first.fill(name)
    page.get_by_label("Privacy, ε").fill("1")
    page.get_by_label("Runs of each").fill("1")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#progress")).to_have_text("4 of 4 runs", timeout=200_000)
    expect(page.locator("#scores tbody tr").first).to_contain_text(name)
    for chart in ("#curves", "#tradeoff"):
        legend = page.locator(chart).locator(".legendtext", has_text=name)
        expect(legend.first).to_be_attached()
        expect(page.locator(chart).locator(".legend :is(a, [style*='bold'])")).to_have_count(0)
    for batch in page.get_by_label("Records a release").all():
        batch.fill("5000")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#scores tbody tr")).to_have_count(0)
    until(page, "!document.querySelector('#curves .scatterlayer .trace')")  # nothing is left of the one before
    page.evaluate("location.hash = '#999999'")
    expect(page.locator("#problem")).to_contain_text("Not found")
    expect(page.locator("#result")).to_be_hidden()
