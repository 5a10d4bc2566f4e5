"""How good models are, on the pages of a publication and of its evaluation."""

import math
import re
from functools import partial

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from service.figures.drift import RATE
from tests.api.test_evaluation import EVERY, LARGE, evaluate
from tests.browser.looking import activate, enter, show, until
from tests.conftest import Service, ok

BLOCK, FLIPPED, RECORDS = 150, 3000, 4800


@pytest.fixture(scope="module")
def evaluated(service: Service) -> tuple[str, str, str]:
    """Two publications and their evaluation, after labels have flipped: one goes on learning, the other does not.

    Labels are what x says for nine records of ten.
    """
    stream = service.stream(epsilon=LARGE, delta=1e-6, evaluation={"every": EVERY}, class_names=["dry", "rain"])
    learns, stays = (
        service.publish(stream, {"kind": "independent_batches", "batch": batch}, epsilon=20, name=f"{stream}-{name}")
        for name, batch in (("learns", 600), ("stays", 2400))
    )
    evaluation = evaluate(
        service, stream, [learns, stays], mechanism={"kind": "evaluation", "of": [learns, stays], "block": BLOCK}
    )["name"]
    rng = np.random.default_rng(1)
    classes = rng.integers(0, 2, RECORDS)
    labels = np.where(rng.random(RECORDS) < 0.1, 1 - classes, classes)
    labels[FLIPPED:] = 1 - labels[FLIPPED:]
    service.post(stream, [[2.0 * each - 1.0, 0.5] for each in classes.tolist()], labels.tolist())
    service.reaches(evaluation, time=RECORDS)
    return learns, stays, evaluation


def whole(share: float) -> int:
    """Return a share in per cent as JavaScript rounds it."""
    return math.floor(100 * share + 0.5)


def visit(page: Page, service: Service, name: str) -> None:
    enter(page.context, service.key("read"))
    page.goto(f"/dashboard/publications/{name}")


@pytest.mark.more
def test_a_publication_says_how_good_it_is_and_draws_it(service: Service, page: Page, evaluated):
    learns, stays, evaluation = evaluated
    visit(page, service, learns)
    figures = ok(service.client().get(f"/v1/publications/{learns}"))["evaluation"]
    recent = figures["recent"]
    accuracy, low, high, above = map(
        whole, (recent["accuracy"], recent["low"], recent["high"], recent["lift"]["estimate"])
    )
    expect(page.locator("#quality-said")).to_have_text(
        f"Right for {accuracy} % of records in the last {recent['blocks']} blocks ({low} to {high} %), {above} points"
        " above always saying the commonest class; no drift seen."
    )
    expect(page.locator("#quality-key")).to_contain_text(
        f"a false alarm of drift in at most 1 of {1 / RATE:,.0f} blocks"
    )
    expect(page.locator("#quality-facts")).to_contain_text(f"Newest block{whole(figures['accuracy'])} %")
    expect(page.locator("#quality-facts")).to_contain_text("Recall of rain")
    activate(page.get_by_text("Which classes it takes for which"))
    stream = learns.removesuffix("-learns")
    by = page.locator("#quality-by").get_by_role("link")
    expect(by).to_have_attribute("href", f"/dashboard/publications/{evaluation}?stream={stream}")
    counts = page.locator("#quality-table tbody").get_by_role("row")
    expect(counts).to_have_count(2)
    expect(page.locator("#quality-table thead")).to_contain_text("predicted rain")
    assert counts.nth(1).get_by_role("cell").all_inner_texts() == [
        "rain",
        *(f"{each:,}".replace("-", "−") for each in figures["table"][1]),
    ]
    until(page, "document.getElementById('quality-chart').data")
    drawn = page.evaluate("document.getElementById('quality-chart').data.map(({ x, y }) => ({ x, y }))")
    blocks = service.released(evaluation, time=RECORDS)[1:]
    for trace, key in zip(drawn, ("low", "high", "accuracy", "baseline"), strict=True):
        assert trace["x"] == [each["fit"]["end"] for each in blocks]
        assert trace["y"] == [each["evaluation"][learns][key] for each in blocks]
    expect(page.locator("#compared")).to_be_hidden()
    show(page, "quality")
    page.goto(f"/dashboard/publications/{stays}")
    expect(page.locator("#quality-said")).to_contain_text("% of records in the newest block")
    expect(page.locator("#quality-said")).to_contain_text("below always saying the commonest class")
    expect(page.locator("#quality-said")).to_contain_text("clearly worse than in the blocks before")


@pytest.mark.more
def test_an_evaluation_shows_its_publications_side_by_side(service: Service, page: Page, evaluated):
    learns, stays, evaluation = evaluated
    visit(page, service, evaluation)
    newest = service.released(evaluation, time=RECORDS)[-1]["evaluation"]
    gap = newest[learns]["better_than"][stays]
    expect(page.locator("#compared-said")).to_contain_text(f"{learns} is the best")
    expect(page.locator("#compared-said")).to_contain_text(
        f"{whole(gap['low'])} to {whole(gap['high'])} points more than {stays}"
    )
    rows = page.locator("#compared-table tbody").get_by_role("row")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text=stays)).to_contain_text("%")
    stream = learns.removesuffix("-learns")
    link = rows.get_by_role("link", name=stays)
    expect(link).to_have_attribute("href", f"/dashboard/publications/{stays}?stream={stream}")
    until(page, "document.getElementById('compared-chart').data")
    assert {learns, stays} <= set(page.evaluate("document.getElementById('compared-chart').data.map((it) => it.name)"))
    expect(page.locator("#quality")).to_be_hidden()
    show(page, "compared")


REGRESSION = {"version": 3, "slots": BLOCK, "absolute_error": 0.25, "low": 0.2, "high": 0.3}
NOT_YET = dict.fromkeys(REGRESSION) | {"slots": BLOCK}


@pytest.mark.more
@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (REGRESSION, "Off by 0.25 on average (0.2 to 0.3)."),
        (NOT_YET, "It had no model yet when it was last evaluated."),
    ],
)
def test_errors_of_regressions_and_what_has_no_model_yet(service: Service, page: Page, evaluated, figures, sentence):
    learns, _, evaluation = evaluated
    described = ok(service.client().get(f"/v1/publications/{learns}"))
    listed = ok(service.client().get(f"/v1/publications/{evaluation}/releases?limit=1"))["items"]
    listed[0]["evaluation"] = {learns: figures}
    described["evaluation"] = figures | {"publication": evaluation, "drift": None, "worse": None}
    page.route(f"**/v1/publications/{learns}", lambda route: route.fulfill(json=described))
    page.route(f"**/v1/publications/{evaluation}/releases?*", lambda route: route.fulfill(json={"items": listed}))
    visit(page, service, learns)
    expect(page.locator("#quality-said")).to_have_text(sentence)
    expect(page.locator("#problem")).to_be_empty()
    page.unroute_all()


@pytest.mark.more
@pytest.mark.parametrize("elsewhere", [False, True])
def test_figures_of_another_streams_publication_of_the_name_are_not_shown(
    service: Service, page: Page, evaluated, elsewhere
):
    learns, stays, evaluation = evaluated
    described = {each: ok(service.client().get(f"/v1/publications/{each}")) for each in evaluated}
    recent = described[learns]["evaluation"]["recent"] | {"accuracy": 0.0123, "blocks": 7}
    for name in (learns, stays):
        described[name]["evaluation"] |= {"recent": recent, "drift": False, "worse": False}
    if elsewhere:
        described[stays]["stream"] = described[evaluation]["stream"] = "another"
    for name, answer in described.items():
        page.route(f"**/v1/publications/{name}", partial(Route.fulfill, json=answer))
    visit(page, service, learns)
    expect(page.locator("#quality-said")).to_contain_text("Right for 1 % of records")
    expect(page.locator("#quality-key")).to_have_text("" if elsewhere else re.compile("Accuracy of each block"))
    expect(page.locator("#quality-chart")).to_be_visible(visible=not elsewhere)
    page.unroute(f"**/v1/publications/{evaluation}")
    visit(page, service, evaluation)
    table = page.get_by_role(
        "region", name="Publications in the newest block" if elsewhere else "by their newest blocks"
    )
    expect(table).to_be_visible()
    expect(page.locator("#compared-said")).to_contain_text(
        "% of records right" if elsewhere else "1 % of records right in"
    )
    expect(page.locator("#problem")).to_be_empty()
    page.unroute_all()
