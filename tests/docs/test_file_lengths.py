"""Files that fit into a reader's head: at most 400 lines each."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_LINES = 400
ROOMS = ("service", "client", "demo", "benchmarks", "docs", "tests")
LONGER = {
    "benchmarks/paper_d.py": "the experiments of one paper, in its order",
    "tests/guarantees/test_over_http.py": "to be split by guarantee",
}


def test_no_file_is_longer_than_a_reader_can_keep_in_mind():
    files = [path for room in ROOMS for kind in ("py", "js") for path in (ROOT / room).rglob(f"*.{kind}")]
    assert len(files) > 400
    longer = {str(path.relative_to(ROOT)) for path in files if path.read_text().count("\n") > MOST_LINES}
    assert longer == LONGER.keys(), "split it by subject, or say here why it is one"
