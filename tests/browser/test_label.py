"""People label records: with the keyboard alone, two at a time, and whatever the service answers."""

import json
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, Dialog, Page, expect
from sqlalchemy import func

from service.api.auth.credentials import PAGE_HEADER
from tests import chance
from tests.api.test_labels import change_requests, give, post, publish, unlabelled
from tests.browser.browsers import new_tab
from tests.browser.looking import activate, enter, show, sign_in, until, watched
from tests.conftest import Service, ok, unique, wait_until

Open = Callable[[str], Page]
BUDGET = {"epsilon": 100}
LEASE_SECONDS = 3000  # longer than any of these tests takes: what is looked at goes to nobody else meanwhile
HARDLY_ANY_NOISE = {"epsilon": 1000, "delta": 1e-6}


@pytest.fixture
def labelling(visitor: Callable[[], Page], service: Service) -> Open:
    """Opens a publication's label page, for somebody with a browser of their own who has signed in."""
    return lambda publication: opened(service, visitor(), publication)


@pytest.fixture
def with_own_clock(service: Service, browser: Browser) -> Iterator[Page]:
    """A tab that no other test uses: a clock that was set stays so for all pages of a tab."""
    with watched(new_tab(browser, service)) as page:
        yield page
    page.context.close()


def opened(service: Service, page: Page, publication: str) -> Page:
    enter(page.context, service.key("read", "label"))
    page.goto(f"/dashboard/publications/{publication}/label")
    return page


def asking(service: Service, *, records: int = 4, budget=BUDGET, **settings) -> tuple[str, str]:
    """A stream, and a publication of it that asks for nearly every record; the first number tells what each is."""
    stream = unlabelled(service, features=12, budget=budget)
    publication = publish(service, stream, **{"lease_seconds": LEASE_SECONDS} | settings)
    if records:
        x = np.random.default_rng(1).normal(scale=0.2, size=(records, 12))
        x[:, 0] = np.resize([1, -1, -1], records)
        post(service, stream, x)
    return stream, publication


def shown(page: Page) -> int:
    """The record that is asked for."""
    title = page.locator("#record-title")
    expect(title).to_have_text(re.compile(r"^Record \d"))
    return int(title.inner_text().removeprefix("Record ").replace(",", ""))


def choose(page: Page, key: str) -> int:
    """Presses a key for the record that is shown; returns which it was."""
    record = shown(page)
    page.keyboard.press(key)
    expect(page.locator("#said")).to_contain_text(re.compile(f"record {record}\\b", re.IGNORECASE))
    return record


def posted(page: Page) -> list[tuple[int, int]]:
    """(record, label) of what the page sends from now on."""
    labels: list[tuple[int, int]] = []

    def note(body: dict) -> None:
        labels.append((body["record"], body["label"]))

    page.on("request", lambda request: note(json.loads(request.post_data)) if request.url.endswith("/labels") else None)
    return labels


def test_ten_records_are_labelled_with_the_keyboard_alone_and_a_model_appears(service: Service, page: Page):
    stream, publication = asking(
        service,
        records=60,
        budget=HARDLY_ANY_NOISE,
        privacy=HARDLY_ANY_NOISE,
        batching="fixed_batch",
        size=10,
        learning_rate=1.0,
    )
    page.goto(f"/dashboard/publications/{publication}")
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.type(service.key("read", "label", streams=[stream]))
    page.keyboard.press("Enter")
    expect(page.get_by_text("10 records to label now")).to_be_visible()
    link = page.get_by_role("link", name="Label records")
    while not link.evaluate("(link) => link === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shown(page)
    page.evaluate("window.still = 'here'")
    sent, chosen = posted(page), []
    for number in range(10):
        shown(page)
        label = int(not page.locator("#features dd").first.inner_text().startswith("−"))
        chosen.append((choose(page, str(label)), label))
        expect(page.locator("#held li")).to_have_count(number + 1)
    assert {label for _, label in chosen} == {0, 1}
    assert sent == []
    expect(page.locator("#tiles")).to_contain_text("0 of 10")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_contain_text("10 labels submitted.")
    expect(page.locator("#said")).to_contain_text("A new model is out: version 1.")
    assert sent == chosen
    expect(page.locator("#tiles")).to_contain_text("By you10 labels")
    expect(page.locator("#tiles")).to_contain_text("version 1")
    releases = page.get_by_role("link", name="all releases")
    expect(releases).to_have_attribute("href", f"/dashboard/publications/{publication}?stream={stream}")
    expect(page.locator("#tiles")).to_contain_text("0 of 10")  # of the next batch
    assert page.evaluate("window.still") == "here"
    (release,) = service.released(publication, time=chosen[-1][0] + 1)
    weight = release["parameters"]["values"][0][0]
    chance.assert_above(weight, 0.2, mean=0.313, spread=0.0075, runs=300)  # ten labels show the way
    assert page.evaluate("document.activeElement.id") == "record"
    for key in ("1", "0", "1"):
        choose(page, key)
    show(page, "label")


@pytest.mark.more
def test_what_is_chosen_can_be_taken_back_until_it_is_submitted(service: Service, labelling: Open):
    page = labelling(asking(service, records=4, batching="fixed_batch", size=4)[1])
    sent = posted(page)
    first = choose(page, "1")
    second = choose(page, "1")
    third = shown(page)
    page.keyboard.press("u")
    assert shown(page) == second
    expect(page.locator("#choices .before")).to_have_text("1 positive")
    page.keyboard.press("Backspace")
    assert choose(page, "0") == first
    assert choose(page, "0") == second
    assert choose(page, "s") == third
    fourth = shown(page)
    page.get_by_role("button", name="1 positive").click()
    assert page.evaluate("document.activeElement.id") == "record", "Enter would press the button again"
    expect(page.locator("#waits")).to_contain_text("1 that is asked for is with others, skipped, or not to be shown")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#said")).to_contain_text("3 labels submitted")
    assert sent == [(first, 0), (second, 0), (fourth, 1)]
    page.keyboard.press("u")
    expect(page.locator("#said")).to_contain_text("Nothing is chosen that could be taken back")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_contain_text("Nothing is chosen yet")
    assert len(sent) == 3
    expect(page.locator("#tiles")).to_contain_text("3 of 4")


@pytest.mark.more
def test_a_record_appears_when_it_comes_and_two_people_share_what_there_is(service: Service, labelling: Open):
    stream, publication = asking(service, records=0, batching="fixed_batch", size=4)
    pages = [labelling(publication), labelling(publication)]
    for page in pages:
        expect(page.locator("#waits")).to_contain_text("Nothing is asked for")
    show(pages[0], "label-waiting")
    post(service, stream, np.ones((4, 12)))
    records = []
    for _ in range(2):
        for page in pages:
            shown(page)  # both have one before either goes on: the quicker one would get a third
        records += [choose(page, "1") for page in pages]
    assert sorted(records) == [0, 1, 2, 3]
    for page in pages:
        page.keyboard.press("Enter")
    for page in pages:
        expect(page.locator("#said")).to_contain_text("A new model is out: version 1.")
        expect(page.locator("#tiles")).to_contain_text("By you2 labels")


@pytest.mark.more
def test_what_was_not_submitted_in_time_is_told_and_shown_again(service: Service, labelling: Open):
    page = labelling(asking(service, batching="fixed_batch", size=1, lease_seconds=2)[1])
    sent = posted(page)
    record = choose(page, "1")
    expect(page.locator("#said")).to_contain_text("Here it is again; you had chosen 1, positive.")
    assert shown(page) == record
    expect(page.locator("#held li")).to_have_count(0)
    assert sent == []
    expect(page.locator("#lease")).to_have_text("others may be asked too: the first answer counts")
    message = page.locator("#said")
    while not sent:  # its time is over: the page may get it once more between the two keys
        choose(page, "1")
        page.keyboard.press("Enter")
        expect(message).to_contain_text(re.compile("1 label submitted|Nothing is chosen yet|Here it is again"))
    expect(message).to_contain_text("1 label submitted")
    assert sent == [(record, 1)]


@pytest.mark.more
def test_a_page_that_waited_promises_no_longer_than_the_service(service: Service, labelling: Open):
    stream, publication = asking(service, records=0, batching="fixed_batch", size=4)
    page = labelling(publication)
    expect(page.locator("#waits")).to_contain_text("Nothing is asked for")
    page.wait_for_timeout(4000)
    post(service, stream, np.ones((4, 12)))
    shown(page)
    lease = page.locator("#lease").inner_text()
    assert int(re.fullmatch(r"yours for (\d+) s", lease)[1]) <= LEASE_SECONDS


@pytest.mark.more
def test_whatever_is_refused_is_told_and_blocks_nothing(service: Service, labelling: Open):
    _, publication = asking(service, records=8, batching="fixed_batch", size=8)
    page = labelling(publication)
    refused, message = page.locator("#refused"), page.locator("#said")
    taken, double, wrong = (choose(page, "1") for _ in range(3))
    ok(give(service, publication, taken, 0))  # by somebody else

    def as_text(route) -> None:
        body = json.loads(route.request.post_data)
        route.continue_(post_data=json.dumps(body | {"label": "1"}) if body["record"] == wrong else None)

    page.route("**/labels", as_text)
    page.keyboard.press("Enter")
    expect(message).to_contain_text("1 label submitted. 2 not taken.")
    expect(refused).to_contain_text(f"Record {taken} was not taken")
    expect(refused).to_contain_text("It was answered before, was erased, or its time is over")
    expect(refused).to_contain_text(f"Record {wrong} was not taken")
    expect(refused).to_contain_text("The service can't read this answer (label")
    ok(give(service, publication, double, 1), 409)
    page.unroute("**/labels")
    page.route("**/labels", lambda route: route.abort())
    unsent = choose(page, "0")
    page.keyboard.press("Enter")
    expect(message).to_contain_text("1 could not be sent and is still chosen")
    expect(page.locator("#problem")).to_contain_text("The service does not answer")
    expect(page.locator("#held")).to_contain_text(f"Record {unsent}0, negative")
    page.unroute("**/labels")
    page.keyboard.press("Enter")
    expect(message).to_contain_text("1 label submitted.")
    expect(page.locator("#problem")).to_be_empty()
    expect(refused).to_be_empty()
    unsent = choose(page, "1")
    assert page.request.delete("/v1/session", headers={PAGE_HEADER: "1"}).status == 204
    page.keyboard.press("Enter")
    expect(page.locator("#problem")).to_contain_text("what you chose stays here")
    expect(page.locator("#held")).to_contain_text(f"Record {unsent}1, positive")
    enter(page.context, service.key("read", "label"))
    page.keyboard.press("Enter")
    expect(message).to_contain_text("1 label submitted.")
    shown(page)


@pytest.mark.more
def test_a_key_that_is_revoked_takes_nothing_that_was_chosen(service: Service, page: Page):
    _, publication = asking(service, batching="fixed_batch", size=4)
    key, next_key = (
        ok(service.client().post("/v1/keys", json={"name": unique("key"), "scopes": ["read", "label"]}), 201)
        for _ in range(2)
    )
    enter(page.context, key["key"])
    page.goto(f"/dashboard/publications/{publication}/label")
    record = choose(page, "1")
    expect(page.locator("#who-name")).to_have_text(key["name"])
    expect(page.locator("#live")).to_have_text("live")
    leaving: list[str] = []

    def stay(dialog: Dialog) -> None:
        leaving.append(dialog.type)
        dialog.dismiss()

    page.on("dialog", stay)
    with page.expect_response(lambda answer: answer.url.endswith("/v1/session") and answer.status == 401):
        assert service.client().delete(f"/v1/keys/{key['id']}").status_code == 204
    page.keyboard.press("Enter")
    expect(page.locator("#problem")).to_contain_text("Sign in again in another tab of this browser, then submit")
    expect(page.locator("#problem")).to_contain_text("what you chose stays here")
    with page.context.new_page() as other:
        sign_in(other, next_key["key"])
    expect(page.locator("#who-name")).to_have_text(next_key["name"])
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#problem")).to_be_empty()
    expect(page.locator("#held")).to_contain_text(f"Record {record}1, positive")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_contain_text("1 label submitted.")
    assert leaving == []
    page.remove_listener("dialog", stay)


@pytest.mark.more
def test_a_page_to_look_at_leaves_when_its_session_ends_and_says_so(service: Service, page: Page):
    key = service.key("read")
    enter(page.context, key)
    page.goto("/dashboard?find=two%20words")
    expect(page.locator("#who-name")).not_to_be_empty()
    page.context.clear_cookies()
    page.locator("html").dispatch_event("visibilitychange")  # it looks again
    expect(page.get_by_role("alert")).to_have_text("The session has ended, or its key was revoked. Sign in again.")
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{service.url}/dashboard?find=two%20words")


@pytest.mark.more
def test_nothing_is_chosen_for_a_record_that_is_waited_for_no_more(service: Service, with_own_clock: Page):
    stream, publication = asking(service, records=0, size=2, label_seconds=600)
    page = opened(service, with_own_clock, publication)
    expect(page.locator("#waits")).to_contain_text("Nothing is asked for")
    post(service, stream, np.ones((2, 12)))
    late = choose(page, "1")
    unanswered = shown(page)
    page.clock.install()
    page.clock.fast_forward(600_000)
    change_requests(service, publication, expires_at=func.now())
    expect(page.locator("#held")).to_contain_text("too late: its time is over")
    expect(page.locator("#said")).to_contain_text(f"The time for record {unanswered} is over")
    expect(page.locator("#said")).to_contain_text("A new model is out: version 1.")
    assert choose(page, "1") == unanswered
    expect(page.locator("#said")).to_contain_text("nothing is chosen for it")
    expect(page.locator("#held li")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("#refused")).to_contain_text(f"Record {late} was not taken")
    expect(page.locator("#record-title")).to_have_text("Nothing to label now")


@pytest.mark.more
def test_many_features_stay_usable(service: Service, labelling: Open):
    stream = unlabelled(service, features=3000)
    publication = publish(service, stream, size=1)
    x = np.zeros((1, 3000))
    x[0, ::2] = np.linspace(-1, 1, 1500)
    post(service, stream, x)
    page = labelling(publication)
    shown(page)
    expect(page.locator("#features-said")).to_have_text("3,000 features, 1,500 that are 0 are left out")
    names = page.locator("#features dt")
    expect(names).to_have_count(500)
    assert names.all_inner_texts()[:3] == ["0", "2", "4"]
    page.get_by_role("button", name="Show 500 more").click()
    expect(names).to_have_count(1000)
    page.get_by_role("button", name="Show zeros").press("Enter")
    assert names.all_inner_texts()[:3] == ["0", "1", "2"]
    before = page.locator("#features").evaluate("(box) => box.scrollTop")
    page.keyboard.press("End")
    until(page, f"document.getElementById('features').scrollTop > {before}")
    expect(page.get_by_role("button", name="1 positive")).to_be_in_viewport()
    choose(page, "1")


class TestWhoMay:
    @pytest.mark.more
    def test_who_may_label_is_told_of_what_waits_at_a_glance(self, service: Service, page: Page):
        stream, publication = asking(service)
        sign_in(page, service.key("read", "label", streams=[stream]))
        at = f"/v1/publications/{publication}"
        waiting = wait_until(lambda: ok(service.client().get(at))["labels"]["waiting"])
        activate(page.get_by_role("link", name=f"{waiting} to label"))
        shown(page)
        ok(service.client().delete(f"/v1/publications/{publication}"))
        page.reload()
        expect(page.locator("#trouble")).to_contain_text("Nothing is asked for any more")
        expect(page.locator("#record-title")).to_have_text("Nothing to label now")

    @pytest.mark.more
    def test_who_may_only_read_is_shown_no_record(self, service: Service, page: Page):
        stream, publication = asking(service)
        sign_in(page, service.key("read", streams=[stream]))
        expect(page.get_by_role("link", name=publication)).to_be_visible()
        expect(page.get_by_role("link", name="to label")).to_have_count(0)
        page.goto(f"/dashboard/publications/{publication}")
        expect(page.locator("#trouble")).to_contain_text("sign in with a key that has the scopes read and label")
        expect(page.get_by_role("link", name="Label records")).to_have_count(0)
        page.goto(f"/dashboard/publications/{publication}/label")
        expect(page.locator("#trouble")).to_contain_text("This key may not label")
        expect(page.locator("#work")).to_be_hidden()
