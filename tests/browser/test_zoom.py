"""Choosing records on the page of a stream."""

import pytest
from playwright.sync_api import Page

from tests.browser.looking import until
from tests.conftest import Service


@pytest.mark.more
def test_a_range_that_ended_before_it_began_can_be_mended_at_either_end(service: Service, reader: Page):
    stream = service.stream()
    service.post(stream, [[0.5, 0.5]] * 30, [0, 1] * 15)
    reader.goto(f"/dashboard/streams/{stream}")
    until(reader, "document.getElementById('ledger').data")
    first, last = (reader.get_by_label(label) for label in ("From record", "to record"))
    first.fill("24")
    last.fill("20")
    reader.get_by_role("button", name="Show these").click()
    assert "must not come before the first" in last.evaluate("field => field.validationMessage")
    first.fill("5")
    reader.get_by_role("button", name="Show these").click()
    until(reader, "document.getElementById('ledger').data[0].x[0] === 5")
    assert reader.evaluate("document.getElementById('ledger').data[0].x.at(-1)") == 21
