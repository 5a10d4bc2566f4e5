"""A digest is one of RFC 8785 where that form can say it, and of everything that JSON can; and nothing is left out."""

import hashlib
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from service.store import charges, digests, lineage, publications, releases, segments, streams
from service.store.publications import Publication
from service.store.segments import Segment
from service.store.step_records import remembered
from service.store.streams import Stream


def test_it_is_the_sha256_of_the_rfc_8785_form():
    assert digests.of({"b": 1.0, "a": [None, "é"]}) == hashlib.sha256('{"a":[null,"é"],"b":1}'.encode()).hexdigest()


_SMALL = st.integers(1 - 2**53, 2**53 - 1)
_PLAIN = st.none() | st.booleans() | _SMALL | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@pytest.mark.more
@given(st.recursive(_PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_it_is_the_form_of_whatever_json_holds(content):
    assert digests.of(content) == hashlib.sha256(rfc8785.dumps(content)).hexdigest()


def test_what_is_no_text_is_no_name_and_no_content():
    for content in ({1: 2}, {"a": "\ud800"}, {"a": b""}, {"a": Decimal(1)}):
        with pytest.raises(ValueError, match=r"strings|surrogates|unsupported"):
            digests.of(content)


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


def another(value: Any) -> Any:
    """Return something of the same type, or at least like it."""
    match value:
        case str():
            return value + "0"
        case bool():
            return not value
        case dict():
            return value | {"another": 1}
        case list():
            return [*value, 7]
        case bytes():
            return value + b"0"
        case datetime():
            return value + timedelta(microseconds=1)
        case None:
            return 7
        case _:
            return value + 1


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
NUMBERS = np.arange(6.0).reshape(2, 3)


def digest_of_memory(number: int, values: Any, terms: Any) -> str | None:
    return remembered({1: NUMBERS, number: values}, terms).digest


@pytest.mark.parametrize("changed", ["number", "shape", "values", "terms"])
def test_each_part_of_what_is_remembered_is_in_its_digest(changed):
    left = {"number": 2, "values": NUMBERS, "terms": {"scale": 1.0}}
    other = {
        "number": {"number": 3},
        "shape": {"values": NUMBERS.reshape(3, 2)},
        "values": {"values": NUMBERS + 1e-300},
        "terms": {"terms": {"scale": 2.0}},
    }[changed]
    assert digest_of_memory(**left) != digest_of_memory(**left | other)


PUBLICATION = Publication(
    **dict.fromkeys((each.name for each in fields(Publication)), "0")
    | {"id": 1, "start": 2, "position": 3, "due": 4, "version": 5, "latest": 5, "chain": [4, 5], "worst_record": 1}
    | {name: Decimal(1) for name in ("epsilon", "delta", "worst_amount", "publish_delay")}
    | {"configuration": {"a": 1}, "plan": {"b": 1}, "obligations": {"c": 1}, "created_at": MOMENT}
)
PROMISED = (
    *("id", "name", "stream_promise", "start", "configuration", "plan", "kind", "epsilon", "delta", "created_at"),
    "features_from",
)
LEFT = (
    *("position", "due", "version", "latest", "chain", "digest", "worst_record", "worst_amount"),
    *("promise", "state", "reason"),
)
OWED = ("obligations", "promise")


def changed(thing: Any, name: str) -> Any:
    return replace(thing, **{name: another(getattr(thing, name))})


@pytest.mark.parametrize("name", PROMISED)
def test_each_part_of_a_publications_promise_is_in_its_digest(name):
    assert publications.promised(PUBLICATION) != publications.promised(changed(PUBLICATION, name))


@pytest.mark.parametrize("name", LEFT)
def test_each_part_of_how_a_publication_is_left_is_in_its_seal(name):
    assert publications.state_digest(PUBLICATION) != publications.state_digest(changed(PUBLICATION, name))


@pytest.mark.parametrize("name", OWED)
def test_obligations_and_the_promise_are_in_their_digest(name):
    assert publications.obligations_digest(PUBLICATION) != publications.obligations_digest(changed(PUBLICATION, name))


def test_every_column_of_a_publication_is_promised_or_sealed_or_said_elsewhere():
    elsewhere = {
        *(
            "seal",
            "obligations_digest",
            "stream",
            "stream_id",
            "distrusted",
            "accounting",
        ),  # of the stream, whose charges name the publication
        "publish_delay",  # of the configuration
        *(each.name for each in fields(Publication) if each.name.startswith("visible_")),
    }
    assert {each.name for each in fields(Publication)} == {*PROMISED, *LEFT, *OWED} | elsewhere


STREAM = Stream(
    **dict.fromkeys((each.name for each in fields(Stream)), "0")
    | {"schema": {"a": 1}, "epsilon": Decimal(1), "delta": Decimal(0), "created_at": MOMENT}
)


@pytest.mark.parametrize("name", ["name", "log", "schema", "retention", "epsilon", "delta", "created_at"])
def test_each_part_of_a_streams_promise_is_in_its_digest(name):
    assert streams.promised(STREAM) != streams.promised(changed(STREAM, name))


SEGMENT = Segment(start=0, stop=1, file="file", sha256=b"0")


@pytest.mark.parametrize("name", ["log", *(each.name for each in fields(Segment))])
def test_each_part_of_a_segment_is_in_its_digest(name):
    other = segments.digest("another", SEGMENT) if name == "log" else segments.digest("log", changed(SEGMENT, name))
    assert other != segments.digest("log", SEGMENT)


LINEAGE = {"publication": PUBLICATION, "memory": "memory", "models": {4: "four", 5: "five", 6: "six"}}


@pytest.mark.parametrize("name", ["promise", "position", "version", "chain", "memory", "models"])
def test_each_part_of_a_lineage_is_in_its_digest(name):
    match name:
        case "memory":
            other = {"memory": "another"}
        case "models":
            other = {"models": {4: "four", 5: "another"}}
        case "chain":
            other = {"publication": replace(PUBLICATION, chain=[4, 6])}
        case _:
            other = {"publication": changed(PUBLICATION, name)}
    assert lineage.of(*LINEAGE.values()) != lineage.of(*(LINEAGE | other).values())


RELEASE = {
    "version": 1,
    "time": 2,
    "role": "model",
    "window_start": 0,
    "window_stop": 2,
    "fit_start": 0,
    "fit_stop": 2,
    "parent": None,
    "shape": [1, 2],
    "model": {"a": 1},
    "noise": {"scale": 1.0},
    "published_at": MOMENT,
}
ABOUT = {"publication": "p", "charge": "hash", "parameters": "sha256", "previous": "digest"}


@pytest.mark.parametrize("name", [*RELEASE, *ABOUT])
def test_each_part_of_a_release_is_in_its_digest(name):
    row, context = (thing | {name: another(thing[name])} if name in thing else thing for thing in (RELEASE, ABOUT))
    assert releases.digest(row, **context) != releases.digest(RELEASE, **ABOUT)


CHARGE = {
    "id": 1,
    "start": 0,
    "end": 2,
    "publication": "p",
    "version": 1,
    "epsilon": 1.0,
    "delta": 0.0,
    "rho": None,
    "charged_at": "now",
    "previous_hash": None,
}


@pytest.mark.parametrize("name", CHARGE)
def test_each_part_of_a_charge_is_in_its_hash(name):
    assert charges.digest(CHARGE | {name: another(CHARGE[name])}) != charges.digest(CHARGE)
