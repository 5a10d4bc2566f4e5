"""A real browser on the running service. Screenshots are kept in `screenshots/`, for people to look at."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.browser import looking
from tests.conftest import Service

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SCREENSHOTS = Path(__file__).parent / "screenshots"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is here; on Debian `apt install chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser, service: Service) -> Iterator[BrowserContext]:
    """Somebody's browser, which has not been here before; whatever its console says against us fails the test."""
    context = browser.new_context(base_url=service.url, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(10_000)
    said: list[str] = []
    context.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    context.on("weberror", lambda error: said.append(str(error.error)))
    yield context
    context.close()
    assert [each for each in said if not looking.expected(each)] == []


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()
