"""Bugs in predictions of the Python client, which would answer otherwise than the service."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_PREDICTING = "tests/client/test_predicting.py"
_MAP = f"{_PREDICTING}::test_a_map_is_the_services_however_many_records_it_takes_at_once"
_MAPPED = f"{_PREDICTING}::test_predictions_are_the_services_whatever_the_map"
_LOSS = f"{_PREDICTING}::test_predictions_are_the_services_whatever_the_loss"


@bug(f"{_MAP}[random_fourier]")
def records_that_are_predicted_as_the_first_ones() -> None:
    """All of many records get the labels of the first few thousand."""
    from perennial import feature_maps

    rewrite(feature_maps.FeatureMap.__call__, ("x[start : start + rows]", "x[: min(rows, len(x) - start)]"))


@bug(f"{_MAP}[narrow]")
def a_map_of_as_many_numbers_as_the_record_has() -> None:
    """Behind a map that makes fewer numbers, random features are others than those of training, or fail."""
    from perennial import feature_maps

    rewrite(feature_maps.build, ("steps[-1].features if steps else features, **", "features, **"))


@bug(f"{_MAP}[categories]")
def a_category_of_nought_that_has_a_sign() -> None:
    """A record with -0 is another one here than in the service."""
    from perennial import feature_maps

    rewrite(feature_maps.HashedCategories.__call__, (" + np.float32(0.0)", ""))


@bug(f"{_MAP}[words]")
def texts_that_have_no_bytes() -> None:
    """A model that the service predicts with fails here at half a character, as some programs cut them."""
    from perennial import feature_maps

    rewrite(feature_maps.HashedText.__call__, ('errors="surrogatepass"', 'errors="strict"'))


@bug(f"{_MAP}[words]")
def words_in_lower_case_that_are_not_folded() -> None:
    """Words of some languages are other words here than in the service."""
    from perennial import feature_maps

    rewrite(feature_maps.HashedText._tokens, ("text.casefold()", "text.lower()"))


@bug(f"{_MAP}[words]")
def words_that_punctuation_joins() -> None:
    """A dash or three dots between two words make one of them."""
    import re

    from perennial import feature_maps

    feature_maps._WORD = re.compile(r"[0-9A-Za-z_\u00c0-\U0010ffff]+")


@bug(f"{_MAP}[words]")
def tokens_without_the_longest() -> None:
    """Pairs of words count in the service, and not here."""
    from perennial import feature_maps

    rewrite(feature_maps.HashedText._tokens, ("self.ngrams[1] + 1", "self.ngrams[1]"))


@bug(f"{_MAP}[characters]")
def tokens_without_the_edges_of_a_text() -> None:
    """The first and the last characters count in the service, and not here."""
    from perennial import feature_maps

    rewrite(feature_maps.HashedText._tokens, ("""f" {' '.join(words)} \"""", """' '.join(words)"""))


@bug(f"{_MAP}[words]")
def texts_of_all_columns_that_are_hashed_alike() -> None:
    """A word in the wrong column counts here as in the right one."""
    from perennial import feature_maps

    rewrite(feature_maps.HashedText.__call__, ("column.to_bytes(4", "(0 * column).to_bytes(4"))


@bug(f"{_MAP}[oblong]")
def a_gradient_on_the_edge_of_two_bins_that_is_in_the_lower_one() -> None:
    """Images with plain edges are other images here than in the service."""
    from perennial import feature_maps

    rewrite(feature_maps.OrientedGradients._histograms, ("down * cosine >= across", "down * cosine > across"))


@bug(f"{_MAPPED}[third]")
def means_of_an_onnx_model_in_single_precision() -> None:
    """Where columns are large and vary little, an ONNX model answers otherwise than the service."""
    from perennial import onnx_graph

    rewrite(onnx_graph._step, ("np.asarray(step.mean, np.float64)", "np.asarray(np.float32(step.mean), np.float64)"))


@bug(f"{_MAPPED}[oblong]")
def images_of_an_onnx_model_that_are_cut_as_if_they_were_square() -> None:
    """An ONNX model of images that are wider than high leaves cells out."""
    from perennial import onnx_graph

    rewrite(onnx_graph._histograms, ("inside, [1, 2]", "inside[::-1], [1, 2]"))


@bug(f"{_LOSS}[softmax-3-none]")
def probabilities_that_overflow() -> None:
    """A model that is sure of a class says that it knows nothing."""
    from perennial import linear

    rewrite(linear.LinearModel.read, ("scores - scores.max(axis=1, keepdims=True)", "scores"))


@bug(f"{_LOSS}[logistic-2-heads]")
def an_onnx_model_that_takes_the_first_scores_for_those_of_tasks() -> None:
    """A record is predicted with the model of another task."""
    from perennial import onnx_graph

    rewrite(onnx_graph._chosen, ("[columns - tasks], [columns], [1]", "[0], [tasks], [1]"))
