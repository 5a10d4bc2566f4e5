"""Pictures are drawn from the code, and are what the code draws today."""

from fractions import Fraction

import pytest

from docs.schedule_pictures import SCHEDULES, fits_until, paid
from service.mechanisms.registry import MECHANISMS
from tests.docs.pages import ROOT

MOST_BYTES = 40_000
IMAGES = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    from docs import pictures  # here, because importing matplotlib takes most of a second

    return pictures.pictures()


@pytest.mark.more
def test_every_picture_is_current_and_small(drawn):
    assert {path.name for path in IMAGES.glob("*.svg")} == set(drawn)
    for name, text in drawn.items():
        assert (IMAGES / name).read_text() == text, f"{name} is stale: run `make docs`"
        assert len(text.encode()) < MOST_BYTES, name


def test_every_mechanism_with_a_schedule_has_its_picture_on_its_page():
    scheduled = {path.stem for path in (ROOT / "service/schedules").glob("*.py")} & {each.kind for each in MECHANISMS}
    assert set(SCHEDULES) == scheduled
    for kind in SCHEDULES:
        assert f"](../images/schedule_{kind}.svg)" in (ROOT / f"docs/mechanisms/{kind}.md").read_text()


@pytest.mark.parametrize("kind", SCHEDULES)
def test_no_record_of_a_picture_pays_more_than_its_budget(kind):
    example, records = SCHEDULES[kind]
    fits = fits_until(example, records)
    assert fits
    assert 0 < max(paid(fits, records)) <= Fraction(1)
