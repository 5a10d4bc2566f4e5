"""Names in the client: columns are matched by name, classes too, and models answer with names if they are asked."""

import asyncio
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import perennial.__main__ as command
from perennial import InvalidArgument, InvalidData, Model, Unsupported, connect, connect_async
from perennial.data import blocks, features_of
from perennial.names import Names
from perennial.schema import Schema
from perennial.settings import stream as stream_settings
from service.streams.schema import StreamSchema
from tests.client.conftest import numbered, posts
from tests.client.releases import MAPS, SIDE, TEXTS
from tests.client.test_estimators import model
from tests.client.test_load import WRITERS
from tests.conftest import Service

NAMES = Names(columns=("temp", "wind"), classes=("dry", "rain"))
X, Y = np.array([[1.5, -2.0], [0.25, 4.0], [3.0, 0.5]]), np.array([0, 1, 1])
WORDS = ["dry", "rain", "rain"]
MIXED = {"rain": WORDS, "wind": X[:, 1], "temp": X[:, 0]}
ROWS = [dict(zip(MIXED, row, strict=True)) for row in zip(*MIXED.values(), strict=True)]
SECRET = "zebra-crossing-7319"


@pytest.mark.parametrize(
    ("data", "label", "features"),
    [
        (pd.DataFrame(MIXED), "rain", None),
        (pd.DataFrame(MIXED).astype({"rain": "category"}), "rain", None),
        (pd.DataFrame(MIXED), "rain", ["wind", "temp"]),
        (pd.DataFrame(MIXED).assign(other=1), "rain", ["wind", "temp"]),
        (pa.table(MIXED), "rain", None),
        (pa.table(MIXED).set_column(0, "rain", pa.array(WORDS).dictionary_encode()), "rain", None),
        (MIXED, "rain", None),
        (pd.DataFrame(MIXED).drop(columns="rain"), WORDS, None),
        (iter(ROWS), "rain", None),
        ([{"x": {"wind": wind, "temp": temp}, "y": y} for (temp, wind), y in zip(X, WORDS, strict=True)], None, None),
        ([{"x": [temp, wind], "y": y} for (temp, wind), y in zip(X, WORDS, strict=True)], None, None),
        (pd.DataFrame(MIXED).itertuples(index=False), "rain", None),
        ([*pd.DataFrame(MIXED).drop(columns="rain").itertuples(index=False)], WORDS, None),
        (pa.table({"x": X.tolist(), "y": Y}), "y", None),
        (pd.DataFrame(X), Y, None),
        (X, WORDS, None),
        ((X, WORDS), None, None),
        (zip(X.tolist(), WORDS, strict=True), None, None),
        ((pd.DataFrame(MIXED).drop(columns="rain"), WORDS), None, None),
        (iter([(pa.table(MIXED).drop_columns("rain"), WORDS)]), None, None),
        (zip((row for _, row in pd.DataFrame(MIXED).drop(columns="rain").iterrows()), WORDS, strict=True), None, None),
        ([row for _, row in pd.DataFrame(MIXED).drop(columns="rain").iterrows()], WORDS, None),
    ],
)
def test_records_are_put_in_the_streams_order(data, label, features):
    pieces = list(blocks(data, label, features, NAMES))
    np.testing.assert_array_equal(np.concatenate([block.x for block in pieces]), X)
    np.testing.assert_array_equal(np.concatenate([block.y for block in pieces]), Y)


def test_numbers_that_name_columns_count_by_name():
    """A stream that was made from a frame has their digits as names."""
    frame = pd.DataFrame(X)
    names = Names(columns=tuple(stream_settings("days", epsilon=1, columns=frame, classes=2)["columns"]))
    assert names.columns == ("0", "1")
    for given in (frame[[1, 0]], iter([{1: wind, 0: temp} for temp, wind in X])):
        (block,) = blocks(given, names=names)
        np.testing.assert_array_equal(block.x, X)
    with pytest.raises(InvalidData, match='no column "0"'):
        list(blocks(frame[[1]].assign(wind=0.0), names=names))


def test_columns_count_by_name_where_some_are_numbers():
    names = Names(columns=("a", "b", "0"))
    frame = pd.DataFrame([[2.0, 1.0, 3.0]], columns=["b", "a", 0])
    (block,) = blocks(frame, names=names)
    assert block.x.tolist() == [[1.0, 2.0, 3.0]]
    with pytest.raises(InvalidData, match='no column "b"'):
        list(blocks(frame.rename(columns={"b": 7}), names=names))
    with pytest.raises(InvalidData, match='no column "b"'):
        list(blocks(pd.DataFrame([[1.0, 2.0, 3.0]], columns=[0, "0", "a"]), names=names))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            pd.DataFrame(MIXED).rename(columns={"temp": SECRET}),
            'no column "temp": the stream\'s columns are "temp", "wi',
        ),
        (
            pd.DataFrame(MIXED).assign(**{SECRET: 1}),
            "There is 1 column that the stream does not have: leave it out",
        ),
        (iter([{"temp": 1, SECRET: 2, "rain": "dry"}]), 'no column "wind"'),
        (pd.DataFrame({"rain": WORDS}), 'no column "temp", "wind"'),
        (
            pd.DataFrame(MIXED | {"rain": ["dry", SECRET, "dry"]}),
            'row 1, counted from 0, is no class: the classes are "dry", "rain"',
        ),
    ],
)
def test_a_name_that_there_is_not_is_explained(data, reason):
    with pytest.raises(InvalidData, match=reason) as refused:
        list(blocks(data, "rain", None, NAMES))
    assert SECRET not in str(refused.value)


def test_one_text_is_no_list_of_names():
    """Its letters would be taken for names."""
    for wrong in ({"columns": "ab", "classes": 2}, {"columns": 2, "classes": 2}, {"class_names": "ab"}):
        with pytest.raises(InvalidArgument, match=f'{next(iter(wrong))} must be a list of names, such as \\["first"'):
            stream_settings("days", epsilon=1, **wrong)
    with pytest.raises(InvalidArgument, match="features must be a list of names"):
        list(blocks({"a": [1.0], "b": [2.0]}, features="ab"))


@pytest.mark.parametrize("data", [pd.DataFrame(MIXED), pa.table(MIXED), MIXED, ROWS], ids=type)
@pytest.mark.parametrize("wrong", [{"label": "Rain"}, {"label": "rain", "unit": "Rain"}])
def test_a_wrong_name_of_a_label_or_a_unit_is_named(data, wrong):
    """And not that the right column is one too many."""
    with pytest.raises(InvalidData, match=r"(no|lacks a) column:? 'Rain'"):
        list(blocks(data, names=NAMES, **wrong))


@pytest.mark.parametrize("wrong", [5, (1,), [1, 2, 3]])
def test_a_range_of_a_column_that_is_none_is_refused_and_not_sent(wrong):
    with pytest.raises(InvalidArgument, match="the range of temp must be"):
        stream_settings("days", epsilon=1, classes=2, columns={"temp": wrong})


def test_labels_that_are_texts_need_names():
    with pytest.raises(InvalidData, match="only a stream with class_names takes texts"):
        list(blocks(pd.DataFrame(MIXED), "rain"))


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        (["temp", "wind"], ["temp", "wind"]),
        ({"temp": (-30, 50), "wind": None}, [{"name": "temp", "range": [-30, 50]}, "wind"]),
        ({0: (-30, 50), 1: None}, [{"name": "0", "range": [-30, 50]}, "1"]),
        ([{"name": "temp", "unit": "°C"}, "wind"], [{"name": "temp", "unit": "°C"}, "wind"]),
        (pd.DataFrame(columns=["temp", "rain", "wind"]), ["temp", "wind"]),
        (pa.table({"temp": [1], "rain": [1], "wind": [1]}), ["temp", "wind"]),
    ],
)
def test_columns_of_a_new_stream(given, columns):
    settings = stream_settings("days", epsilon=1, columns=given, label="rain", class_names=("dry", "rain"))
    assert settings == {
        "name": "days",
        "budget": {"epsilon": 1, "delta": 0.0},
        "features": 2,
        "task": {"kind": "classification", "classes": 2},
        "columns": columns,
        "class_names": ["dry", "rain"],
    }


def test_a_model_answers_with_names():
    named, plain = model("logistic", 2, named=True), model("logistic", 2)
    assert (named.columns, named.class_names, plain.columns, plain.class_names) == (
        ("c0", "c1"),
        ("dry", "rain"),
        (),
        (),
    )
    labels = named.predict(pd.DataFrame(X[:, ::-1], columns=["c1", "c0"]))
    np.testing.assert_array_equal(labels, plain.predict(X))
    assert named.predict(X, names=True).tolist() == [named.class_names[label] for label in labels]
    assert Model.from_safetensors(named.to_safetensors()).class_names == ("dry", "rain")
    with pytest.raises(Unsupported, match="no names"):
        plain.predict(X, names=True)
    with pytest.raises(InvalidData, match='no column "c0"'):
        named.predict(pd.DataFrame(X, columns=["temp", "wind"]))
    with pytest.raises(
        InvalidData, match="column that the stream does not have: leave it out, such as the label's; the stream"
    ):
        named.predict(pd.DataFrame(X, columns=["c0", "c1"]).assign(rain=WORDS))
    with pytest.raises(
        InvalidData, match="takes 2 features, but there are 3: leave out what is none, such as the label"
    ):
        plain.predict(pd.DataFrame(X, columns=["c0", "c1"]).assign(rain=Y))
    assert features_of([[1, 2]], 2, NAMES).tolist() == [[1, 2]]
    assert features_of([{"wind": 2, "temp": 1}], 2, NAMES).tolist() == [[1, 2]]
    assert features_of(pd.DataFrame(columns=["wind", "temp"], dtype=float), 2, NAMES).shape == (0, 2)


def sent(service: Service, key: str, stream: str, frame) -> None:
    with connect(service.url, key) as client:
        client.stream(stream).append(frame, label="rain")


async def sent_async(service: Service, key: str, stream: str, frame) -> None:
    async with await connect_async(service.url, key) as client:
        await client.stream(stream).append(frame, label="rain")


@pytest.mark.more
def test_a_producer_sends_frames_by_name(service: Service, client):
    """A model without noise to speak of is the same, however the columns stand, and whoever sends them."""
    records = 60
    x = np.random.default_rng(0).normal(size=(records, 2))
    frame = pd.DataFrame(x, columns=["temp", "wind"])
    frame["rain"] = np.where(x[:, 0] > 0, "rain", "dry")
    mixed = frame[["rain", "wind", "temp"]]
    privacy = {"epsilon": 1000, "delta": 1e-6}
    models = []
    for number, given in enumerate((frame, mixed, mixed)):
        stream = service.stream(columns=["temp", "wind"], class_names=["dry", "rain"], **privacy)
        publication = service.publish(
            stream, {"kind": "independent_batches", "batch": records}, **privacy, learner={"regularization": 1}
        )
        key = service.key("ingest", streams=[stream])
        if number < 2:
            sent(service, key, stream, given)
        else:
            asyncio.run(sent_async(service, key, stream, given))
        models.append(client.publication(publication).latest(wait=200))
    for other in models[1:]:
        assert np.linalg.norm(models[0].parameters - other.parameters) < 100 * models[0].metadata["noise"]["scale"]
    assert models[0].parameters[0, 0] > 5 * abs(models[0].parameters[0, 1])
    assert set(models[0].predict(mixed[["wind", "temp"]], names=True)) == {"dry", "rain"}


@pytest.mark.more
@pytest.mark.parametrize("name", ["days.csv", "days.parquet", "days.ndjson"])
def test_files_are_loaded_by_name(service: Service, client, load, tmp_path, name):
    frame = pd.DataFrame(MIXED)
    WRITERS[name](tmp_path / name, frame)
    stream = client.stream(service.stream(columns=["temp", "wind"], class_names=["dry", "rain"]))
    for _ in range(2):
        assert load(stream.name, tmp_path / name) == 0
    numbered(stream, 3)


def test_ndjson_by_name_is_loaded(service: Service, client, key_file, tmp_path):
    file = tmp_path / "days.ndjson"
    rows = [{"x": {"wind": 1, "temp": 2}, "y": "rain"}, {"x": {"temp": 1, "wind": 2}, "y": "dry"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    stream = client.stream(service.stream(columns=["temp", "wind"], class_names=["dry", "rain"]))
    assert command.main(["load", stream.name, str(file), "--url", service.url, "--key-file", str(key_file)]) == 0
    numbered(stream, 2)


@pytest.mark.parametrize("mapped", MAPS)
def test_the_most_records_of_a_batch_are_the_services(mapped):
    """So that a load never sends more: with its key a batch is not split."""
    features = 2 if mapped in TEXTS else SIDE**2
    task = {"kind": "classification", "classes": 2}
    stream = StreamSchema.model_validate({"features": features, "task": task, "feature_map": MAPS[mapped]})
    known = Schema.of(stream.model_dump(mode="json"))
    assert known.most_records == stream.layout().most_records


def test_of_a_map_that_is_new_no_limit_is_known():
    assert Schema.of({"features": 3, "feature_map": {"kind": "new", "version": 1}}).most_records > 10**6


def labels(values, *classes):
    """Labels as numbers of classes."""
    return next(blocks(None, values, names=Names(classes=classes))).y.tolist()


@pytest.mark.parametrize(
    ("values", "classes", "numbers"),
    [
        (["true", "false"], ("true", "false"), [0, 1]),
        (["1", "2", "3"], ("1", "2", "3"), [0, 1, 2]),
        (["3", "5"], ("3", "5"), [0, 1]),
        (["0", "1", "1.0", " 1"], ("dry", "rain"), [0, 1, 1, 1]),
        (["true", "False"], ("dry", "rain"), [1, 0]),
        (["nan", "1", "inf"], ("nan", "inf"), [0, 1, 1]),
        ([0, 1], ("dry", "rain"), [0, 1]),
        ([0, 2], ("0", "1", "many"), [0, 2]),
        ([0, 1], ("3", "5"), [0, 1]),
        ([True, False], ("false", "true"), [1, 0]),
    ],
)
def test_a_name_wins_over_a_number(values, classes, numbers):
    assert labels(values, *classes) == numbers


@pytest.mark.parametrize(
    ("values", "classes"), [(["1", "0"], ("3", "5")), (["2"], ("0", "1", "many")), (["0.5", "2"], ("dry", "rain"))]
)
def test_a_text_is_no_number_beside_a_name_that_looks_like_one(values, classes):
    with pytest.raises(InvalidData, match="row 0, counted from 0, is no class"):
        labels(values, *classes)


@pytest.mark.parametrize(
    ("values", "classes"),
    [([1, 0], ("1", "0")), ([1.0, 2.0], ("1", "2", "3")), ([True, False], ("true", "false")), ([0], ("True", "other"))],
)
def test_numbers_that_may_be_names_are_refused(values, classes):
    with pytest.raises(InvalidData, match=f'has the name "{classes[0]}".*give the names of the classes, as texts'):
        labels(values, *classes)


def test_a_row_of_no_class_is_counted_from_the_first_one_of_all():
    pieces = iter([pd.DataFrame(MIXED), pd.DataFrame(MIXED | {"rain": ["dry", SECRET, "dry"]})])
    with pytest.raises(InvalidData, match="row 4, counted from 0, is no class"):
        list(blocks(pieces, "rain", names=NAMES))


@pytest.mark.parametrize(
    ("written", "classes", "numbers"),
    [("true false false", "true false", [0, 1, 1]), ("1 2 3", "1 2 3", [0, 1, 2]), ("0 1 1.0", "dry rain", [0, 1, 1])],
)
def test_labels_of_a_csv_are_read_as_names(
    service: Service, faults, load, tmp_path, monkeypatch, written, classes, numbers
):
    connected, transport = faults
    monkeypatch.setattr(command, "connect", lambda *_: connected)
    path = tmp_path / "days.csv"
    path.write_text("a,rain\n" + "".join(f"1,{label}\n" for label in written.split()))
    names = classes.split()
    assert load(service.stream(features=1, classes=len(names), class_names=names), path) == 0
    (sent,) = posts(transport)
    assert pa.ipc.open_stream(sent.content).read_all()["y"].to_pylist() == numbers
