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


@pytest.mark.parametrize("entry", ['diff = "- nothing = 1\\n+ nothing = 2"', 'constants = ["NOTHING"]'])
def test_one_about_lines_that_are_gone_is_refused(entry, tmp_path, monkeypatch):
    gone = tmp_path / "equivalent.toml"
    gone.write_text(f'[["service/privacy/noise/additive.py"."<module>"]]\n{entry}\nwhy = "None."\n')
    monkeypatch.setattr(equivalents, "LIST", gone)
    with pytest.raises(ValueError, match="has no such lines"):
        Equivalents.read(ROOT)


@pytest.mark.more
def test_any_value_of_a_listed_constant_is_listed_and_no_other_constants():
    from tests.mutation.mutants import mutants  # here, because importing mutmut takes most of a second

    path = "service/learning/newton.py"
    named = {each: each in Equivalents.read(ROOT) for each in mutants(ROOT, path) if each.function == "<module>"}
    assert {each.diff.split()[1] for each, listed in named.items() if listed} >= {"_SAMPLE", "_PROBES"}
    assert {each.diff.split()[1] for each, listed in named.items() if not listed} >= {"MOST_PRODUCTS", "_STEPS"}


@pytest.mark.more
@pytest.mark.parametrize(
    ("path", "change", "others"),
    [
        ("service/streams/units.py", "reshape(-2", "reshape(None, PSEUDONYM_BYTES)"),
        ("service/mechanisms/active_learning/active_gradient.py", "[:, 0].astype(None)", "[:, 1].astype(np.float64)"),
    ],
)
def test_what_means_the_same_to_numpy_is_no_mutant(path, change, others):
    from tests.mutation.mutants import mutants

    sources = [each.source for each in mutants(ROOT, path)]
    assert not any(change in each for each in sources)
    assert any(others in each for each in sources)
