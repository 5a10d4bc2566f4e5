"""Whose a record is, in every format: the same units, the same refusals; the log holds pseudonyms, never an id."""

import json

import nanoarrow
import numpy as np
import pytest

from service.streams.batches import READERS, InvalidRecords
from service.streams.schema import stored_schema
from service.streams.units import MAX_ID_BYTES, PSEUDONYM_BYTES, pseudonym
from tests.api.formats import ARROW, JSON, NDJSON, Arrow, as_stream

TASK = {"kind": "classification", "classes": 2}
STORED = {"features": 1, "task": TASK, "unit": {"max_records": 4, "min_separation": 2}}
LAYOUT = stored_schema(STORED).layout()
HASHED = stored_schema(
    {
        "features": 1,
        "task": TASK,
        "feature_map": {"kind": "hashing", "version": 1, "features": 8, "tokens": "words", "ngrams": [1, 1], "seed": 0},
        "unit": {"max_records": 1},
    }
).layout()
SECRET = bytes(range(32))
NO_ID = "unit: must be a text or a whole number"


def as_columns(units: list) -> bytes:
    return json.dumps({"unit": units, "x": [[1.5]] * len(units), "y": [1] * len(units)}).encode()


def as_lines(units: list) -> bytes:
    return "".join(json.dumps({"x": [1.5], "y": 1, "unit": each}) + "\n" for each in units).encode()


def as_arrow(units: list, of_texts: nanoarrow.Schema | None = None) -> bytes:
    texts = not all(each is None or isinstance(each, int) for each in units)
    kind = (of_texts or nanoarrow.string()) if texts else nanoarrow.int64()
    parts = []
    for part in (units[:1], units[1:]):
        items = nanoarrow.c_array_from_buffers(nanoarrow.float64(), len(part), [None, np.full(len(part), 1.5)])
        x = nanoarrow.c_array_from_buffers(
            nanoarrow.fixed_size_list(nanoarrow.float64(), 1), len(part), [None], children=[items]
        )
        y = nanoarrow.c_array_from_buffers(nanoarrow.int64(), len(part), [None, np.ones(len(part), dtype=np.int64)])
        parts.append((len(part), [x, y, nanoarrow.c_array(part, kind)]))
    fields = {"x": nanoarrow.fixed_size_list(nanoarrow.float64(), 1), "y": nanoarrow.int64(), "unit": kind}
    return as_stream(fields, *parts)


WRITERS = {"json": (JSON, as_columns), "ndjson": (NDJSON, as_lines), "arrow": (ARROW, as_arrow)}
formats = pytest.mark.parametrize("name", WRITERS)


def read(name: str, units: list):
    media_type, write = WRITERS[name]
    return READERS[media_type](write(units), LAYOUT)


def refused(name: str, units: list) -> list:
    with pytest.raises(InvalidRecords) as refusal:
        read(name, units)
    return list(refusal.value.reasons)


@formats
@pytest.mark.parametrize(
    "units",
    [["a", "b", "a"], [1, 2**62, -1], ["[", "]{}", '"\n\\'], ["e\u0301", "\u00e9", "\U0001f600"], ["one"]],
    ids=["texts", "numbers", "brackets", "unicode", "one"],
)
def test_units_are_read_as_they_were_sent(name, units):
    columns = read(name, units)
    assert list(columns) == ["x", "y", "unit"]
    assert columns["unit"].tolist() == units
    logged = LAYOUT.decode(LAYOUT.encode(columns, SECRET))
    assert logged["unit"].shape == (len(units), PSEUDONYM_BYTES)
    assert [each.tobytes() for each in logged["unit"]] == [pseudonym(SECRET, each) for each in units]
    assert np.array_equal(logged["x"], columns["x"])


@pytest.mark.parametrize("name", ["json", "ndjson"])
@pytest.mark.parametrize("other", [1.0, True, None, [1], ["a"], {"a": 1}], ids=repr)
def test_what_names_no_unit_is_refused_by_its_row(name, other):
    assert refused(name, ["a", other, 7]) == [(1, NO_ID)]


@formats
def test_nulls_and_long_ids_are_refused_by_their_rows(name):
    long = f"unit: must have 1 to {MAX_ID_BYTES} bytes of UTF-8"
    assert refused(name, ["a", None, ""]) == [(1, NO_ID), (2, long)]
    assert refused(name, [5, None]) == [(1, NO_ID)]
    assert refused(name, ["x" * 257] * 150) == [(row, long) for row in range(100)]


@formats
def test_a_record_without_unit_is_refused_and_so_is_a_unit_where_there_are_none(name):
    media_type, write = WRITERS[name]
    without = stored_schema({name: value for name, value in STORED.items() if name != "unit"}).layout()
    with pytest.raises(InvalidRecords):
        READERS[media_type](write(["a", "b"]), without)
    body = {JSON: b'{"x":[[1.5]],"y":[1]}', NDJSON: b'{"x":[1.5],"y":1}'}
    if media_type in body:
        with pytest.raises(InvalidRecords) as refusal:
            READERS[media_type](body[media_type], LAYOUT)
        assert '"unit"' in refusal.value.reasons[0][1]


@pytest.mark.parametrize("lists", ["fixed", "list", "large"])
def test_arrow_takes_lists_of_every_kind(lists):
    layout = stored_schema({"features": 2, "task": TASK}).layout()
    read = READERS[ARROW](Arrow(lists)([[1, 2], [3, 4]], [0, 1]), layout)
    assert (read["x"].tolist(), read["y"].tolist()) == ([[1, 2], [3, 4]], [0, 1])


def test_arrow_takes_no_real_numbers_for_units():
    numbers = nanoarrow.c_array([1.5], nanoarrow.float64())
    ones = nanoarrow.c_array([1], nanoarrow.int64())
    row = nanoarrow.c_array_from_buffers(
        nanoarrow.fixed_size_list(nanoarrow.float64(), 1),
        1,
        [None],
        children=[nanoarrow.c_array([1.5], nanoarrow.float64())],
    )
    fields = {
        "x": nanoarrow.fixed_size_list(nanoarrow.float64(), 1),
        "y": nanoarrow.int64(),
        "unit": nanoarrow.float64(),
    }
    with pytest.raises(InvalidRecords) as refusal:
        READERS[ARROW](as_stream(fields, (1, [row, ones, numbers])), LAYOUT)
    assert list(refusal.value.reasons) == [
        (None, '"unit" must be a column of texts (utf8 or large_utf8) or integers, but is of type float')
    ]


def test_arrow_takes_texts_with_long_offsets_too():
    body = as_arrow(["a", "bcd", "e"], nanoarrow.large_string())
    assert READERS[ARROW](body, LAYOUT)["unit"].tolist() == ["a", "bcd", "e"]


def test_texts_that_are_not_utf8_name_no_unit():
    body = as_arrow(["abc", "abd"]).replace(b"abd", b"a\xff\xfe")
    with pytest.raises(InvalidRecords) as refusal:
        READERS[ARROW](body, LAYOUT)
    assert list(refusal.value.reasons) == [(1, NO_ID)]


def test_an_id_of_which_a_part_came_is_refused():
    """The part could be the id of another unit."""
    before, _, ids = as_arrow(["anna-7"]).rpartition(np.array([0, 6], "<i4").tobytes())
    for ends in ([0, 6], [0, 7], [-3, 6]):
        body = before + np.array(ends, "<i4").tobytes() + ids
        if ends == [0, 6]:
            assert READERS[ARROW](body, LAYOUT)["unit"] == ["anna-7"]
        else:
            with pytest.raises(InvalidRecords):
                READERS[ARROW](body, LAYOUT)


@pytest.mark.parametrize("name", ["json", "ndjson"])
def test_streams_of_texts_have_units_too(name):
    media_type = WRITERS[name][0]
    body = {JSON: b'{"x":[["a b"]],"y":[1],"unit":["u"]}', NDJSON: b'{"x":["a b"],"y":1,"unit":"u"}'}[media_type]
    columns = READERS[media_type](body, HASHED)
    logged = HASHED.decode(HASHED.encode(columns, SECRET))
    assert logged["unit"].tobytes() == pseudonym(SECRET, "u")


def test_a_schema_without_units_is_stored_as_ever():
    assert "unit" in STORED
    assert stored_schema(STORED).unit.bound.min_separation == 2
    assert not stored_schema({"features": 1, "task": TASK}).layout().units
