"""People who plan, read or verify a publication go by its words, names and numbers: they change knowingly only."""

import pytest

from tests.mechanisms import golden


def test_every_mechanism_and_learner_is_written_down():
    assert sorted(path.stem for path in golden.FOLDER.glob("*.json")) == sorted(golden.names())


@pytest.mark.parametrize("name", golden.names())
def test_it_says_what_is_written_down(name):
    written = golden.written(name).read_text().splitlines()
    assert golden.text(name).splitlines() == written, "python -m tests.mechanisms.golden"
