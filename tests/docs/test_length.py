"""The documentation stays short enough to be read."""

import re

from tests.docs.pages import ROOT

MOST_WORDS = 35_000


def test_docs_are_short_enough_to_be_read() -> None:
    """Signs of tables and formulas, which stand alone between spaces, are no words; numbers, names and code are."""
    text = " ".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= MOST_WORDS
