"""No number that an evaluation says of the same counts changes by itself."""

import json

import pytest

from tests.figures.numbers import WRITTEN, text


def test_figures_of_some_counts_are_as_they_were_written_down():
    numbers: dict[str, list[float]] = {}

    def parts(document):
        """Return a document without its numbers with a fraction, which go to `numbers` in their order."""
        numbers[document] = []
        return json.loads(document, parse_float=lambda number: numbers[document].append(float(number)))

    now, written = text(), WRITTEN.read_text()
    assert parts(now) == parts(written), "python -m tests.figures.numbers"
    assert numbers[now] == pytest.approx(numbers[written], rel=1e-6, abs=1e-12)
