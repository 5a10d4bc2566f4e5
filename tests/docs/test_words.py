"""Words that a newcomer can't read are only in rooms that are still to be done; a room that is done stays so.

The lists only ever get shorter: a room without a finding leaves them.
"""

from collections import defaultdict

import pytest

from tests.docs import words
from tests.docs.words import Finding, findings

ROOMS = {
    "opening": """

    """,
    "stand-in": """

    """,
    "unit": "",
}
TO_DO = {rule: set(rooms.split()) for rule, rooms in ROOMS.items()}


@pytest.fixture(scope="module")
def found_in() -> dict[str, dict[str, list[Finding]]]:
    """Return findings by rule and room."""
    by_rule: dict[str, dict[str, list[Finding]]] = {rule: defaultdict(list) for rule in TO_DO}
    for path in words.files():
        for each in findings(path):
            by_rule[each.rule][words.room(each.path)].append(each)
    return by_rule


@pytest.mark.parametrize("rule", TO_DO)
def test_rooms_that_are_done_have_no_finding(found_in, rule):
    late = {room: places for room, places in found_in[rule].items() if room not in TO_DO[rule]}
    assert late == {}, "`python -m tests.docs.words` lists all"


@pytest.mark.parametrize("rule", TO_DO)
def test_rooms_without_a_finding_are_not_to_do(found_in, rule):
    assert set(found_in[rule]) >= TO_DO[rule]


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
