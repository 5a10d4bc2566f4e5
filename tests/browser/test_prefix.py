"""The dashboard behind a reverse proxy that puts a path before all of it."""

from urllib.parse import urlsplit

from tests.conftest import Service
from tests.proxy import proxy

BATCHES = {"kind": "independent_batches", "batch": 100}


def test_all_pages_work_under_a_path(browser, service: Service):
    stream = service.stream()
    publication = service.publish(stream, BATCHES)
    with proxy(service.url, prefix="/perennial") as url:
        page = browser.new_context().new_page()
        astray: list[str] = []
        page.on("response", lambda answer: astray.append(answer.url) if answer.status == 404 else None)
        page.goto(f"{url}/dashboard/streams/{stream}")
        page.wait_for_url(f"{url}/dashboard/sign-in?*")
        page.locator("input").first.fill(service.admin_key)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{url}/dashboard/streams/{stream}")
        page.get_by_role("link", name=publication).first.click()
        page.wait_for_url(f"{url}/dashboard/publications/{publication}*")
        page.locator("#crumb a").first.wait_for()
        for link in page.locator("a[href]").all():
            address = link.evaluate("link => link.href")
            assert urlsplit(address).path.startswith("/perennial/"), address
        page.get_by_role("link", name="Explorer").click()
        page.wait_for_url(f"{url}/dashboard/explorer")
        page.get_by_role("link", name="Streams").click()
        page.wait_for_url(f"{url}/dashboard")
        page.get_by_role("link", name=stream).first.click()
        page.wait_for_url(f"{url}/dashboard/streams/{stream}*")
        page.locator("#sign-out").click()
        page.wait_for_url(f"{url}/dashboard/sign-in")
        assert astray == []
        page.context.close()
