"""The dashboard, as people use it."""

import itertools
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
import sqlalchemy
from playwright.sync_api import Page, expect

from service.store.database import Database
from tests.browser.looking import activate, serious, show, sign_in, until
from tests.conftest import Service, ok, unique
from tests.docs.pages import ROOT, blocks
from tests.docs.test_documentation import ON_CATEGORIES

WINDOW = {"kind": "sliding_window", "block": 2, "blocks": 1}


@pytest.mark.more
@pytest.mark.parametrize("where", ["streams/none", "publications/none", "publications/none/label"])
def test_of_what_is_not_there_a_page_says_so_and_draws_nothing(service: Service, page: Page, where):
    sign_in(page, service.key("read", "label"), f"/dashboard/{where}")
    expect(page.get_by_role("alert")).to_contain_text("Not found")
    expect(page.locator("main").get_by_role("button")).to_have_count(0)
    for drawn in (".card", ".tiles", ".live", ".heading a"):
        for each in page.locator(drawn).all():
            expect(each).to_be_hidden()


class TestSigningIn:
    def test_who_is_not_signed_in_is_asked_to_and_led_back(self, service: Service, page: Page, streams):
        page.goto(f"/dashboard/streams/{streams[0]}")
        expect(page).to_have_url(re.compile(r"/dashboard/sign-in\?next="))
        expect(page.get_by_label("API key")).to_be_focused()  # its script runs
        show(page, "sign-in")
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("No such key")
        page.get_by_label("API key").fill(service.key("read"))
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(f"/dashboard/streams/{streams[0]}$"))

    @pytest.mark.more
    def test_nothing_of_a_key_stays_in_the_browser(self, service: Service, page: Page):
        key = service.key("read")
        sign_in(page, key)
        stored = page.evaluate(
            "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
        )
        assert stored == f'[{{}},{{}},"","{service.url}/dashboard"]'
        assert key not in str(page.context.cookies())
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("API key")).to_be_visible()
        assert page.context.cookies() == []
        page.goto("/dashboard")
        expect(page.get_by_label("API key")).to_be_visible()
        expect(page.get_by_role("alert")).to_be_empty()

    @pytest.mark.more
    def test_nobody_is_led_to_another_site(self, service: Service, page: Page):
        page.goto("/dashboard/sign-in?next=//elsewhere.example")
        page.get_by_label("API key").fill(service.key("read"))
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{service.url}/dashboard")


class TestOverview:
    def test_streams_and_publications_at_a_glance(self, service: Service, page: Page, streams):
        busy, quiet = streams
        sign_in(page, service.key("read", streams=[busy, quiet]))
        card = page.get_by_role("article", name=busy)
        row = card.get_by_role("row", name=f"{busy}-trend")
        expect(row).to_contain_text("in 10")
        described = ok(service.client().get(f"/v1/streams/{busy}"))
        expect(card).to_contain_text(f"Reservedε {described['reserved']['epsilon']:.3g}")
        expect(page.get_by_role("article", name=quiet)).to_contain_text("No publications yet")
        expect(page.get_by_role("status")).to_have_text("2 streams, 1 publication")
        show(page, "overview")

    @pytest.mark.more
    def test_only_what_the_key_may_read(self, service: Service, page: Page, streams):
        sign_in(page, service.key("read", streams=[streams[1]]))
        expect(page.get_by_role("article")).to_have_count(1)
        page.goto(f"/dashboard/streams/{streams[0]}")
        expect(page.get_by_role("alert")).to_contain_text("no such stream")

    @pytest.mark.more
    def test_of_many_streams_there_is_a_line_each_and_a_search(self, service: Service, page: Page, streams):
        more = [service.stream(features=2) for _ in range(15)]
        sign_in(page, service.key("read", streams=[*streams, *more]))
        rows = page.get_by_role("region", name="Streams, newest first").locator("tbody").get_by_role("row")
        expect(rows).to_have_count(17)
        expect(rows.filter(has_text=f"{streams[0]}-trend")).to_contain_text("of 4")
        show(page, "overview-many")
        assert page.evaluate("document.documentElement.scrollHeight") < 1200
        page.get_by_label("Search").fill(f"SLIDING running {streams[0]}")
        expect(page.get_by_role("article", name=streams[0])).to_be_visible()
        expect(page.get_by_role("article")).to_have_count(1)
        expect(page.get_by_role("status")).to_have_text("17 streams, 1 publication, 1 found")
        page.reload()  # or come back to it
        expect(page.get_by_role("status")).to_have_text("17 streams, 1 publication, 1 found")
        page.get_by_label("Search").fill("no such thing")
        expect(page.locator("#streams")).to_have_text("No stream has all these words.")
        page.get_by_label("Search").fill("")
        expect(rows).to_have_count(17)

    @pytest.mark.more
    def test_a_line_of_many_hides_nothing_that_needs_attention(self, service: Service, page: Page):
        streams = [service.stream(features=2, epsilon=100) for _ in range(6)]
        oldest, *_ = names = [service.publish(streams[0], WINDOW) for _ in range(8)]
        service.first_release(oldest, streams[0], records=2)
        for name in names:
            service.reaches(name, time=2)
        service.first_release(service.publish(streams[1], WINDOW), streams[1], records=2)
        halt = "UPDATE publications SET state = 'halted', seal = '' WHERE name = :name"
        distrust = "UPDATE streams SET distrusted = 'charge 1: its hash' WHERE name = :name"
        database = Database(str(service.settings.database_url))
        with database.transaction() as connection:
            connection.execute(sqlalchemy.text(halt), {"name": oldest})
            connection.execute(sqlalchemy.text(distrust), {"name": streams[1]})
        database.close()
        sign_in(page, service.key("read", streams=streams))
        row = page.get_by_role("region", name="Streams, newest first").locator("tbody tr").filter(has_text=oldest)
        shown = row.get_by_role("link")
        expect(page.get_by_role("status")).to_contain_text("3 need attention")
        expect(shown).to_have_text([streams[0], oldest, *reversed(names[4:]), "+3"])
        expect(row).to_contain_text("Halted")
        page.set_viewport_size({"width": 360, "height": 740})
        for each in (shown.nth(1), row.get_by_text("Halted"), shown.last):
            expect(each).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        show(page, "overview-attention")
        page.get_by_label("Search").fill("not trusted")
        expect(page.get_by_role("article")).to_have_count(1)
        expect(page.get_by_role("article", name=streams[1])).to_be_visible()

    @pytest.mark.more
    def test_where_there_is_nothing_it_says_how_to_begin(self, service: Service, page: Page):
        sign_in(page, service.key("read", streams=["not-yet-there"]))
        expect(page.get_by_role("heading", name="No streams yet")).to_be_visible()
        expect(page.locator("pre")).to_contain_text(f"curl '{service.url}/v1/streams'")


@pytest.mark.more
@pytest.mark.parametrize("delta", [0, 1e-6])
@pytest.mark.parametrize("task", [{"kind": "classification", "classes": 3}, {"kind": "regression", "bound": 1}])
def test_the_request_that_a_stream_suggests_is_accepted(service: Service, reader: Page, task, delta):
    stream = service.stream(task=task, delta=delta)
    reader.goto(f"/dashboard/streams/{stream}")
    shown = reader.locator("#publish pre")
    expect(shown).to_contain_text(f'"stream": "{stream}"')
    body = json.loads(re.search(r"-d '(.*)'", shown.inner_text(), re.DOTALL)[1])
    assert ok(service.client().post("/v1/publications", json=body), 201)["name"] == f"{stream}-model"


@pytest.fixture(scope="class")
def trend(reader: Page, streams) -> Page:
    """The page of the one publication."""
    reader.goto(f"/dashboard/publications/{streams[0]}-trend")
    return reader


class TestPublication:
    def test_charts_are_what_was_released(self, service: Service, trend: Page, streams):
        name = f"{streams[0]}-trend"
        until(trend, "document.getElementById('seen').data")
        drawn = trend.evaluate("['noise', 'paid', 'seen'].map((id) => document.getElementById(id).data.at(-1))")
        released = ok(service.client().get(f"/v1/publications/{name}/releases"))["items"][::-1]
        worst = next(
            each["spent"]
            for each in ok(service.client().get(f"/v1/streams/{streams[0]}/ledger"))["publications"]
            if each["name"] == name
        )
        assert [each["y"] for each in drawn][::2] == [
            [each["noise"]["scale"] for each in released],
            [each["time"] for each in [*released, released[-1]]],
        ]
        paid = [
            each["charge"]["epsilon"] * (each["fit"]["start"] <= worst["record"] < each["fit"]["end"])
            for each in released
        ]
        assert drawn[1]["y"] == pytest.approx([*itertools.accumulate(paid, initial=0), sum(paid)])
        assert drawn[1]["y"][-1] == pytest.approx(worst["epsilon"])
        show(trend, "publication")

    @pytest.mark.more
    def test_a_release_is_told_and_downloaded(self, service: Service, trend: Page, streams):
        name = f"{streams[0]}-trend"
        trend.get_by_role("link", name="version 1", exact=True).focus()
        trend.keyboard.press("Enter")
        dialog = trend.get_by_role("dialog", name=f"{name}, version 1")
        release = service.client().get(f"/v1/publications/{name}/releases/1")
        expect(dialog).to_contain_text(f"charge {release.json()['charge']['id']} of the stream")
        accepts = {"JSON": "application/json", "safetensors": "application/vnd.safetensors"}
        for kind, accept in accepts.items():
            with trend.expect_download() as downloading:
                dialog.get_by_role("button", name=f"Download {kind}").click()
            assert downloading.value.suggested_filename == f"{name}-1.{kind.lower()}"
            served = service.client().get(f"/v1/publications/{name}/releases/1", headers={"Accept": accept})
            assert Path(downloading.value.path()).read_bytes() == served.content
        assert serious(trend) == []
        trend.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(trend).to_have_url(re.compile(f"{name}$"))

    @pytest.mark.more
    def test_how_its_cost_adds_up(self, service: Service, trend: Page, streams):
        name = f"{streams[0]}-trend"
        plan = ok(service.client().get(f"/v1/publications/{name}"))["plan"]
        region = trend.get_by_role("region", name="How its cost adds up")
        expect(region).to_contain_text("within a factor of 7.39 (e to the power of ε = 2)")
        rows = region.get_by_role("region", name="Payments of the record that pays most").get_by_role("row")
        expect(rows).to_have_count(1 + len(plan["lifetime"]["parts"]))
        for row, part in zip(rows.all()[1:], plan["lifetime"]["parts"], strict=True):
            expect(row).to_contain_text(part["what"][1:])
            expect(row).to_contain_text(f"{float(100 * Fraction(part['share'])):.3g} %")

    @pytest.mark.more
    def test_a_release_appears_without_reloading(self, service: Service, trend: Page, streams):
        stream, name = streams[0], f"{streams[0]}-trend"
        newest = trend.get_by_role("region", name="Releases").get_by_role("row").nth(1)
        latest = ok(service.client().get(f"/v1/publications/{name}"))["latest"]
        expect(newest).to_contain_text(f"version {latest}")
        expect(trend.get_by_text("live", exact=True)).to_be_visible()
        expect(trend.locator("#seen .main-svg").first).to_be_visible()
        trend.evaluate("window.still = 'here'")
        service.post(stream, [[0.5, 0.5]] * 10, [0, 1] * 5)
        expect(newest).not_to_contain_text(f"version {latest}")
        newer = ok(service.client().get(f"/v1/publications/{name}"))["latest"]
        assert newer > latest
        expect(newest).to_contain_text(f"version {newer}")
        expect(trend.locator("#tiles")).to_contain_text(f"version {newer}")
        until(trend, f"document.getElementById('noise').data.at(-1).text.at(-1) === 'version {newer}'")
        assert trend.evaluate("window.still") == "here"

    def test_what_halted_is_loud_and_says_why(self, service: Service, page: Page):
        stream = service.stream()
        name = service.publish(stream, WINDOW)
        service.first_release(name, stream, records=2)
        database = Database(str(service.settings.database_url))
        with database.transaction() as connection:
            say = "UPDATE streams SET halted = 'the log was cut', distrusted = 'charge 1: its hash' WHERE name = :name"
            connection.execute(sqlalchemy.text(say), {"name": stream})
        database.close()
        sign_in(page, service.key("read", streams=[stream]))
        expect(page.get_by_role("status")).to_contain_text("2 need attention")
        expect(page.get_by_role("article")).to_contain_text("charge 1: its hash")
        activate(page.get_by_role("link", name=name))
        trouble = page.locator("#trouble")
        expect(trouble).to_contain_text("the ledger of its stream does not verify: charge 1: its hash")
        expect(trouble).to_contain_text("the log was cut")
        expect(trouble).to_contain_text(f"POST /v1/streams/{stream}/resume")
        show(page, "halted")


EXAMPLES = {
    path.stem: json.loads(blocks(path.read_text(), "json")[0]) for path in (ROOT / "docs/mechanisms").glob("*.md")
}


class TestEveryMechanism:
    @pytest.mark.more
    @pytest.mark.parametrize("kind", sorted(EXAMPLES))
    def test_its_plan_is_told(self, service: Service, reader: Page, kind):
        """Whatever shape it has; what a page cannot draw is an error on its console."""
        of_categories = {"features": None, "task": {"kind": "categorical", "cardinality": 5}}
        more = (
            of_categories
            if ON_CATEGORIES & {each["kind"] for each in EXAMPLES[kind].values() if "kind" in each}
            else {}
        )
        stream = service.stream(epsilon=10, delta=1e-5, **more)
        example = EXAMPLES[kind] | {"name": unique("example"), "stream": stream}
        if "of" in (mechanism := example["mechanism"]) and isinstance(mechanism["of"], list):
            batches = {"kind": "independent_batches", "batch": 100}
            of = [service.publish(stream, batches) for _ in mechanism["of"]]
            example |= {"mechanism": mechanism | {"of": of}}
        answer = service.client().post("/v1/publications", json=example)
        plan = ok(answer, 201)["plan"]
        reader.goto(f"/dashboard/publications/{example['name']}")
        region = reader.get_by_role("region", name="How its cost adds up")
        expect(region).to_contain_text("as likely as before")
        for part in plan["lifetime"].get("parts", []):
            expect(region).to_contain_text(part["what"][1:])
        expect(reader.locator("#problem")).to_be_empty()
        expect(reader.locator("#releases")).to_contain_text("Nothing is published yet.")
