"""Bugs in the dashboard's pages."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

from tests.guarantees.planted.bug import bug, wrap

if TYPE_CHECKING:
    from pathlib import Path

_COMMANDS = "tests/browser/test_commands.py"


def _rewrite_page(name: str, old: str, new: str) -> None:
    """Serve a script in which a text, which must come exactly once, is another."""
    from service.dashboard import pages

    script = (pages.STATIC / name).read_text()
    assert script.count(old) == 1, f"{script.count(old)} times: {old}"

    def packed(true: Any, path: Path) -> bytes:
        return gzip.compress(script.replace(old, new).encode()) if path.name == name else true(path)

    wrap(pages, "_packed", packed)


@bug(f"{_COMMANDS}::test_names_in_a_command_that_is_copied_run_nothing")
def names_that_run_in_the_shell() -> None:
    """A shell runs what a column's name says, when somebody pastes the page's command."""
    _rewrite_page("command.js", """.replaceAll("'", "'\\\\''")""", "")


@bug("tests/browser/test_label_names.py::test_a_label_that_was_chosen_goes_to_no_other_publication_of_the_name")
def labels_for_the_publication_of_whoever_is_signed_in() -> None:
    """A label of one stream's record is given to the record of that number of another stream."""
    _rewrite_page("frame.js", "seen.stream === stream", "true")
