"""The dashboard, as people use it."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.looking import show, sign_in
from tests.conftest import Service, ok


@pytest.fixture(scope="module")
def streams(service: Service) -> Iterator[tuple[str, str]]:
    """One stream that publishes, and one that nothing is published of."""
    busy, quiet = service.stream(features=2, epsilon=4), service.stream(features=2)
    service.publish(busy, {"kind": "sliding_window", "block": 10, "blocks": 3}, epsilon=2, name=f"{busy}-trend")
    service.post(busy, [[0.6, 0.1 * each] for each in range(-5, 5)] * 5, [each % 2 for each in range(50)])
    service.released(f"{busy}-trend", time=50)
    return busy, quiet


class TestSigningIn:
    def test_who_is_not_signed_in_is_asked_to_and_led_back(self, service: Service, page: Page, streams):
        page.goto(f"/dashboard/streams/{streams[0]}")
        expect(page).to_have_url(re.compile(r"/dashboard/sign-in\?next="))
        show(page, "sign-in")
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("No such key")
        page.get_by_label("API key").fill(service.key("read"))
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(f"/dashboard/streams/{streams[0]}$"))

    def test_nothing_of_a_key_stays_in_the_browser(self, service: Service, page: Page):
        key = service.key("read")
        sign_in(page, key)
        kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
        assert kept == f'[{{}},{{}},"","{service.url}/dashboard"]'
        assert key not in str(page.context.cookies())
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("API key")).to_be_visible()
        assert page.context.cookies() == []
        page.goto("/dashboard")
        expect(page.get_by_label("API key")).to_be_visible()

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
        told = ok(service.client().get(f"/v1/streams/{busy}"))
        expect(card).to_contain_text(f"Reservedε {told['reserved']['epsilon']:.3g}")
        expect(page.get_by_role("article", name=quiet)).to_contain_text("No publications yet")
        expect(page.get_by_role("status")).to_have_text("2 streams, 1 publication")
        show(page, "overview")

    def test_only_what_the_key_may_read(self, service: Service, page: Page, streams):
        sign_in(page, service.key("read", streams=[streams[1]]))
        expect(page.get_by_role("article")).to_have_count(1)
        page.goto(f"/dashboard/streams/{streams[0]}")
        expect(page.get_by_role("alert")).to_contain_text("no such stream")

    def test_where_there_is_nothing_it_says_how_to_begin(self, service: Service, page: Page):
        sign_in(page, service.key("read", streams=["not-yet-there"]))
        expect(page.get_by_role("heading", name="No streams yet")).to_be_visible()
        expect(page.locator("pre")).to_contain_text(f"curl {service.url}/v1/streams")
