"""Results of benchmarks are read as they were written, and small pictures show the same."""

import re
from pathlib import Path

import pytest

from benchmarks import paper_c, results


@pytest.mark.parametrize("name", ["found.jsonl", "found.jsonl.xz"])
def test_lines_are_added_and_read_compressed_or_not(tmp_path, name):
    path = tmp_path / name
    assert results.lines(path) == []
    results.append(path, ("a", 0), error=0.25)
    results.append(path, ("a", 1), error=0.5)
    assert results.done(path) == {("a", 0), ("a", 1)}
    assert results.lines(path) == [{"cell": ["a", 0], "error": 0.25}, {"cell": ["a", 1], "error": 0.5}]


def test_a_short_picture_has_the_same_points_to_a_tenth():
    path = '   <path id="a1" d="M 52.628365 200.558634 \nL -263.110134 0 \nz\n" style="fill-opacity: 0.12"/>\n'
    shown = results.short(f"<svg>\n{path}  <text>of 1.5 M Q and z, 0.125</text>\n</svg>\n")
    assert 'd="M52.6 200.6L-263.1 0z" style="fill-opacity: 0.12"' in shown
    assert "<text>of 1.5 M Q and z, 0.125</text>" in shown
    assert re.findall("<[a-z]+", shown) == ["<svg", "<path", "<text"]


@pytest.mark.more
def test_the_results_that_are_kept_have_every_line_of_the_tables(capsys):
    """Take paper C, whose results are the smallest."""
    folder = Path(paper_c.__file__).parent
    paper_c.table(folder / "paper_c.jsonl.xz")
    shown = set(capsys.readouterr().out.splitlines())
    rows = [line for line in (folder / "paper_c.md").read_text().splitlines() if line.startswith("| ")]
    assert rows
    assert set(rows) <= shown
