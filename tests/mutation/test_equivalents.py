"""The list of changes that make no difference is about the code that is there, and says why of each."""

from pathlib import Path

import pytest

from tests.mutation import equivalents
from tests.mutation.equivalents import Equivalents

ROOT = Path(__file__).resolve().parents[2]


def test_each_has_a_reason_and_is_about_lines_that_are_there():
    listed = Equivalents.read(ROOT).reasons
    assert listed
    assert [each for each, reason in listed.items() if not reason.endswith(".")] == []


def test_one_about_lines_that_are_gone_is_refused(tmp_path, monkeypatch):
    gone = tmp_path / "equivalent.toml"
    gone.write_text(
        '[["service/privacy/noise/additive.py".root]]\ndiff = "- nothing = 1\\n+ nothing = 2"\nwhy = "None."\n'
    )
    monkeypatch.setattr(equivalents, "LIST", gone)
    with pytest.raises(ValueError, match="has no such lines"):
        Equivalents.read(ROOT)
