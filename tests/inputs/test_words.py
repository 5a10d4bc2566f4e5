"""Each bound and each length that a field may have is said in its own words, and which fields there are."""

from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.api.routes.publications import PublicationRequest
from service.api.routes.streams import StreamRequest
from service.inputs.words import explained
from service.mechanisms.configuration import AskedPublication
from tests.inputs import mistakes


class Bounds(BaseModel):
    """One field for each kind of bound."""

    model_config = ConfigDict(extra="forbid")

    above: Annotated[float, Field(gt=2)] = 3
    least: Annotated[float, Field(ge=2)] = 3
    below: Annotated[float, Field(lt=2)] = 1
    most: Annotated[float, Field(le=2)] = 1
    seed: Annotated[int, Field(strict=True, lt=2**63)] = 1
    text: Annotated[str, Field(min_length=2, max_length=3)] = "ab"
    items: Annotated[list[int], Field(min_length=2, max_length=3)] = [1, 2]


@pytest.mark.parametrize(
    ("field", "sent", "reason"),
    [
        ("above", 2, "must be above 2"),
        ("least", 1, "must be at least 2"),
        ("below", 2, "must be below 2"),
        ("most", 3, "must be at most 2"),
        ("seed", 2**63, "must be below 9223372036854775808"),
        ("seed", 2.0, "must be a whole number, without a point or an exponent"),
        ("seed", 2.5, "must be a whole number"),
        ("seed", "2", "must be a whole number, without quotes"),
        ("text", "a", "must have 2 or more characters"),
        ("text", "abcd", "must have 3 characters or fewer"),
        ("text", "\ud800b", "must be a text of whole characters, without lone surrogates"),
        ("items", [1], "must have 2 or more items"),
        ("items", [1, 2, 3, 4], "must have 3 items or fewer"),
        ("mist", 1, "no such field (did you mean most?)"),
        ("zz", 1, "no such field (the fields here are above, below, items, least, most, seed, text)"),
    ],
)
def test_it_is_said_what_a_field_must_be(field, sent, reason):
    with pytest.raises(ValidationError) as refused:
        Bounds.model_validate({field: sent})
    assert explained(refused.value.errors(), Bounds) == [((field,), reason)]


PUBLICATION = {
    "name": "a",
    "stream": "b",
    "mechanism": {"kind": "independent_batches", "batch": 100},
    "learner": {"kind": "output_perturbation"},
    "privacy": {"epsilon": 1},
}
STREAM = {"name": "a", "features": 2, "task": {"kind": "classification", "classes": 2}, "budget": {"epsilon": 1}}


@pytest.mark.parametrize(
    ("model", "body", "change", "field", "reason"),
    [
        *((PublicationRequest, PUBLICATION, *mistake) for mistake in mistakes.OF_PUBLICATIONS),
        *((StreamRequest, STREAM, *mistake) for mistake in mistakes.OF_STREAMS),
    ],
)
def test_a_mistake_is_explained(model, body, change, field, reason):
    model.model_validate(body)
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body | change)
    (place, sentence), *_ = explained(refused.value.errors(), model)
    assert [str(part) for part in place[:-1]] == field.split(".")[:-1]
    assert reason in sentence


def test_of_settings_that_a_registry_names_their_own_fields_are_meant():
    sent = {"mechanism": {"kind": "online_leader", "bach": 9}, "privacy": {"epsilon": 1}}
    with pytest.raises(ValidationError) as refused:
        AskedPublication.model_validate(sent)
    reasons = dict(explained(refused.value.errors(), AskedPublication))
    assert reasons["mechanism", "bach"] == "no such field (did you mean batch?)"
