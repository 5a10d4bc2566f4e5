"""Posted, logged and sealed records of a stream follow from one layout, which nobody else works out."""

import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from service.streams.codec import pack
from service.streams.layout import RecordLayout, UnreadableBatch
from service.streams.schema import stored_schema

ROOT = Path(__file__).parents[2]
TEXTS = {"kind": "hashing", "version": 1, "features": 8, "tokens": "words", "ngrams": [1, 1], "seed": 0}
FOURIER = {"kind": "random_fourier", "version": 1, "features": 6, "width": 1.0, "seed": 0}
CLASSES = {"kind": "classification", "classes": 3}
X, CLASS = np.ones((2, 1), dtype=np.float32), np.array([0, 2], dtype=np.int32)


def layout(task, features=1, feature_map=None) -> RecordLayout:
    return stored_schema({"features": features, "task": task, "feature_map": feature_map}).layout()


@pytest.mark.parametrize(
    ("of", "columns"),
    [
        (layout(CLASSES), {"x": X, "y": CLASS}),
        (layout({"kind": "regression", "bound": 1.0}), {"x": X, "y": X[:, 0]}),
        (layout({"kind": "unlabelled"}), {"x": X}),
        (layout({"kind": "categorical", "cardinality": 3}, features=None), {"y": CLASS}),
        (layout(CLASSES, feature_map=FOURIER), {"x": X, "y": CLASS}),
    ],
)
def test_the_log_gives_back_the_records_and_takes_no_others(of, columns):
    decoded = of.decode(of.encode(columns))
    assert of.column_names == sorted(decoded) == list(columns)
    assert all(np.array_equal(decoded[name], column) for name, column in columns.items())
    flawed = [
        columns | {"z": CLASS},
        columns | {"z": np.int32(1)},
        dict(list(columns.items())[1:]),
        {name: column.astype(np.float64) for name, column in columns.items()},
        {name: column[:, None] for name, column in columns.items()},
        {name: column[:0] for name, column in columns.items()},
        {name: column[: 1 + (name == "x")] for name, column in columns.items()} if len(columns) > 1 else {},
    ]
    for each in flawed:
        with pytest.raises(UnreadableBatch):
            of.decode(save({name: np.ascontiguousarray(column) for name, column in each.items()}))


@pytest.mark.parametrize("batch", [b"", b"\xff" * 64, pack({"x": X})[:-1]])
def test_damaged_bytes_are_no_batch(batch):
    with pytest.raises(UnreadableBatch):
        layout({"kind": "unlabelled"}).decode(batch)


def test_numbers_are_mapped_after_the_log_and_texts_before_it():
    numbers, texts = layout({"kind": "unlabelled"}, feature_map=FOURIER), layout(CLASSES, feature_map=TEXTS)
    assert np.array_equal(numbers.decode(numbers.encode({"x": X}))["x"], X)
    assert np.array_equal(numbers.mapped({"x": X})["x"], numbers.feature_map(X))
    words = np.array([["to be"], ["or not"]], dtype=object)
    logged = texts.decode(texts.encode({"x": words, "y": CLASS}))
    assert np.array_equal(logged["x"], texts.feature_map(words))
    assert texts.mapped(logged) is logged


def test_a_stored_schema_is_parsed_once():
    stored = {"features": 5, "task": CLASSES}
    assert stored_schema(stored) is stored_schema(dict(stored))


def test_nobody_else_looks_up_the_task_of_a_stored_schema():
    pattern = re.compile(r"""\[["']task["']\]|\.get\(["']task["']""")
    modules = [path for path in (ROOT / "service").rglob("*.py") if ROOT / "service" / "streams" not in path.parents]
    assert len(modules) > 100
    assert [str(path.relative_to(ROOT)) for path in modules if pattern.search(path.read_text())] == []
