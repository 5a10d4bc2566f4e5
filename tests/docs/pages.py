"""Finds and reads documents, for their tests."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def page(name: str) -> str:
    """A page of docs/."""
    return (ROOT / "docs" / name).read_text()


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """The cells of each line of the tables below a heading, by the name in the first one; not the tables' headings."""
    section = f"\n{text}".split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    table = re.sub(r"^\|.*\n\|[ |-]+\n", "", section, flags=re.MULTILINE)
    lines = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines() if line[:1] == "|"
    ]
    return {cells[0].strip("`"): cells for cells in lines}


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def deployment_files() -> list[Path]:
    """Everything outside the service that sets its settings."""
    manifests = sorted((ROOT / "deploy").rglob("*.yaml"))
    return [ROOT / name for name in ("Dockerfile", "docker-compose.yml", ".env.example")] + manifests
