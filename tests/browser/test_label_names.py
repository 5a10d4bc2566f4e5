"""People label records of one publication, where another stream has one of the same name."""

import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.api.test_labels import post, unlabelled
from tests.browser.looking import activate, enter, sign_in
from tests.browser.test_label import BUDGET, asking, choose, posted, shown
from tests.conftest import Service, ok


def of_the_same_name(service: Service, name: str) -> str:
    """A newer stream, with a publication of this name that asks for records too."""
    stream = unlabelled(service, features=12, budget=BUDGET)
    publication = ok(service.client().get(f"/v1/publications/{name}"))
    body = {key: publication[key] for key in ("name", "mechanism", "learner", "privacy")} | {"stream": stream}
    ok(service.client(service.key("admin", streams=[stream])).post("/v1/publications", json=body), 201)
    post(service, stream, np.ones((4, 12)))
    return stream


@pytest.mark.more
def test_links_to_label_carry_their_stream_so_that_another_one_of_the_name_is_noticed(service: Service, page: Page):
    older, name = asking(service)
    newer = of_the_same_name(service, name)
    sign_in(page, service.key("read", "label", streams=[older, newer]))
    activate(page.get_by_role("article", name=newer).get_by_role("link", name="to label"))
    expect(page.locator("#trouble")).to_contain_text(f"This is the publication of stream {older}")
    activate(page.locator("#crumb").get_by_role("link", name=name))
    expect(page).to_have_url(re.compile(rf"/publications/{name}\?stream={older}$"))
    activate(page.get_by_role("link", name="Label records"))
    expect(page).to_have_url(re.compile(rf"/publications/{name}/label\?stream={older}$"))
    shown(page)
    expect(page.locator("#trouble")).to_be_empty()
    activate(page.locator("#crumb").get_by_role("link", name=name))
    expect(page.locator("#plan")).to_contain_text("as likely as before")
    expect(page.locator("#trouble")).not_to_contain_text("This is the publication of stream")


def test_a_label_that_was_chosen_goes_to_no_other_publication_of_the_name(service: Service, page: Page):
    """Somebody signs in with another tab, for whose key the name means another stream's publication, or none."""
    older, name = asking(service, batching="fixed_batch", size=4)
    newer = of_the_same_name(service, name)
    mine, another, nothing = (
        service.key("read", "label", streams=[stream]) for stream in (newer, older, unlabelled(service))
    )
    sent = posted(page)
    enter(page.context, mine)
    page.goto(f"/dashboard/publications/{name}/label")
    record = choose(page, "1")
    shown(page)
    for key in (another, nothing):
        enter(page.context, key)
        page.keyboard.press("s")
        expect(page.locator("#problem")).to_contain_text(f"this name is not the publication of stream {newer}")
        expect(page.locator("#record-title")).to_have_text("Nothing to label now")
        page.keyboard.press("Enter")
        expect(page.locator("#said")).to_contain_text("1 could not be sent and is still chosen")
        expect(page.locator("#held")).to_contain_text(f"Record {record}1, positive")
    enter(page.context, mine)
    expect(page.locator("#problem")).to_be_empty()
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_contain_text("1 label submitted.")
    assert sent == [(record, 1)]
