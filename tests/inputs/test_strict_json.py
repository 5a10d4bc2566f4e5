"""Configuration means what is written, whoever reads it, or is refused."""

import json
import random
import struct

import pytest

from service.inputs.strict_json import REPEATED_NAME, UNFIT_NUMBER, Misread, read


@pytest.mark.parametrize(
    "text",
    [
        "0.1",
        "1.50",
        "-0.0",
        "1e3",
        "1E-6",
        "1e-6",
        "1e21",
        "4.0",
        "1e-100",
        "123.456789012345",
        "0.30000000000000004",
        "1.7976931348623157e308",
        "5e-324",
        "1.00000000000000000000000000000000000000",
        "100000000000000000000",
        "9007199254740993",
        '{"a": {"a": [{"a": 1}, {"a": 2}]}, "b": "a"}',
        "true",
        "NaN",
        "-Infinity",
    ],
)
def test_ordinary_documents_are_read_as_the_library_reads_them(text):
    assert repr(read(text)) == repr(read(text.encode())) == repr(json.loads(text))


def test_every_double_as_programs_write_it_is_read():
    chance = random.Random(7)
    doubles = [struct.unpack("d", chance.randbytes(8))[0] for _ in range(10_000)]
    finite = [each for each in doubles if abs(each) < float("inf")]
    assert len(finite) > 9000
    assert read(json.dumps(finite)) == finite


@pytest.mark.parametrize(
    "digits",
    [
        "3.99999999999999999",
        "4.00000000000000001",
        "0.1000000000000000055511151231257827",
        "0.10000000000000001",
        "9007199254740993.0",
        "9007199254740993e0",
        "1e400",
        "1E400",
        "-1e400",
        "1e-400",
        "1.23456e-320",
        "1e99999999999999999999",
        "1e-99999999999999999999",
    ],
)
def test_a_number_that_a_double_would_change_is_refused_where_it_is(digits):
    for text, place in (
        (digits, []),
        (f'{{"budget": {{"epsilon": {digits}}}}}', ["budget", "epsilon"]),
        (f'{{"lines": [{{}}, {{"rate": [1, {digits}]}}]}}', ["lines", 1, "rate", 1]),
    ):
        with pytest.raises(Misread) as misread:
            read(text)
        assert (misread.value.place, misread.value.reason) == (place, UNFIT_NUMBER)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"epsilon": 1, "epsilon": 1000}', ["epsilon"]),
        ('{"epsilon": 1, "epsilon": 1}', ["epsilon"]),
        ('{"epsilon": 1, "\\u0065psilon": 1}', ["epsilon"]),
        ('{"b": [1, {"c": {"a": 1, "d": 2, "a": null}}]}', ["b", 1, "c", "a"]),
        ('{"a": {"b": 1, "b": 2}, "a": 1}', ["a"]),
        ('{"a": 0.10000000000000001, "a": 1}', ["a"]),
    ],
)
def test_a_name_twice_is_refused_where_it_is(text, place):
    with pytest.raises(Misread) as misread:
        read(text)
    assert (misread.value.place, misread.value.reason) == (place, REPEATED_NAME)


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", '{"a": 1,}', "1.", b"\xff", b'{"a": "\xff"}', "1" * 5000])
def test_what_is_not_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"Expecting|Extra|codec|limit") as error:
        read(text)
    assert not isinstance(error.value, Misread)


@pytest.mark.parametrize("bottom", ["1", "0.10000000000000001", '{"a": 1, "a": 2}'])
def test_a_document_without_end_is_refused_as_too_deep(bottom):
    with pytest.raises(RecursionError):
        read("[" * 200_000 + bottom + "]" * 200_000)
