"""README, tutorial and the page on running say what is so: names, settings, links, numbers."""

import json
import re
import statistics
import subprocess

import pytest

from service.cli import app
from service.settings import Settings
from tests.docs.pages import README, ROOT, blocks, deployment_files, page, rows

TUTORIAL, RUNNING = page("tutorial.md"), page("running.md")


@pytest.mark.more
def test_what_it_says_of_the_picture_is_measured() -> None:
    from docs import pictures  # here, because importing matplotlib takes most of a second

    curves = json.loads((ROOT / "docs/images/rain.json").read_text())
    after = int(re.search(r"From record ([\d,]+) on", README)[1].replace(",", ""))
    plain = dict(curves["without_noise"][0])
    runs = [dict(curve) for curve in curves["private"]]
    assert f"at ε = {pictures.EPSILON:g} for life" in README
    points = float(re.search(r"within ([\d.]+) points", README)[1])
    for records in (records for records in plain if records >= after):
        assert statistics.median(run[records] for run in runs) >= plain[records] - points / 100


def test_the_settings_table_is_the_settings() -> None:
    expected = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        expected.append([f"`PERENNIAL_{name.upper()}`", default, field.description])

    assert [cells[:3] for cells in rows(page("settings.md"), "# Settings").values()] == expected


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "docs/running.md", *deployment_files()],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_every_setting_named_exists(path) -> None:
    named = set(re.findall(r"PERENNIAL_[A-Z_]+", path.read_text()))

    assert named <= {f"PERENNIAL_{name.upper()}" for name in Settings.model_fields}


@pytest.mark.more
def test_make_up_takes_a_port() -> None:
    dry_run = ["make", "--no-print-directory", "--dry-run", "--always-make", "up"]

    def command(*more: str) -> str:
        made = subprocess.run([*dry_run, *more], cwd=ROOT, capture_output=True, text=True, check=True)
        return made.stdout.splitlines()[-1].strip()

    assert command("PORT=9000") == ".venv/bin/perennial up --port 9000"
    assert command("PORT=") == ".venv/bin/perennial up"


def test_every_command_named_exists() -> None:
    text = README + TUTORIAL + RUNNING
    code = [*re.findall(r"`([^`\n]+)`", text), *blocks(text, "console"), *blocks(text, "sh")]
    named = {name for text in code for name in re.findall(r"(?:^|[ /])perennial ([a-z]+)", text, flags=re.MULTILINE)}
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    commands |= {group.name for group in app.registered_groups}

    assert named
    assert named <= commands


def test_every_make_target_named_exists() -> None:
    named = set(re.findall(r"(?:`|\$ )make ([a-z]+)", README))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))

    assert {"demo", "test", "up"} <= named
    assert named <= targets


@pytest.mark.parametrize("page", ["README.md", "deploy/README.md"])
def test_every_relative_link_leads_somewhere(page) -> None:
    path = ROOT / page
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text())

    assert [link for link in links if not (path.parent / link).exists()] == []
