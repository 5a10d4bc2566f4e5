"""Golden files: JSON in which a person can read what changed."""

import json
import re
from typing import Any

LINE_LENGTH = 100


def rounded(value: Any, digits: int = 6) -> Any:
    """Return a document whose numbers with a fraction have at most so many digits."""
    if isinstance(value, dict):
        return {name: rounded(part, digits) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part, digits) for part in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def readable(value: Any) -> str:
    """Return JSON with a line for each name, and short lists and objects in one line."""

    def in_one_line(match: re.Match[str]) -> str:
        line = " ".join(match[0].split()).replace("[ ", "[").replace(" ]", "]")
        return line if len(line) <= LINE_LENGTH else match[0]

    text = json.dumps(value, indent=1, ensure_ascii=False)
    for innermost in (r"\[[^\[\]{}]*\]", r"\{[^\[\]{}]*\}"):
        text = re.sub(innermost, in_one_line, text)
    return text + "\n"
