"""ARCHITECTURE.md and CONTRIBUTING.md name files that exist, and answers that those files hold."""

import re

import pytest

from tests.docs.pages import ROOT, rows

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
QUESTIONS = {
    question: cells
    for question, cells in rows(ARCHITECTURE, "## Questions of somebody new").items()
    if cells[1][:1] == "["
}
FOLDERS = "service|tests|docs|migrations|client|benchmarks"


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_file_answers_the_question(question):
    _, link, words = QUESTIONS[question]
    path = ROOT / link.partition("](")[2].removesuffix(")")
    assert path.is_file()
    assert words.strip("`") in " ".join(path.read_text().split())


def test_twenty_questions_are_answered():
    assert len(QUESTIONS) >= 20


@pytest.mark.parametrize("text", [ARCHITECTURE, CONTRIBUTING], ids=["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_are_named_exist(text):
    linked = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    named = re.findall(rf"`((?:{FOLDERS})/[\w/.-]+)`", text)
    run = re.findall(r"pytest (?:--\w+ )?(tests/[\w/.-]+)", text)
    assert linked
    for name in (*linked, *named, *run):
        assert (ROOT / name).exists() or "KIND" in name, name


def test_every_room_is_in_the_table_of_rooms():
    table = " ".join("|".join(cells[:2]) for cells in rows(ARCHITECTURE, "## Rooms").values())
    for room in (ROOT / "service").iterdir():
        name = room.stem if room.suffix == ".py" else room.name
        if not name.startswith("__") and (room.is_dir() or room.suffix == ".py"):
            assert f"`{name}`" in table + ARCHITECTURE, name


def test_other_pages_link_to_both():
    for page in ("README.md", "docs/README.md"):
        text = (ROOT / page).read_text()
        assert "ARCHITECTURE.md)" in text
        assert "CONTRIBUTING.md)" in text
