"""No file has words that a newcomer can't read: `tests.docs.words` says which rules a program can hold."""

import pytest

from tests.docs import words
from tests.docs.words import findings


@pytest.mark.more
def test_no_file_has_a_finding():
    assert [finding for path in words.files() for finding in findings(path)] == []


@pytest.mark.parametrize(
    ("name", "text", "rules"),
    [
        ("a.py", '"""What it does. Then more."""', ["opening"]),
        ("a.py", '"""Do it. Of all, the first."""', ["opening"]),
        ("a.py", '"""Do it.\n\n    That is so.\n    """', ["opening"]),
        ("a.py", '"""What is it? Whatever. That\'s a question."""', []),
        ("a.py", 'raise ValueError("Who asks is refused")', ["opening"]),
        ("a.py", "def f(told, _kept):\n    found = 1\n    return found + told", ["stand-in"] * 3),
        ("a.py", "x.found(1)\nfor row in rows: pass", []),
        ("a.py", "wait(timeout=LONGEST)\nwait(timeout=LEASE_SECONDS)\nsleep(PAUSE)", ["unit"] * 2),
        ("a.md", "# What it is\n\nIt is. What else is.\n\n```\nWhat a block says.\n```\n", ["opening"]),
        ("a.md", "- That is one\n- Those are two\n", ["opening"]),
    ],
)
def test_a_rule_notices_what_it_is_about(tmp_path, monkeypatch, name, text, rules):
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / name).write_text(text)
    assert [each.rule for each in findings(tmp_path / name)] == rules
