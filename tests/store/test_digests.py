"""A digest is one of RFC 8785 where that form can say it, and of everything that JSON can."""

import hashlib

import pytest

from service.store import digests


def test_it_is_the_sha256_of_the_rfc_8785_form():
    assert digests.of({"b": 1.0, "a": [None, "é"]}) == hashlib.sha256('{"a":[null,"é"],"b":1}'.encode()).hexdigest()


@pytest.mark.parametrize("place", [lambda x: x, lambda x: [x], lambda x: {"seed": [{"of": x}]}])
def test_large_whole_numbers_count_as_text(place):
    """A feature map's seed may be up to 2^63, and its stream must be published all the same."""
    assert digests.of(place(2**53)) == digests.of(place(str(2**53)))
    assert digests.of(place(2**53)) != digests.of(place(2**53 + 1))
    assert digests.of(place(2**53 - 1)) != digests.of(place(str(2**53 - 1)))


@pytest.mark.parametrize("content", [float("nan"), [float("inf")], {"a": float("-inf")}])
def test_what_no_json_has_is_refused(content):
    with pytest.raises(ValueError, match="JCS"):
        digests.of(content)
