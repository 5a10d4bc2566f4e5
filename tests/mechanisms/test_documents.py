"""A publication's texts are those that were written down: their words, names and numbers change knowingly only.

People who plan, read or verify a publication go by these texts. `documents` writes them anew.
"""

import json

import pytest

from service.mechanisms.lifelong import encoder_pass
from tests.mechanisms import documents

WRITTEN = {each["name"]: each["says"] for each in map(json.loads, documents.WRITTEN.read_text().splitlines())}


def test_every_publication_is_written_down():
    assert sorted(WRITTEN) == sorted([*documents.OF_ALL, *documents.ASKED])


@pytest.mark.parametrize("name", WRITTEN)
def test_it_says_what_is_written_down(name):
    if name == documents.ENCODER and not encoder_pass.available():
        pytest.skip("the extra `deep` is not installed")
    assert documents.document(name) == WRITTEN[name]
