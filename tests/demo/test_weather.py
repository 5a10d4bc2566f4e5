"""Days that are sent, days that are held out, and how a model is judged on these."""

import numpy as np
import pytest

from demo import weather
from demo.weather import Weather


@pytest.fixture(scope="module")
def days() -> Weather:
    return weather.load()


def test_the_bundled_copy_is_the_whole_data_set(days):
    assert days.x.shape == (18159, len(weather.FEATURES))
    assert days.y.sum() == 5698


def test_no_held_out_day_is_ever_sent(days):
    assert not (days.sent % weather.HELD_OUT_EVERY == weather.HELD_OUT_EVERY - 1).any()
    assert (np.diff(days.sent) > 0).all()


def test_standardised_values_are_bounded_even_for_wrong_measurements():
    nonsense = np.full((1, 8), 1e6, dtype=np.float32)
    assert np.abs(weather.standardise(nonsense)).max() <= 3.0


def test_each_day_is_standardised_by_itself(days):
    rng = np.random.default_rng(0)
    raw = rng.normal(50.0, 30.0, size=(7, 8)).astype(np.float32)
    whole = weather.standardise(raw)
    assert all(np.array_equal(weather.standardise(raw[row : row + 1])[0], whole[row]) for row in range(len(raw)))


def test_a_window_holds_the_records_that_the_service_numbers(days):
    x, y = days.window(4, 6)
    # Rows 0 to 3 and 5 are records 0 to 4: row 4 is held out.
    assert np.array_equal(x, days.x[[5, 6]])
    assert np.array_equal(y, days.y[[5, 6]])


@pytest.mark.parametrize("records", [1, 400, 13_600])
def test_a_model_is_judged_on_held_out_days_after_its_last_record(days, records):
    seen = []

    def dry(x):
        seen.append(x)
        return np.zeros(len(x), dtype=bool)

    accuracy = days.judge(dry, records)
    first = days.sent[records - 1] + 1
    rows = np.arange(first, first + round(len(days.y) * 2 / 50))
    rows = rows[rows % 5 == 4]
    assert np.array_equal(seen[0], days.x[rows])
    assert accuracy == days.judge_dry(records) == pytest.approx((days.y[rows] == 0).mean())
    assert days.judge_yesterday(records) == pytest.approx((days.y[rows] == days.y[rows - 1]).mean())


def test_held_out_days_of_a_range_lie_between_its_records(days):
    x, _ = days.held_out(2000, 4000)
    assert len(x) == pytest.approx(500, abs=1), "a day for every four that are sent"
    first, last = days.sent[2000], days.sent[3999]
    rows = [row for row in range(first, last) if row % weather.HELD_OUT_EVERY == weather.HELD_OUT_EVERY - 1]
    assert np.array_equal(x, days.x[rows])


def test_all_that_are_sent_have_two_years_after_them(days):
    assert len(days.y) - days.sent[-1] > round(len(days.y) * 2 / 50)
    assert days.year(len(days.sent)) == pytest.approx(1997, abs=0.1)


def test_a_perfect_prediction_scores_one():
    x = np.zeros((100, 5), dtype=np.float32)
    y = (np.arange(100) % 3 == 0).astype(np.int8)
    x[:, 0] = y
    assert Weather(x=x, y=y).judge(lambda x: x[:, 0] > 0, 10) == 1.0
