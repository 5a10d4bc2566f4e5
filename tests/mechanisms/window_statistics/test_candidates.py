"""Candidates of a window: other models of the same private sums, which cost nothing."""

import json

import numpy as np
import pytest

from service.learning.records import Records
from service.mechanisms.configuration import PublicationConfiguration
from service.privacy.noise.correlated import Correlated
from tests.mechanisms.private_statistics import IN_EITHER_CURRENCY, is_refused, publish
from tests.mechanisms.steps import FEATURES, GAUSSIAN, reader, run

BLOCK, BLOCKS = 8, 3
CANDIDATES = [{}, {"blocks": 1}, {"blocks": 2, "ridge": 0.3}]


def publication(candidates=CANDIDATES, privacy=GAUSSIAN):
    mechanism = {"kind": "window_statistics", "block": BLOCK, "blocks": BLOCKS, "candidates": candidates}
    return publish(mechanism, privacy, 3, {})


def models(release):
    return [np.array(each["parameters"]) for each in release.model["candidates"]]


@IN_EITHER_CURRENCY
def test_candidates_are_models_of_the_newest_of_the_same_estimates(privacy):
    mechanism = publication(privacy=privacy)
    (*_, release), chain = run(mechanism, 5, reader())
    same, newest, two = models(release)
    np.testing.assert_array_equal(same, release.parameters)
    estimates = [part.values for part in chain[:2]]
    assert all(len(each) == mechanism.learner.entries for each in estimates)
    origin = np.zeros(mechanism.learner.shape)
    np.testing.assert_array_equal(two, mechanism.learner.solve(sum(estimates), 2 * BLOCK, 0.3, origin))
    pull = mechanism.plan()["fits"][0]["candidates"][1]["ridge"]
    np.testing.assert_allclose(newest, mechanism.learner.solve(estimates[1], BLOCK, pull, origin), rtol=1e-9)
    listed = [{"blocks": each["blocks"], "ridge": each["ridge"]} for each in release.model["candidates"]]
    assert listed == [{"blocks": 3, "ridge": None}, {"blocks": 1, "ridge": None}, {"blocks": 2, "ridge": 0.3}]


def test_a_candidate_has_a_pull_of_its_own_whatever_the_window_s_is():
    mechanism = {"kind": "window_statistics", "block": BLOCK, "blocks": BLOCKS, "ridge": 5.0, "candidates": CANDIDATES}
    fit = publish(mechanism, GAUSSIAN, 3, {}).plan()["fits"][0]
    assert fit["ridge"] == 5.0
    assert fit["candidates"] == publication().plan()["fits"][0]["candidates"]


def test_no_candidate_depends_on_records_but_through_the_estimates(monkeypatch):
    """Other records, the same noisy sums: the same candidates, so that they cost nothing more than the sums."""
    given = np.random.default_rng(3).normal(size=publication().learner.entries)
    monkeypatch.setattr(Correlated, "release", lambda *_: (given, (given,) * 3))

    def other(start, end):
        records = reader(seed=1)(start, end)
        return Records(x=10 * records.x, y=records.y)

    one, another = (run(publication(), 5, read)[0] for read in (reader(), other))
    for mine, others in zip(one, another, strict=True):
        assert json.dumps(mine.model) == json.dumps(others.model)


def test_candidates_change_neither_noise_nor_charge_nor_what_is_stored_without_them():
    with_them, without = publication(), publication(None)
    (one, *_), _ = run(with_them, 2, reader())
    (other, *_), _ = run(without, 2, reader())
    assert (one.charge, one.perturbation, one.window) == (other.charge, other.perturbation, other.window)
    assert one.parameters.shape == other.parameters.shape == (3, FEATURES + 1)
    assert other.model is None
    settings = {"mechanism": {"kind": "window_statistics", "block": 8, "blocks": 2}, "privacy": GAUSSIAN}
    stored = PublicationConfiguration.model_validate(settings | {"learner": {"kind": "output_perturbation"}}).stored()
    assert stored["mechanism"] == {"kind": "window_statistics", "block": 8, "blocks": 2, "ridge": None}


@pytest.mark.parametrize(("candidates", "features"), [([{"blocks": 4}], FEATURES), ([{}] * 16, 100)])
def test_longer_windows_and_models_too_large_for_a_release_are_refused(candidates, features):
    mechanism = {"kind": "window_statistics", "block": BLOCK, "blocks": BLOCKS, "candidates": candidates}
    is_refused("mechanism.candidates", publish, mechanism, GAUSSIAN, 3, {}, features)


@pytest.mark.parametrize("candidates", [[], [{}] * 17, [{"blocks": 0}], [{"ridge": 0.0}], [{"decay": 0.5}]])
def test_candidates_beyond_their_range_are_refused(candidates):
    with pytest.raises(ValueError, match="validation error"):
        publication(candidates)
