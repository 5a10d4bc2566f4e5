"""Names of columns and classes: kept with the schema, and read in place of positions and numbers in every format."""

import json

import numpy as np
import pytest
from pydantic import ValidationError

from perennial import feature_maps
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.streams.batches import READERS, InvalidRecords
from service.streams.names import LONGEST_NAME, MAX_LISTED, MAX_NAMES
from service.streams.schema import NewStreamSchema, stored_schema

CLASSES = {"kind": "classification", "classes": 2}
WEATHER = {
    "features": 3,
    "task": CLASSES,
    "columns": ["temp", {"name": "wind [m/s]", "unit": "m/s"}, "pressure"],
    "class_names": ["dry", "rain"],
}
SECRET = "zebra-crossing-7319"


def schema(**changes) -> NewStreamSchema:
    return NewStreamSchema.model_validate(WEATHER | changes)


def ndjson(records) -> bytes:
    return "\n".join(map(json.dumps, records)).encode()


def columns(records) -> bytes:
    return json.dumps({name: [each[name] for each in records] for name in records[0]}).encode()


FORMATS = {"application/x-ndjson": ndjson, "application/json": columns}


def read(form: str, records, **changes):
    return READERS[form](FORMATS[form](records), schema(**changes).layout())


def reasons(form: str, records, **changes) -> list[tuple[int | None, str]]:
    with pytest.raises(InvalidRecords) as refused:
        read(form, records, **changes)
    assert SECRET not in str(refused.value.reasons)
    return refused.value.reasons


def test_a_schema_without_names_is_stored_as_before():
    stored = schema(columns=None, class_names=None).to_store()
    assert stored == {"features": 3, "task": CLASSES, "norm_bound": 1.0, "feature_map": None}
    assert schema(class_names=None).to_store()["columns"] == [
        {"name": "temp"},
        {"name": "wind [m/s]", "unit": "m/s"},
        {"name": "pressure"},
    ]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("by_name", [("x", "y"), ("x",), ("y",)])
def test_records_by_name_are_the_records_by_position(form, by_name):
    plain = [{"x": [1, 2.5, -3], "y": 1}, {"x": [4, 5, 6e3], "y": 0}]
    names = [each.name for each in schema().columns]
    named = [
        {
            "x": dict(reversed(list(zip(names, each["x"], strict=True)))) if "x" in by_name else each["x"],
            "y": WEATHER["class_names"][each["y"]] if "y" in by_name else each["y"],
        }
        for each in plain
    ]
    wanted, columns_by_name = read(form, plain), read(form, named)
    assert {name: (column.dtype, column.tolist()) for name, column in columns_by_name.items()} == {
        name: (column.dtype, column.tolist()) for name, column in wanted.items()
    }
    assert read(form, [plain[0], named[1]])["x"].tolist() == wanted["x"].tolist()


RIGHT = {"temp": 1, "wind [m/s]": 2, "pressure": 3}
KNOWN = 'its columns are "temp", "wind [m/s]", "pressure"'


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"x": RIGHT | {SECRET: 4}, "y": 1}, f"x: has a column that this stream does not have: {KNOWN}"),
        ({"x": {"temp": 1, SECRET: 2, "pressure": 3}, "y": 1}, KNOWN),
        ({"x": {"temp": 1}, "y": 1}, 'x: lacks "wind [m/s]", "pressure"'),
        ({"x": RIGHT | {"pressure": None}, "y": 1}, 'x: column 2 ("pressure") is missing'),
        ({"x": RIGHT | {"temp": SECRET}, "y": 1}, 'x: column 0 ("temp") is a text, not a number'),
        ({"x": RIGHT | {"temp": True}, "y": 1}, 'x: column 0 ("temp") is not a number'),
        ({"x": RIGHT | {"temp": [1]}, "y": 1}, 'x: column 0 ("temp") is not a number'),
        ({"x": [1, 2, None], "y": 1}, 'x: column 2 ("pressure") is missing'),
        ({"x": RIGHT, "y": SECRET}, 'y: is no class of this stream: its classes are "dry", "rain"'),
        ({"x": RIGHT, "y": 2}, "y: must be a whole number from 0 to 1"),
        ({"x": RIGHT, "y": True}, "y: is not a number"),
        ({"x": [1, 2], "y": "rain"}, "x: must be an array of 3 numbers"),
    ],
)
def test_a_wrong_name_is_explained_by_those_that_there_are(form, record, reason):
    good = {"x": RIGHT, "y": "dry"}
    ((row, refusal),) = reasons(form, [good, record])
    assert row == 1
    assert reason in refusal


@pytest.mark.parametrize("form", FORMATS)
def test_a_column_twice_is_refused(form):
    body = '{"x":{"temp":1,"wind [m/s]":2,"temp":3},"y":0}'
    if form == "application/json":
        body = body.replace('"x":{', '"x":[{').replace("},", "}],").replace(":0", ":[0]")
    with pytest.raises(InvalidRecords, match="invalid"):
        READERS[form](body.encode(), schema().layout())


@pytest.mark.parametrize("form", FORMATS)
def test_a_stream_without_names_says_so(form):
    record = {"x": RIGHT, "y": 0}
    assert "no names of columns" in reasons(form, [record], columns=None)[0][1]
    record = {"x": [1, 2, 3], "y": "rain"}
    assert "without quotes" in reasons(form, [record], class_names=None)[0][1]


@pytest.mark.parametrize("form", FORMATS)
def test_texts_and_categories_have_names_too(form):
    hashing = {"kind": "hashing", "features": 8, "tokens": "words"}
    texts = {"features": 2, "columns": ["title", "body"], "feature_map": hashing}
    columns = read(form, [{"x": {"body": "b", "title": "a"}, "y": "rain"}], **texts)
    assert (columns["x"].tolist(), columns["y"].tolist()) == ([["a", "b"]], [1])
    assert 'column 1 ("body") is not a text' in reasons(form, [{"x": {"body": 1, "title": "a"}, "y": 0}], **texts)[0][1]
    fruit = {"features": None, "columns": None, "task": {"kind": "categorical", "cardinality": 2}}
    assert read(form, [{"y": "rain"}, {"y": 0}], **fruit)["y"].tolist() == [1, 0]


def test_of_many_names_the_first_ones_are_listed():
    names = [f"c{number}" for number in range(30)]
    many = {"features": 30, "columns": names}
    (_, reason), *_ = reasons("application/x-ndjson", [{"x": {SECRET: 1}, "y": 0}], **many)
    assert reason.endswith(f'"c{MAX_LISTED - 1}" and {30 - MAX_LISTED} more')
    few = {"features": 2, "columns": names[:2]}
    (_, reason), *_ = reasons("application/x-ndjson", [{"x": {SECRET: 1}, "y": 0}], **few)
    assert reason.endswith('"c0", "c1"')


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": ["a", "b"]}, "columns has 2 names, but features is 3"),
        ({"columns": ["a", "b", "a"]}, "a name comes twice in columns"),
        ({"columns": ["a", "b", ""]}, "at least 1 character"),
        ({"columns": ["a", "b", " c"]}, "no blanks at its ends"),
        ({"columns": ["a", "b", "c\x00d"]}, "no control characters"),
        ({"columns": ["a", "b", "c" * (LONGEST_NAME + 1)]}, "at most 100 characters"),
        ({"columns": ["a", "b", {"name": "c", "range": [1, 1]}]}, "range must be"),
        ({"columns": ["a", "b", {"name": "c", "range": [2, 1]}]}, "range must be"),
        ({"columns": ["a", "b", {"unit": "m"}]}, "required"),
        ({"columns": []}, "at least 1"),
        ({"features": MAX_NAMES + 1, "columns": [f"{n}" for n in range(MAX_NAMES + 1)]}, f"at most {MAX_NAMES}"),
        ({"class_names": ["dry"]}, "class_names has 1 names, but task.classes is 2"),
        ({"class_names": ["dry", "dry"]}, "a name comes twice in class_names"),
        ({"task": {"kind": "regression", "bound": 1.0}}, "a regression has no classes"),
        (
            {"task": {"kind": "unlabelled"}, "class_names": ["a", "b", "c"]},
            "  class_names has 3 names, but the number of labels that people give is 2",
        ),
    ],
)
def test_names_that_can_not_be_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        schema(**changes)


RANGED = [{"name": "temp", "range": [-30, 50]}, {"name": "wind", "range": [0, 100]}, "pressure"]
SCALES = {"kind": "standardize", "version": 1, "mean": [10.0, 50.0, 0.0], "scale": [40.0, 50.0, 1.0]}


def test_scales_follow_from_public_ranges():
    ranged = schema(columns=RANGED)
    assert ranged.to_store()["feature_map"] == SCALES
    mapped = ranged.mapping()(np.array([[-30, 100, 3], [50, 0, 4], [90, 50, 5]], dtype=np.float32))
    assert mapped.tolist() == [[-1, 1, 3], [1, -1, 4], [2, 0, 5]]


FAR = {
    "unix time": (1_600_000_000, 1_800_000_000),
    "microseconds": (1.6e15, 1.8e15),
    "market value": (0, 5e12),
    "all": (-9e15, 9e15),
}


def test_ranges_far_from_zero_and_wide_ones_scale_as_exactly_here_as_in_the_client():
    columns = [{"name": name, "range": [*ends]} for name, ends in FAR.items()]
    ranged = schema(features=len(FAR), columns=columns)
    stored = json.loads(json.dumps(ranged.to_store()))
    assert NewStreamSchema.model_validate(stored).to_store() == stored_schema(stored).to_store() == ranged.to_store()
    low, high = np.array([*FAR.values()]).T
    records = (low + np.random.default_rng(3).random((500, len(FAR))) * (high - low)).astype(np.float32)
    mapped = stored_schema(stored).mapping()(records)
    assert np.array_equal(mapped, feature_maps.build(stored["feature_map"], len(FAR))(records))
    assert (np.abs(mapped).max(axis=0) > 0.9).all()
    assert (np.abs(mapped) <= 1 + 1e-6).all()


@pytest.mark.parametrize("range_", [[0, 9.1e15], [-1e16, 0], [0, 1e-6], [1, 1], [2, 1], [0, float("inf")]])
def test_a_range_beyond_what_is_exact_is_refused(range_):
    with pytest.raises(ValidationError, match=r"range"):
        schema(columns=["a", "b", {"name": "c", "range": range_}])


@pytest.mark.parametrize(
    ("given", "maps"),
    [
        ({"kind": "normalize"}, [SCALES, {"kind": "normalize", "version": 1}]),
        (
            {"kind": "compose", "maps": [{"kind": "center"}, {"kind": "normalize"}]},
            [SCALES, {"kind": "center", "version": 1}, {"kind": "normalize", "version": 1}],
        ),
    ],
)
def test_scales_come_before_a_map(given, maps):
    stored = schema(columns=RANGED, feature_map=given).to_store()
    assert stored["feature_map"] == {"kind": "compose", "maps": maps}
    assert NewStreamSchema.model_validate(stored).to_store() == stored_schema(stored).to_store() == stored


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "standardize", "mean": 1.0}, "leave out standardize, or the ranges"),
        ({"kind": "hashing", "features": 8, "tokens": "categories"}, "hashing takes columns as they are"),
        ({"kind": "compose", "maps": [{"kind": "normalize"}] * 8}, "more than 8 maps"),
    ],
)
def test_ranges_beside_a_map_that_scales_otherwise_are_refused(given, message):
    with pytest.raises(ValidationError, match=message):
        schema(columns=RANGED, feature_map=given)


def test_a_model_says_the_names_and_without_them_nothing_new():
    configuration = PublicationConfiguration.model_validate(
        {
            "mechanism": {"kind": "independent_batches", "batch": 100},
            "learner": {"kind": "noisy_gradient_descent"},
            "privacy": {"epsilon": 1, "delta": 1e-6},
        }
    )
    named, plain = (
        build(each, configuration).model_description() for each in (schema(), schema(columns=None, class_names=None))
    )
    names = {"columns": ["temp", "wind [m/s]", "pressure"], "class_names": ["dry", "rain"]}
    assert named == plain | names
