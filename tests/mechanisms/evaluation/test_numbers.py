"""No number that an evaluation says of the same counts changes by itself."""

import json

import pytest

from tests.mechanisms.evaluation.numbers import WRITTEN, lines


def parts(document):
    """Return the numbers with a fraction in a line of JSON, in their order, and all else."""
    numbers = []
    return json.loads(document, parse_float=lambda each: numbers.append(float(each)) or "number"), numbers


def test_figures_of_some_counts_are_as_they_were_written_down():
    for now, written in zip(map(parts, lines()), map(parts, WRITTEN.read_text().splitlines()), strict=True):
        assert now[0] == written[0]
        assert now[1] == pytest.approx(written[1], rel=1e-6, abs=1e-12)
