"""A real browser on the running service. Screenshots are kept in `screenshots/`, for people to look at."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, BrowserType, Page, sync_playwright

from tests.browser.looking import DESKTOP, enter, watched
from tests.conftest import Service

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")  # it keeps an event loop running, beside which tests of other folders could have none
def chromium() -> Iterator[BrowserType]:
    """It is the system's: Playwright's own comes from elsewhere."""
    with sync_playwright() as playwright:
        yield playwright.chromium


@pytest.fixture(scope="session")
def installed() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is here; on Debian `apt install chromium`")
    return found


@pytest.fixture(scope="module")
def browser(installed: str, chromium: BrowserType) -> Iterator[Browser]:
    browser = chromium.launch(executable_path=installed)
    yield browser
    browser.close()


@pytest.fixture
def page(browser: Browser, service: Service) -> Iterator[Page]:
    """Of somebody who has not been here before."""
    with watched(browser.new_context(base_url=service.url, viewport=DESKTOP)) as context:
        yield context.new_page()


@pytest.fixture(scope="module")
def reading(
    installed: str, chromium: BrowserType, service: Service, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrowserContext]:
    """The browser of somebody who is signed in and may read everything; it keeps on disk what it has loaded."""
    profile = tmp_path_factory.mktemp("profile")
    kept = chromium.launch_persistent_context(
        profile, executable_path=installed, base_url=service.url, viewport=DESKTOP
    )
    with watched(kept) as context:
        enter(context, service.key("read"))
        yield context


@pytest.fixture(scope="class")
def reader(reading: BrowserContext) -> Iterator[Page]:
    page = reading.new_page()
    yield page
    page.close()
