"""Pages while the database is away, and once it is back."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy.engine import make_url

from service.api.auth.credentials import PAGE_HEADER
from tests.browser.browsers import new_tab
from tests.browser.looking import sign_in
from tests.conftest import Service, serving, wait_until
from tests.faults.proxy import Proxy


@dataclass(frozen=True)
class Reached:
    """An API whose database may be away, as seen from a browser."""

    url: str
    proxy: Proxy
    database: Path

    def leave(self) -> None:
        self.proxy.switch(None)

    def come_back(self) -> None:
        self.proxy.switch(self.database)


@pytest.fixture
def reached(service: Service) -> Iterator[Reached]:
    url = make_url(service.settings.database_url)
    database = Path(str(url.query["host"])) / f".s.PGSQL.{url.query['port']}"
    with Proxy(database) as proxy:
        proxied = url.set(host="127.0.0.1", port=proxy.port, query={"sslmode": "disable"})
        settings = service.settings.model_copy(update={"database_url": proxied.render_as_string(hide_password=False)})
        with serving(settings) as address:
            yield Reached(address, proxy, database)


@pytest.fixture
def tab(browser: Browser, service: Service) -> Iterator[Page]:
    """A tab whose console may tell of answers of 503."""
    page = new_tab(browser, service)
    yield page
    page.context.close()


@pytest.mark.more
def test_pages_name_what_is_away_and_who_is_signed_in_once_it_is_back(service: Service, tab: Page, reached: Reached):
    stream = service.stream()
    reached.leave()
    tab.goto(f"{reached.url}/dashboard/sign-in")
    tab.get_by_label("API key").fill(service.key("read", streams=[stream]))
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.locator("#sign-in-problem")).to_have_text("The database is away. Try again later.")
    reached.come_back()
    wait_until(lambda: tab.request.get(f"{reached.url}/readyz").status == 200)
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.locator("#who-name")).to_have_text(re.compile("^key-"))
    reached.leave()
    session = f"{reached.url}/v1/session"
    wait_until(lambda: tab.request.get(session, headers={PAGE_HEADER: "1"}).status == 503)  # nothing is remembered
    tab.goto(f"{reached.url}/dashboard/streams/{stream}")
    expect(tab.locator("#problem")).to_contain_text("The database is away. Try again later.")
    expect(tab.get_by_role("button", name="Sign out")).to_be_visible()
    assert tab.locator("#who-name").get_attribute("title") is None
    reached.come_back()
    expect(tab.locator("#who-name")).to_have_text(re.compile("^key-"))
    assert tab.locator("#who-name").get_attribute("title") == f"This key sees only: {stream}"
    expect(tab.locator("#problem")).to_be_empty()


@pytest.mark.more
def test_signing_in_leads_back_to_the_version_that_was_looked_at(service: Service, page: Page):
    stream = service.stream()
    name = service.publish(stream, {"kind": "sliding_window", "block": 1, "blocks": 1})
    service.post(stream, [[0.5, 0.5]], [0])
    service.reaches(name, time=1)
    sign_in(page, service.key("read", streams=[stream]), f"/dashboard/publications/{name}?stream={stream}#1")
    expect(page.get_by_role("dialog", name=f"{name}, version 1")).to_be_visible()


@pytest.mark.more
def test_signing_in_leads_back_to_a_part_of_a_page(service: Service, page: Page):
    sign_in(page, service.key("read"), f"/dashboard/streams/{service.stream()}#publish")
