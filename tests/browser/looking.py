"""What tests of pages share: signing in, and looking at a page as people do."""

import re
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

SCREENSHOTS = Path(__file__).parent / "screenshots"
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}


def sign_in(page: Page, key: str, where: str = "/dashboard") -> None:
    page.goto(where)
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile(re.escape(where) + "$"))


def expected(said: str) -> bool:
    """What a browser says of its own accord where the service answered as it should."""
    return bool(re.search(r"the server responded with a status of 40[14]", said))


def show(page: Page, name: str) -> None:
    """Keeps pictures of a page: both widths, light and dark, each as far as it goes down."""
    SCREENSHOTS.mkdir(exist_ok=True)
    for size, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.wait_for_timeout(250)  # charts are drawn anew
            page.screenshot(path=SCREENSHOTS / f"{name}-{size}-{scheme}.png", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the window"
            if size == "desktop":
                assert serious(page) == []


def serious(page: Page) -> list[str]:
    """What axe finds that would keep somebody from using a page."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{each['id']}: {node['html']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
