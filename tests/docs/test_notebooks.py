"""The tutorials that are notebooks run, cell after cell, against a service."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.conftest import Service
from tests.docs.pages import ROOT

ADDRESS = "http://127.0.0.1:8000"
NOTEBOOKS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "docs/tutorials").glob("*.ipynb"))}


def cells(name: str, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == kind]


def run(name: str, service: Service, folder: Path, patch: pytest.MonkeyPatch) -> tuple[dict, str]:
    """Return the names that the notebook leaves, and its output."""
    (folder / "perennial-data").mkdir()
    (folder / "perennial-data" / "admin.key").write_text(service.admin_key)
    patch.chdir(folder)
    names: dict = {}
    output = io.StringIO()
    try:
        with redirect_stdout(output):
            for cell in cells(name, "code"):
                exec(compile(cell.replace(ADDRESS, service.url), f"{name}.ipynb", "exec"), names)
    finally:
        names["client"].close()
    return names, output.getvalue()


@pytest.mark.more
@pytest.mark.slow
def test_the_first_model_predicts(service, tmp_path, monkeypatch):
    names, output = run("first_model", service, tmp_path, monkeypatch)
    assert "version 5, of 2500 records" in output
    assert 0 <= names["accuracy"] <= 1  # the noise of one model can be anything
    assert (tmp_path / "rain.safetensors").exists()


@pytest.mark.slow
def test_the_ledger_and_the_card_say_what_it_cost(service, tmp_path, monkeypatch):
    names, output = run("ledger_and_card", service, tmp_path, monkeypatch)
    assert [(part["start"], part["end"], part["epsilon"]) for part in names["ledger"].ranges] == [
        (0, 600, 1.5),
        (600, 700, 0.0),
    ]
    assert names["left"]["epsilon"] == 0.5
    assert names["card"]["epsilon"]["publication"]["for_life"] == 1.5
    assert output.count("charged records") == 3


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_stored_without_output(name):
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in NOTEBOOKS[name]["cells"])
