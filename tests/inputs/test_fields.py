"""Each number of a configuration lies within its bounds, both of them allowed, and is written as a number."""

from decimal import Decimal
from math import inf, nan, nextafter

import pytest
from pydantic import TypeAdapter, ValidationError

from service.inputs import fields

EXACT = {  # name: (least, most, step beyond them)
    "Epsilon": (Decimal("1e-9"), Decimal(1000), Decimal("1e-12")),
    "Growth": (Decimal("0.01"), Decimal(100), Decimal("1e-9")),
    "Share": (Decimal("0.01"), Decimal("0.99"), Decimal("1e-9")),
    "Exponent": (Decimal("0.01"), Decimal("0.5"), Decimal("1e-9")),
    "PublishDelay": (Decimal("0.05"), Decimal(86_400), Decimal("1e-9")),
}
WHOLE = {"Count": (1, 2**40), "Steps": (1, 100_000)}
DOUBLE = {"Positive": (1e-6, 1e6), "Weight": (-1e9, 1e9)}


def read(name, value):
    return TypeAdapter(getattr(fields, name)).validate_python(value)


def refused(name, *values):
    for value in values:
        with pytest.raises(ValidationError):
            read(name, value)


@pytest.mark.parametrize("name", EXACT)
def test_an_exact_number_is_within_its_bounds(name):
    least, most, step = EXACT[name]
    assert [read(name, each) for each in (least, most)] == [least, most]
    refused(name, least - step, most + step, -least, True, str(most), None, nan, inf)


@pytest.mark.parametrize("name", WHOLE)
def test_a_count_is_within_its_bounds_and_whole(name):
    least, most = WHOLE[name]
    assert [read(name, each) for each in (least, most)] == [least, most]
    refused(name, least - 1, most + 1, 2.0, True, "2", None)


@pytest.mark.parametrize("name", DOUBLE)
def test_a_double_is_within_its_bounds_and_finite(name):
    least, most = DOUBLE[name]
    assert [read(name, each) for each in (least, most)] == [least, most]
    refused(name, nextafter(least, -inf), nextafter(most, inf), "1", True, None, nan, inf, -inf)


def test_a_delta_is_zero_or_a_probability_that_doubles_hold():
    for delta in (Decimal(0), Decimal("1e-100"), Decimal("0.999999")):
        assert read("Delta", delta) == delta
    refused("Delta", Decimal("9e-101"), Decimal(-1), Decimal(1), True, "0.5", nan)


def test_no_delay_is_none_at_all():
    assert read("PublishDelay", 0) == 0
    with pytest.raises(ValidationError, match=r"between 0\.05 and 86400 seconds"):
        read("PublishDelay", 0.01)


def test_a_decimal_has_at_most_as_many_digits_as_every_double_keeps():
    assert read("Epsilon", Decimal("0.123456789012345")) == Decimal("0.123456789012345")
    refused("Epsilon", Decimal("0.1234567890123456"))
    assert read("Epsilon", Decimal("1.50")).as_tuple() == Decimal("1.5").as_tuple()
    for value, shown in ((1, "1"), (Decimal("2.0"), "2"), (0.25, "0.25")):
        adapter = TypeAdapter(fields.Epsilon)
        assert adapter.dump_json(adapter.validate_python(value)).decode() == shown


@pytest.mark.parametrize("unfit", ["\n", "\0", "\x7f", "\x85", "\u2028", "\u2029", "\ufffd"])
def test_a_line_has_no_character_that_ends_it_or_can_not_be_stored(unfit):
    assert read("OneLine", "naïve — 数") == "naïve — 数"
    with pytest.raises(ValidationError, match="must be one line of text in UTF-8, without control characters"):
        read("OneLine", f"a{unfit}b")


def test_an_exact_number_stays_exact_outside_of_json():
    adapter = TypeAdapter(fields.Epsilon)
    assert isinstance(adapter.dump_python(Decimal("0.1")), Decimal)
    assert adapter.dump_python(Decimal("0.1"), mode="json") == 0.1


def test_settings_are_not_changed_once_they_are_made():
    class Setting(fields.Shape):
        size: int

    setting = Setting(size=1)
    with pytest.raises(ValidationError, match="frozen"):
        setting.size = 2
    assert hash(setting) == hash(Setting(size=1))
