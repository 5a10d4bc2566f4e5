"""The demo adds up, prints and draws what was published."""

import io
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from rich.console import Console

from demo.evaluation import Figure
from demo.follow import Row, Spending
from demo.screen import Screen, lesson, summary
from service.privacy.currency import zcdp_epsilon

FIRST = Row(
    publication="online-leader",
    version=2,
    year=1953.4,
    records=1200,
    window=(0, 1200),
    accuracy=0.75,
    without_noise=0.79,
    yesterday=0.67,
    dry=0.68,
    spent=0.667,
)
ROWS = [
    replace(FIRST, publication=name, year=1953.4 + at, accuracy=0.75 - at / 100, spent=0.6 + at / 10)
    for name in ("online-leader", "sliding-window")
    for at in range(4)
]

JUDGED = [
    Figure(
        publication="sliding-window", version=3, years=(1956, 1963), accuracy=0.77, low=0.66, high=0.87, public=public
    )
    for public in (0.8, 0.9)
]


def test_the_screen_shows_what_the_service_says_beside_public_test_days():
    out = io.StringIO()
    Screen(Console(file=out, width=100)).compare(JUDGED)
    assert "66%–87%" in out.getvalue()
    assert "1 of its 2 intervals" in " ".join(out.getvalue().split())


@pytest.mark.more
def test_the_chart_shows_what_the_service_says():
    from demo import chart

    assert chart.figure(ROWS).axes[1].containers == []
    assert len(chart.figure(ROWS, JUDGED).axes[1].containers) == 1


def test_spending_is_that_of_the_record_that_paid_most():
    spending = Spending(10, 1e-6)
    spending.add({"start": 0, "end": 6, "rho": 0.01})
    spending.add({"start": 5, "end": 10, "rho": 0.02})
    assert spending.worst == zcdp_epsilon(0.03, 1e-6)


def test_the_summary_compares_each_publication_with_itself_and_the_rules_over_all():
    lines = summary(ROWS)
    assert list(lines) == [
        "online-leader, ε = 1",
        "online-leader, no noise",
        "sliding-window, ε = 1",
        "sliding-window, no noise",
        "same as yesterday",
        "always dry",
    ]
    assert len(lines["sliding-window, ε = 1"]) == 4
    assert len(lines["always dry"]) == 8


def test_the_summary_in_plain_words_has_the_costs_and_the_better_simple_rule():
    text = lesson(summary(ROWS))
    assert "'always dry'" in text
    assert "online-leader is right on 74 of 100 days; without noise it would be 79." in text  # 73.5, to the even one


def test_the_screen_shows_header_once_rows_and_ledger(tmp_path):
    out = io.StringIO()
    screen = Screen(Console(file=out, width=80))
    screen.introduce(1200, 400)
    with screen.replay(100) as progress:
        progress(100)
        for row in ROWS:
            screen.row(row)
    ledger = {name: {"epsilon": value} for name, value in (("spent", 1.95), ("reserved", 2.0), ("budget", 2.0))}
    screen.conclude(ROWS, ledger, tmp_path / "[odd] name.svg", 38.0)
    text = out.getvalue()
    assert text.count("ε spent\n") == 1
    assert text.count("0–1200 ") == len(ROWS)
    assert "67.0%   0.600\n" in text  # nothing is wrapped at 80 columns
    assert "ε = 1.950 of 2;" in text
    assert "[odd] name.svg" in text


@pytest.mark.more
def test_the_chart_is_one_whole_file_with_every_line_named(tmp_path):
    from demo import chart

    file = tmp_path / "releases.svg"
    chart.draw(ROWS, file)
    assert ET.parse(file).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    text = file.read_text()
    for label in (
        "private, ε = 1",
        "no noise (not private)",
        "same as yesterday",
        "always dry",
        "online leader: recommended",
    ):
        assert f"<!-- {label} -->" in text
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.more
def test_a_chart_that_cannot_be_written_leaves_nothing(tmp_path):
    from demo import chart

    with pytest.raises(OSError, match="missing"):
        chart.draw(ROWS, tmp_path / "missing" / "releases.svg")
