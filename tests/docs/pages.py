"""What the tests of the documents share: where they are, and how to read them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    """The README's section of that title, without the sections below it."""
    return re.split(rf"^## {re.escape(title)}$", README, flags=re.MULTILINE)[1].split("\n## ", 1)[0]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def deployment_files() -> list[Path]:
    """Everything outside the service that sets its settings."""
    manifests = sorted((ROOT / "deploy").rglob("*.yaml"))
    return [ROOT / name for name in ("Dockerfile", "docker-compose.yml", ".env.example")] + manifests
