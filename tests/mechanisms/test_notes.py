"""Every plan can be noted upon: none lacks what its notes are made of."""

from decimal import Decimal

import pytest

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.notes import noise_ratio, notes
from service.privacy.accounting.budget import Accounting, Budget
from service.streams.schema import StreamSchema
from tests.mechanisms import publications


def sentences(stream: dict, configuration: PublicationConfiguration, budget: Budget = publications.LARGE) -> list[str]:
    schema = StreamSchema.model_validate(stream)
    return notes(build(schema, configuration).plan(), configuration, schema, budget)


@pytest.mark.more
@pytest.mark.parametrize("name", publications.ASKED)
def test_every_plan_has_its_notes(name):
    configuration = publications.configuration(name)
    of_plan = sentences(publications.ASKED[name][0], configuration)
    numbers = configuration.learner is not None and configuration.learner.kind != "small_database"
    delta = "delta" not in configuration.privacy.model_fields_set
    assert len(of_plan) == numbers + delta
    assert all(sentence.endswith(".") for sentence in of_plan)


@pytest.mark.parametrize(
    ("distribution", "dimension", "steps", "ratio"),
    [("gaussian", 9, None, 0.2), ("gaussian", 9, 4, 0.1), ("spherical_laplace", 9, None, 0.6)],
)
def test_noise_is_compared_with_the_most_that_records_can_do(distribution, dimension, steps, ratio):
    noise = {"distribution": distribution, "scale": 2.0, "dimension": dimension, "expected_norm": 1.0}
    fit = {"records": 10, "sensitivity": 2.0, "noise": noise | ({"steps": steps} if steps else {})}
    assert noise_ratio(fit) == pytest.approx(ratio)
    unknown = {"sensitivity": None, "noise": fit["noise"] | {"scale": None, "expected_norm": None}}
    assert noise_ratio(fit | unknown | {"at_least": {"sensitivity": 2.0, "scale": 2.0}}) == pytest.approx(ratio)
    if steps:
        least = {"sensitivity": 2.0, "scale": 2.0, "steps": steps}
        of_units = unknown | {"noise": unknown["noise"] | {"steps": None}, "at_least": least}
        assert noise_ratio(fit | of_units) == pytest.approx(ratio)
    assert noise_ratio(fit | unknown) is None


def test_noise_that_drowns_an_average_class_of_many_is_told():
    """As of 7,000 texts in 20 classes: nothing but the commonest class was learnt at epsilon = 8."""
    hashing = {"kind": "hashing", "features": 4096, "tokens": "words"}
    body = {
        "mechanism": {"kind": "continual", "base": 1000, "update_every": 500},
        "learner": {"kind": "output_perturbation"},
        "privacy": {"epsilon": 8, "delta": 0},
    }
    configuration = PublicationConfiguration.model_validate(body)
    for classes, drowned in ((20, True), (2, False)):
        stream = {"features": 1, "task": {"kind": "classification", "classes": classes}, "feature_map": hashing}
        (note,) = sentences(stream, configuration)
        assert note.endswith("expect the commonest classes at best.") == drowned


BODY = {"learner": {"kind": "output_perturbation"}, "privacy": {"epsilon": 1, "delta": 0}}
STREAM = {"features": 4, "task": {"kind": "classification", "classes": 2}}


def test_of_several_kinds_of_fits_the_noisiest_is_named():
    configuration = PublicationConfiguration.model_validate(
        BODY | {"mechanism": {"kind": "continual", "base": 64, "update_every": 8}}
    )
    fits = build(StreamSchema.model_validate(STREAM), configuration).plan()["fits"]
    assert len({noise_ratio(fit) for fit in fits}) > 1
    (note,) = sentences(STREAM, configuration)
    assert f"the noise of each {max(fits, key=noise_ratio)['what']} is" in note


def test_features_that_another_publication_makes_are_paid_for_twice_and_that_is_said():
    configuration = PublicationConfiguration.model_validate(
        BODY | {"mechanism": {"kind": "independent_batches", "batch": 64}, "features": {"from": "maps"}}
    )
    (note,) = (each for each in sentences(STREAM, configuration) if each.startswith("Its features come from maps"))
    assert note.endswith("Both charge the records that both read.")


@pytest.mark.parametrize(
    ("accounting", "epsilon", "delta", "fits"),
    [
        ("basic", 1, 0, True),
        ("basic", 1, 1e-6, True),
        ("basic", 1.01, 0, False),
        ("basic", 0.5, 2e-6, False),
        ("zcdp", 0.99, 1e-6, True),
        ("zcdp", 1.01, 1e-6, False),
        ("zcdp", 1, 0, False),
    ],
)
def test_who_asks_for_more_than_the_whole_budget_reads_it_in_the_plan(accounting, epsilon, delta, fits):
    body = {"mechanism": {"kind": "independent_batches", "batch": 64}, "privacy": {"epsilon": epsilon, "delta": delta}}
    configuration = PublicationConfiguration.model_validate(BODY | body)
    budget = Budget(epsilon=Decimal(1), delta=Decimal("1e-6"), accounting=Accounting(accounting))
    warnings = [each for each in sentences(STREAM, configuration, budget) if each.startswith("This can't start")]
    if fits:
        assert warnings == []
        return
    advice = "Ask for less" if delta or accounting == "basic" else "Pure noise hardly fits"
    assert f"can't hold epsilon {epsilon:g} and delta {delta:g}. {advice}" in warnings[0]


@pytest.mark.parametrize(
    ("norm_bound", "words"), [(1.9, "longer records are shortened to it"), (2.0, None), (2.1, "only adds noise")]
)
def test_a_norm_bound_is_compared_with_the_longest_record_within_public_ranges(norm_bound, words):
    columns = [{"name": name, "range": [0, 10]} for name in "abcd"]
    scales = {"kind": "standardize", "mean": [5] * 4, "scale": [5] * 4}
    stream = STREAM | {"columns": columns, "feature_map": scales, "norm_bound": norm_bound}
    body = BODY | {"mechanism": {"kind": "independent_batches", "batch": 64}}
    of_ranges = [
        each
        for each in sentences(stream, PublicationConfiguration.model_validate(body))
        if "within the public ranges" in each
    ]
    assert [words in each for each in of_ranges] == ([True] if words else [])
