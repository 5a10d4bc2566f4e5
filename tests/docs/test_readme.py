"""What the README says is so: names, settings, links."""

import re
import subprocess

import pytest

from service.cli import app
from service.settings import Settings
from tests.docs.pages import README, ROOT, blocks, deployment_files, section


def test_the_settings_table_is_the_settings() -> None:
    expected = []
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        expected.append(f"| `PERENNIAL_{name.upper()}` | {default} | {field.description} |")

    found = [line for line in section("Settings").splitlines() if line.startswith("| `")]

    assert found == expected


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *deployment_files()],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_every_setting_named_exists(path) -> None:
    named = set(re.findall(r"PERENNIAL_[A-Z_]+", path.read_text()))

    assert named <= {f"PERENNIAL_{name.upper()}" for name in Settings.model_fields}


def test_make_up_takes_a_port() -> None:
    asked = ["make", "--no-print-directory", "--dry-run", "--always-make", "up"]

    def command(*more: str) -> str:
        made = subprocess.run([*asked, *more], cwd=ROOT, capture_output=True, text=True, check=True)
        return made.stdout.splitlines()[-1].strip()

    assert command("PORT=9000") == ".venv/bin/perennial up --port 9000"
    assert command("PORT=") == ".venv/bin/perennial up"
    assert "`make up PORT=9000`" in README


def test_every_command_named_exists() -> None:
    code = [*re.findall(r"`([^`\n]+)`", README), *blocks(README, "console")]
    named = {name for text in code for name in re.findall(r"(?:^|[ /])perennial ([a-z]+)", text, flags=re.MULTILINE)}
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}

    assert named
    assert named <= commands


def test_every_call_says_whom_it_asks() -> None:
    calls = re.findall(r"^.*\bcall .*$", "\n".join(blocks(README, "sh") + blocks(README, "console")), re.MULTILINE)
    assert len(calls) > 10
    assert [each for each in calls if "$API/v1/" not in each] == []


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
