"""A real browser on the running service. `--screenshots` keeps in `screenshots/` what people can look at.

There is one for all these tests, which run in one process: to start a browser takes seconds.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests import folder_service
from tests.browser import browsers, looking
from tests.browser.looking import watched
from tests.conftest import Service

service = folder_service.service


@pytest.fixture(scope="session", autouse=True)
def screenshots(request: pytest.FixtureRequest) -> None:
    looking.KEEP_SCREENSHOTS = request.config.getoption("--screenshots")


@pytest.fixture(scope="package")  # not for longer: it keeps an event loop running
def browser() -> Iterator[Browser]:
    with browsers.started() as browser:
        yield browser


@pytest.fixture(scope="package")
def tabs() -> list[Page]:
    """Those in which visitors of earlier tests have been.

    Tests use a tab again and again: in a new one the first page that draws takes seconds to compile what draws.
    """
    return []


@pytest.fixture
def visitor(browser: Browser, service: Service, tabs: list[Page]) -> Iterator[Callable[[], Page]]:
    """Brings somebody who has not been here before, with a browser of their own."""
    came = itertools.count()
    with contextlib.ExitStack() as stack:

        def come() -> Page:
            if (number := next(came)) == len(tabs):
                tabs.append(browsers.new_tab(browser, service))
            stack.enter_context(watched(tabs[number]))
            return tabs[number]

        yield come


@pytest.fixture
def page(visitor: Callable[[], Page]) -> Page:
    return visitor()


@pytest.fixture(scope="package")
def reader(browser: Browser, service: Service) -> Iterator[Page]:
    """The tab of somebody who is signed in and may read everything."""
    with browsers.reading(browser, service) as page:
        yield page


@pytest.fixture(scope="module")
def streams(service: Service) -> Iterator[tuple[str, str]]:
    """One stream that publishes, and one that nothing is published of."""
    busy, quiet = service.stream(features=2, epsilon=4), service.stream(features=2)
    service.publish(busy, {"kind": "sliding_window", "block": 10, "blocks": 3}, epsilon=2, name=f"{busy}-trend")
    service.post(busy, [[0.6, 0.1 * each] for each in range(-5, 5)] * 5, [each % 2 for each in range(50)])
    service.reaches(f"{busy}-trend", time=50)
    return busy, quiet
