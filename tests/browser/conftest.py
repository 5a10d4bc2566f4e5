"""A real browser on the running service. `--screenshots` keeps in `screenshots/` what people can look at."""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserType, Page, sync_playwright

from tests.browser import looking
from tests.browser.looking import DESKTOP, enter, watched
from tests.conftest import Service

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


# One for all these tests, which run in one process: to start a browser takes seconds. Not for longer, since it keeps an
# event loop running, beside which tests of other folders could have none.
@pytest.fixture(scope="package")
def chromium() -> Iterator[BrowserType]:
    """It is the system's: Playwright's own comes from elsewhere."""
    with sync_playwright() as playwright:
        yield playwright.chromium


@pytest.fixture(scope="session", autouse=True)
def screenshots(request: pytest.FixtureRequest) -> None:
    looking.KEEP_SCREENSHOTS = request.config.getoption("--screenshots")


@pytest.fixture(scope="session")
def installed() -> str:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is here; on Debian `apt install chromium`")
    return program


@pytest.fixture(scope="package")
def browser(installed: str, chromium: BrowserType) -> Iterator[Browser]:
    browser = chromium.launch(executable_path=installed)
    yield browser
    browser.close()


@pytest.fixture(scope="package")
def tab(browser: Browser, service: Service) -> Callable[[], Page]:
    """Opens a tab for somebody with a browser of their own.

    Tests use a tab again and again: in a new one the first page that draws takes seconds to compile what draws.
    """

    def open_tab() -> Page:
        context = browser.new_context(base_url=service.url, viewport=DESKTOP)
        context.set_default_timeout(100_000)
        return context.new_page()

    return open_tab


@pytest.fixture(scope="package")
def tabs() -> list[Page]:
    """Those in which visitors of earlier tests have been."""
    return []


@pytest.fixture
def visitor(tab: Callable[[], Page], tabs: list[Page]) -> Iterator[Callable[[], Page]]:
    """Brings somebody who has not been here before, with a browser of their own."""
    came = itertools.count()
    with contextlib.ExitStack() as stack:

        def come() -> Page:
            if (number := next(came)) == len(tabs):
                tabs.append(tab())
            stack.enter_context(watched(tabs[number]))
            return tabs[number]

        yield come


@pytest.fixture
def page(visitor: Callable[[], Page]) -> Page:
    return visitor()


@pytest.fixture(scope="package")
def reader(tab: Callable[[], Page], service: Service) -> Iterator[Page]:
    """The tab of somebody who is signed in and may read everything."""
    with watched(tab()) as page:
        enter(page.context, service.key("read"))
        yield page
