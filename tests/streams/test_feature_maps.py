"""Feature maps act on each record alone, never raise, compute what they say, and never change."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.streams.feature_maps import MAX_RANDOM, MAX_VALUES, build
from service.streams.feature_maps.hashing import _mix
from tests.held import most_held
from tests.learning import by_definition

FOURIER = {"kind": "random_fourier", "version": 1, "features": 6, "width": 2.0, "seed": 7}
CATEGORIES = {"kind": "hashing", "version": 1, "features": 5, "tokens": "categories", "ngrams": [1, 1], "seed": 0}
TEXT = CATEGORIES | {"features": 64, "tokens": "words"}
HOG = {"kind": "hog", "version": 1, "width": 4, "height": 6, "orientations": 8, "cell": 2, "block": 2}
STANDARDIZE = {"kind": "standardize", "version": 1, "mean": 0.5, "scale": 1e-6}
CLIPPED = {"kind": "clipped_scale", "version": 1, "center": 0.5, "factor": 0.25, "limit": 3.0}
LINEAR = {"kind": "linear", "version": 1, "matrix": [[0.25] * 24, [-1.0, 2.0] * 12, [0.0] * 23 + [1.0]]}
CENTER = {"kind": "center", "version": 1}
NORMALIZE = {"kind": "normalize", "version": 1}
DIGITS = {"kind": "compose", "maps": [HOG, NORMALIZE, CENTER, NORMALIZE]}
SKETCH = {"kind": "compose", "maps": [HOG, FOURIER]}
NUMBERS = [FOURIER, CATEGORIES, HOG, STANDARDIZE, CLIPPED, LINEAR, CENTER, NORMALIZE, DIGITS, SKETCH]
FEATURES = 24
of_numbers = pytest.mark.parametrize("description", NUMBERS, ids=lambda each: each["kind"])


def mapped(description, *records):
    return build(description, len(records[0]))(np.array(records, dtype=np.float32))


def texts(description, *records):
    return build(description, len(records[0]))(np.array(records, dtype=object))


def test_without_a_map_records_stay_as_they_are():
    x = np.ones((3, 2), dtype=np.float32)
    assert build(None, 2)(x) is x
    assert build(None, 2).features == 2


@of_numbers
def test_a_record_is_mapped_by_itself(description):
    x = np.random.default_rng(1).normal(size=(300, FEATURES)).astype(np.float32)
    feature_map = build(description, FEATURES)
    together = feature_map(x)
    assert together.shape == (300, feature_map.features)
    assert together.dtype == np.float32
    alone = np.concatenate([feature_map(row[None, :]) for row in x])
    np.testing.assert_allclose(together, alone, rtol=3e-7, atol=1e-9)
    changed = x.copy()
    changed[17] = 3.25
    assert (feature_map(changed) != together).any(axis=1).nonzero()[0].tolist() == [17]


@pytest.mark.more
@of_numbers
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_floats_make_it_raise_and_no_row_is_half_finite(description, data):
    x = data.draw(arrays.arrays(np.float32, (3, FEATURES), elements=st.floats(width=32)))
    result = build(description, FEATURES)(x)
    finite = np.isfinite(result)
    assert (finite.all(axis=1) | ~finite.any(axis=1)).all()
    assert np.isnan(result[~finite]).all()


def test_a_record_that_overflows_is_none_and_spoils_no_other():
    x = [[1.0, 2.0], [3e38, 0.0], [0.5, 0.5]]
    result = mapped(STANDARDIZE, *x)
    assert np.isnan(result[1]).all()
    assert np.array_equal(result[[0, 2]], mapped(STANDARDIZE, x[0], x[2]))


@of_numbers
def test_a_description_builds_the_same_map_again(description):
    x = np.random.default_rng(2).normal(size=(5, FEATURES)).astype(np.float32)
    first = build(description, FEATURES)
    assert np.array_equal(build(first.description, FEATURES)(x), first(x))


class TestRandomFourier:
    @pytest.mark.parametrize(("d", "p"), [(3, 6), (3, 5), (1, 1)])
    def test_is_what_it_says(self, d, p):
        x = [0.5, -2.0, 8.0][:d]
        description = FOURIER | {"features": p}
        np.testing.assert_allclose(mapped(description, x)[0], by_definition.mapped(description, x), atol=1e-7)

    def test_never_changes(self):
        expected = [0.35128939, 0.54998499, 0.22046272, -0.40341985, -0.16262062, -0.48095879]
        np.testing.assert_allclose(mapped(FOURIER, [0.5, -2.0, 8.0])[0], expected, atol=1e-7)

    def test_approximates_the_gaussian_kernel(self):
        p, width = 4096, 1.5
        x = np.random.default_rng(3).normal(size=(20, 8))
        z = mapped(FOURIER | {"features": p, "width": width}, *x).astype(np.float64)
        kernel = np.exp(-np.square(x[:, None] - x).sum(axis=2) / (2 * width**2))
        assert np.abs(z @ z.T - kernel).max() < 6 / math.sqrt(p)  # 210 values of deviation ≤ 1/√p

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2))
    def test_no_mapped_record_is_longer_than_root_two(self, x):
        assert np.linalg.norm(mapped(FOURIER, x)[0].astype(np.float64)) <= math.sqrt(2) * (1 + 1e-6)

    def test_a_matrix_too_large_is_refused(self):
        with pytest.raises(ValueError, match="random_fourier"):
            build(FOURIER | {"features": 2}, MAX_RANDOM)


class TestCategories:
    @settings(max_examples=50, deadline=None)
    @given(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=6),
        st.integers(0, 2**63 - 1),
    )
    def test_is_what_it_says(self, x, seed):
        description = CATEGORIES | {"seed": seed}
        assert mapped(description, x)[0].tolist() == by_definition.mapped(description, x)

    def test_splitmix64_is_the_published_one(self):
        # The first outputs of splitmix64 from the state 1234567, as printed by its reference implementation.
        state = np.array([1234567, 1234567 + 0x9E3779B97F4A7C15], dtype=np.uint64)
        assert _mix(state).tolist() == [6457827717110365317, 3203168211198807973]

    def test_never_changes(self):
        assert mapped(CATEGORIES | {"features": 8}, [3, 1, 4, 1, 5])[0].tolist() == [
            -1.0,
            0.0,
            -1.0,
            -1.0,
            0.0,
            -2.0,
            0.0,
            0.0,
        ]

    def test_zero_has_no_sign(self):
        assert np.array_equal(*mapped(CATEGORIES, [0.0, 1.0], [-0.0, 1.0]))

    def test_the_same_category_in_another_column_is_another(self):
        result = mapped(CATEGORIES | {"features": 2**16}, [1, 2], [2, 1])
        assert (result[0] != result[1]).any()

    def test_categories_spread_evenly_with_both_signs(self):
        z = mapped(CATEGORIES | {"features": 16}, *np.arange(16_000)[:, None])
        counts = np.abs(z).sum(axis=0)
        assert counts.sum() == 16_000
        assert np.abs(counts - 1000).max() < 6 * math.sqrt(1000)
        assert abs(z.sum()) < 6 * math.sqrt(16_000)


class TestText:
    @pytest.mark.parametrize(
        ("text", "changes", "tokens"),
        [
            ("To be, or NOT to be!", {}, [b"to", b"be", b"or", b"not", b"to", b"be"]),
            ("a-b_c/d9", {}, [b"a", b"b_c", b"d9"]),
            ("Straße, ÉTÉ…日本。", {}, [b"strasse", "été".encode(), "日本".encode()]),
            ("one two three", {"ngrams": [1, 2]}, [b"one", b"two", b"three", b"one two", b"two three"]),
            ("one two three", {"ngrams": [4, 4]}, []),
            ("A b", {"tokens": "characters", "ngrams": [2, 3]}, [b" a", b"a ", b" b", b"b ", b" a ", b"a b", b" b "]),
            ("A b", {"tokens": "whole"}, [b"A b"]),
            ("", {}, []),
            ("", {"tokens": "whole"}, [b""]),
            ("\ud800", {"tokens": "whole"}, [b"\xed\xa0\x80"]),
            ("red", {"seed": 5}, [b"red"]),
        ],
    )
    def test_is_what_it_says(self, text, changes, tokens):
        description = TEXT | changes
        expected = np.zeros(64)
        for token in tokens:
            h = by_definition.hash_of_token(token, seed=description["seed"])
            expected[h % 2**63 % 64] += -1 if h >= 2**63 else 1
        assert texts(description, [text])[0].tolist() == expected.tolist()
        assert by_definition.mapped(description, [text]) == expected.tolist()

    def test_columns_are_hashed_apart(self):
        both = texts(TEXT, ["red", "red"])
        assert both[0].tolist() == by_definition.mapped(TEXT, ["red", "red"])
        assert (both != 2 * texts(TEXT, ["red"])).any()

    def test_a_record_of_many_tokens_is_counted_a_few_at_a_time(self):
        """As objects tokens take a hundred times as much memory as their text, and a record may be megabytes of it."""
        description, long = TEXT | {"tokens": "characters", "ngrams": [1, 1]}, ["ab c" * 256] * 16
        assert texts(description, long)[0].tolist() == by_definition.mapped(description, long)
        assert most_held(texts, description, long) < 1.1 * most_held(texts, description, long[:10])

    def test_never_changes(self):
        assert texts(TEXT | {"features": 8}, ["the quick brown fox jumps over the lazy dog"])[0].tolist() == [
            -1.0,
            1.0,
            0.0,
            4.0,
            0.0,
            0.0,
            0.0,
            1.0,
        ]

    @pytest.mark.more
    @settings(max_examples=100, deadline=None)
    @given(st.text(), st.sampled_from(["words", "characters", "whole"]))
    def test_no_text_makes_it_raise(self, text, tokens):
        assert np.isfinite(texts(TEXT | {"tokens": tokens}, [text])).all()

    def test_more_maps_may_follow_but_texts_come_first(self):
        normalized = texts({"kind": "compose", "maps": [TEXT, NORMALIZE]}, ["to be or not to be"])
        assert np.linalg.norm(normalized) == pytest.approx(1)
        with pytest.raises(ValueError, match="first map"):
            build({"kind": "compose", "maps": [NORMALIZE, TEXT]}, 1)


class TestHog:
    @pytest.mark.parametrize(
        ("width", "height", "orientations", "cell", "block"), [(28, 28, 8, 4, 3), (13, 11, 9, 3, 2), (8, 20, 6, 5, 1)]
    )
    def test_is_what_it_says(self, width, height, orientations, cell, block):
        image = np.random.default_rng(4).random((height, width)).astype(np.float32)
        description = {"kind": "hog", "version": 1, "width": width, "height": height, "orientations": orientations}
        description |= {"cell": cell, "block": block}
        result = mapped(description, image.ravel())[0]
        np.testing.assert_allclose(result, by_definition.mapped(description, image.ravel()), atol=1e-6)

    @pytest.mark.parametrize(
        ("across", "down", "expected"),
        [
            *((1, 0, 0), (-1, 0, 0), (1, 1, 2), (-1, -1, 2), (0, 1, 4), (0, -1, 4), (-1, 1, 6), (1, -1, 6)),
            *((3, 1, 0), (-9, 1, 7)),
        ],
    )
    def test_a_gradient_on_the_edge_of_two_bins_is_in_the_upper_one(self, across, down, expected):
        rows, columns = np.mgrid[:16, :16]
        plane = (across * columns + down * rows).astype(np.float32)
        description = HOG | {"width": 16, "height": 16, "cell": 4, "block": 1}
        inner = mapped(description, plane.ravel())[0].reshape(4, 4, 8)[1, 1]
        assert inner.nonzero()[0].tolist() == [expected]

    def test_never_changes(self):
        image = np.arange(24) * 7 % 11
        expected = [
            0.38973364,
            0.0,
            0.0,
            0.0,
            0.11251629,
            0.0,
            0.0,
            0.0,
            0.38973364,
            0.0,
            0.0,
            0.0,
            0.38973364,
            0.0,
            0.0,
            0.0,
            0.38973364,
            0.0,
            0.0,
            0.0,
            0.22503258,
            0.0,
            0.0,
            0.0,
            0.35580775,
            0.0,
            0.0,
            0.0,
            0.22503258,
            0.0,
            0.0,
            0.38973364,
            0.41828248,
            0.0,
            0.0,
            0.0,
            0.20347299,
            0.0,
            0.0,
            0.0,
            0.32171902,
            0.0,
            0.0,
            0.0,
            0.20347299,
            0.0,
            0.0,
            0.41828248,
            0.41828248,
            0.0,
            0.0,
            0.0,
            0.10173649,
            0.0,
            0.0,
            0.0,
            0.30520946,
            0.0,
            0.41828248,
            0.0,
            0.10173649,
            0.0,
            0.0,
            0.0,
        ]
        assert mapped(HOG, image)[0].tolist() == pytest.approx(expected, abs=1e-7)

    def test_an_image_of_one_grey_has_no_features(self):
        assert not mapped(HOG, [0.7] * 24).any()

    def test_brightness_does_not_matter_and_contrast_hardly(self):
        image = np.random.default_rng(5).random(24).astype(np.float32)
        np.testing.assert_allclose(mapped(HOG, image)[0], mapped(HOG, 200 * image + 10)[0], atol=1e-3)

    @pytest.mark.parametrize(("features", "changes"), [(25, {}), (24, {"cell": 3}), (24, {"block": 3})])
    def test_sizes_that_do_not_fit_are_refused(self, features, changes):
        with pytest.raises(ValueError, match="hog"):
            build(HOG | changes, features)


def test_standardize_by_one_constant_or_by_one_for_each():
    assert mapped(STANDARDIZE | {"mean": 1, "scale": 2}, [3.0, 5.0])[0].tolist() == [1.0, 2.0]
    assert mapped(STANDARDIZE | {"mean": [1, 5], "scale": [2, 4]}, [3.0, 1.0])[0].tolist() == [1.0, -1.0]
    for name in ("mean", "scale"):
        with pytest.raises(ValueError, match=f"standardize: {name} must be a number, or a list of 2"):
            build(STANDARDIZE | {name: [1, 2, 3]}, 2)


@of_numbers
def test_every_map_is_what_it_says(description):
    x = np.random.default_rng(7).normal(size=FEATURES).astype(np.float32)
    expected = by_definition.mapped(description, x)
    np.testing.assert_allclose(mapped(description, x)[0], expected, rtol=1e-6, atol=1e-6)


def test_center_and_normalize():
    assert mapped(CENTER, [1.0, 2.0, 6.0])[0].tolist() == [-2, -1, 3]
    assert mapped(NORMALIZE, [3.0, -4.0], [0.0, 0.0], [1e-45, 0.0], [3e38, 0.0]).tolist() == [
        pytest.approx([0.6, -0.8]),
        [0, 0],
        [1, 0],
        [1, 0],
    ]


def test_another_version_or_kind_is_not_guessed():
    for change in ({"version": 2}, {"kind": "magic"}):
        with pytest.raises(ValueError, match="there is no version"):
            build(NORMALIZE | change, 3)


def test_a_batch_is_as_large_as_memory_should_hold():
    assert build(FOURIER | {"features": 4096}, 1).most_records == MAX_VALUES // 4096
    assert build(None, 0).most_records == MAX_VALUES


def test_many_images_are_mapped():
    images = np.random.default_rng(6).random((2000, 784)).astype(np.float32)
    feature_map = build(HOG | {"width": 28, "height": 28, "cell": 4, "block": 3}, 784)
    assert feature_map(images).shape == (2000, 1800)
