"""Hooks of the site.

Its nav lists mechanisms and learners by the registries, notebooks are pages, the HTTP interface has the fields of
every shape, and files outside docs/ are not linked.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

from docs.http_reference import site_page
from docs.reference import SCOPES
from service.learning.registry import LEARNERS
from service.mechanisms.registry import MECHANISMS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)\s]+)\)")


def on_config(config: MkDocsConfig) -> None:
    """Add a page for each mechanism and learner to the part "Reference"."""
    reference = next(part["Reference"] for part in config.nav or () if "Reference" in part)
    for title, registry in (("Mechanisms", MECHANISMS), ("Learners", LEARNERS)):
        reference.append({title: [{each.kind: f"{title.lower()}/{each.kind}.md"} for each in registry]})


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook."""
    folder = Path(config.docs_dir)
    for path in sorted(folder.glob("tutorials/*.ipynb")):
        name = path.relative_to(folder).with_suffix(".md").as_posix()
        files.append(File.generated(config, name, content=_as_markdown(json.loads(path.read_text()))))
    return files


def _as_markdown(notebook: dict[str, Any]) -> str:
    """Return the cells of a notebook one below the other, code as blocks."""
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"])
    return "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return the page with links to notebooks' pages, and paths in the place of links to files outside docs/.

    api.md is replaced by its longer form.
    """
    if page.file.src_uri == "api.md":
        markdown = site_page(SCOPES)
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        text, link = match.groups()
        path = posixpath.normpath(posixpath.join("docs", folder, link.partition("#")[0]))
        if path.startswith("docs/"):
            return match[0]
        return f"{text} (`{path}`)" if posixpath.basename(path) not in text else f"`{path}`"

    return _LINK.sub(replaced, markdown).replace(".ipynb)", ".md)")
