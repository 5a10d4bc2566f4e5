"""The card of a publication in a browser: it prints on one sheet of paper, and fits a phone."""

import re

import pytest
from playwright.sync_api import Page

from tests.browser.looking import show
from tests.conftest import EXPIRING, Service


@pytest.fixture(scope="module")
def card(service: Service) -> str:
    """The longest card there is: one with warnings, of a budget that is held in ρ."""
    learner = {"kind": "noisy_gradient_descent"}
    stream = service.stream(budget={"epsilon": 3, "delta": 1e-5, "accounting": "zcdp"})
    name = service.publish(stream, EXPIRING, delta=1e-6, epsilon=0.123456789, learner=learner)
    service.post(stream, [[1, 0]] * 12, [0, 1] * 6)
    service.reaches(name, time=12)
    return f"/v1/publications/{name}/card"


@pytest.mark.more
@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_it_prints_on_one_sheet(reader: Page, card: str, paper):
    reader.goto(card)
    printed = reader.pdf(format=paper)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1


@pytest.mark.more
def test_it_can_be_read_on_a_phone_and_on_a_desktop(reader: Page, card: str):
    reader.goto(card)
    show(reader, "card")
