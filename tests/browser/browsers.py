"""Start the system's browser (Playwright's own comes from elsewhere) and open tabs in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.looking import DESKTOP, enter, watched
from tests.conftest import Service

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def started() -> Iterator[Browser]:
    """Start a browser for the block. Until the block ends, no other event loop can run in this thread."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is here; on Debian `apt install chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


def new_tab(browser: Browser, service: Service) -> Page:
    """Open a tab that shares no cookies with other tabs."""
    context = browser.new_context(base_url=service.url, viewport=DESKTOP)
    context.set_default_timeout(100_000)
    return context.new_page()


@contextmanager
def reading(browser: Browser, service: Service) -> Iterator[Page]:
    """Open such a tab and sign in with a key that may read everything."""
    with watched(new_tab(browser, service)) as page:
        enter(page.context, service.key("read"))
        yield page
