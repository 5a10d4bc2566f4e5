"""The documentation stays short enough to be read."""

from tests.docs.pages import ROOT

MOST_WORDS = 35_000
MOST_WORDS_OF_A_PAGE = 4_000


def test_docs_are_short_enough_to_be_read() -> None:
    """Words as `wc -w` counts them, in tables and formulas and code too."""
    words = {path.name: len(path.read_text().split()) for path in (ROOT / "docs").rglob("*.md")}
    assert sum(words.values()) <= MOST_WORDS
    assert max(words.values()) <= MOST_WORDS_OF_A_PAGE
