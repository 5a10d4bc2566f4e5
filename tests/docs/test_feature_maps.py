"""docs/feature-maps.md: what it shows can be used as printed, and nothing there is goes unmentioned."""

import json
import re
from typing import get_args

import pytest
from pydantic import BaseModel, TypeAdapter

from service.streams.feature_maps import FeatureMapShape
from tests.docs.pages import ROOT, blocks

PAGE = (ROOT / "docs" / "feature-maps.md").read_text()
SHOWN = [*re.findall(r'`(\{"kind"[^`]*\})`', PAGE), *blocks(PAGE, "json")]
SHAPES: tuple[type[BaseModel], ...] = get_args(get_args(FeatureMapShape)[0])


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_shown_is_taken(text) -> None:
    TypeAdapter(FeatureMapShape).validate_python(json.loads(text))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_every_map_is_shown_with_every_setting(shape) -> None:
    (kind,) = get_args(shape.model_fields["kind"].annotation)
    shown = [json.loads(text) for text in SHOWN if json.loads(text)["kind"] == kind]

    assert {name for each in shown for name in each} | {"version"} >= set(shape.model_fields)
