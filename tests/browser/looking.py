"""Helpers of tests of pages: signing in, and looking at a page as people do."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import BrowserContext, Locator, Page, ViewportSize, expect

from tests.conftest import wait_until

expect.set_options(timeout=100_000)

SCREENSHOTS = Path(__file__).parent / "screenshots"
KEEP_SCREENSHOTS = False
DESKTOP: ViewportSize = {"width": 1280, "height": 800}
EMPTY = "/livez"  # of the same origin, so that the browser leaves in its place what it has compiled
Rules = dict[str, list[str]]
ALL_RULES: Rules = {}
COLORS: Rules = {"runOnly": ["color-contrast", "link-in-text-block"]}  # what another colour scheme can change
CUT_OFF = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"
SIZES = {"phone": ViewportSize(width=390, height=844), "desktop": DESKTOP}


@contextlib.contextmanager
def watched(page: Page) -> Iterator[Page]:
    """Fail the test if the console complains of our pages. Afterwards nothing is left of who has been there."""
    messages: list[str] = []
    listeners = {
        "console": lambda message: messages.append(message.text) if message.type in ("error", "warning") else None,
        "weberror": lambda error: messages.append(str(error.error)),
    }
    for event, listener in listeners.items():
        page.context.on(event, listener)
    yield page
    page.goto(EMPTY)
    page.context.clear_cookies()
    page.set_viewport_size(DESKTOP)
    page.emulate_media(color_scheme="null", reduced_motion="null")
    for event, listener in listeners.items():
        page.context.remove_listener(event, listener)
    complaints = [each for each in messages if not expected(each)]
    assert complaints == [], complaints


def enter(context: BrowserContext, key: str) -> None:
    """Signs in without a page."""
    assert context.request.post("/v1/session", headers={"Authorization": f"Bearer {key}"}).status == 201


def sign_in(page: Page, key: str, where: str = "/dashboard") -> None:
    page.goto(where)
    page.wait_for_url("**/sign-in*")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile(re.escape(where) + "$"))


def activate(shown: Locator) -> None:
    """Click a link or a summary that people see. A mouse or a key would miss it where it is drawn anew meanwhile."""
    expect(shown).to_be_visible()
    shown.dispatch_event("click")


def until(page: Page, expression: str) -> None:
    """Waits for JavaScript to be true. (Playwright's own way would need a policy that lets pages eval.)"""

    def look() -> bool:
        page.wait_for_timeout(20)
        return bool(page.evaluate(f"!!({expression})"))

    wait_until(look)


def expected(message: str) -> bool:
    """Return whether a browser says it by itself where the service answered as it should, or since it keeps Plotly
    from writing styles into the page, for maps.
    """
    return bool(
        re.search(
            r"the server responded with a status of (40[149]|422)|net::ERR_FAILED|^Applying inline style violates",
            message,
        )
    )


def show(page: Page, name: str) -> None:
    """Looks at a page on a phone, and on a desktop light and dark; may keep pictures, each as far as it goes down."""
    for size, scheme, rules in (("phone", "light", None), ("desktop", "dark", ALL_RULES), ("desktop", "light", COLORS)):
        page.set_viewport_size(SIZES[size])
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.wait_for_timeout(150)
        until(page, "document.documentElement.scrollWidth <= innerWidth")  # charts that are drawn anew fit into it
        if KEEP_SCREENSHOTS:
            page.screenshot(path=SCREENSHOTS / f"{name}-{size}-{scheme}.png", full_page=True)
        cut_off = page.evaluate(CUT_OFF)
        assert cut_off == [], f"these tables are cut off: {cut_off}"
        if rules is not None:
            violations = serious(page, rules)
            assert violations == [], violations


def serious(page: Page, rules: Rules = ALL_RULES) -> list[str]:
    """Return what axe finds that would keep somebody from using a page. A page that it has seen still has it loaded."""
    if page.evaluate("typeof axe === 'undefined'"):
        page.evaluate(AXE_SCRIPT)
    look = "options => axe.run(options).then(results => results.violations)"
    violations = page.evaluate(look, {"resultTypes": ["violations"]} | rules)
    return [
        f"{each['id']}: {node['html']}"
        for each in violations
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
