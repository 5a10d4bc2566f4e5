"""The documentation as a site: it builds strictly, without a network, and every link of it leads somewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT

NO_NETWORK = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}

pytestmark = pytest.mark.more  # the site takes seconds to build


class Links(HTMLParser):
    """Addresses that a page loads, its links, and the places that links may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given.get("href", ""))
        elif "src" in given:
            self.loaded.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env=NO_NETWORK, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path.read_text()) for path in site.rglob("*.html")}


def test_every_page_of_docs_is_in_it(site: Path):
    paths = (path for kind in ("md", "ipynb") for path in (ROOT / "docs").rglob(f"*.{kind}"))
    names = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in paths}
    for name in names:
        assert (site / str(name).replace("README", "index")).exists(), name


def test_nothing_comes_from_elsewhere(site: Path, pages):
    for path, page in pages.items():
        assert [each for each in page.loaded if urlsplit(each).netloc or each.startswith("//")] == [], path.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//", style.read_text()), style.name


@pytest.mark.more
def test_no_link_is_broken(pages):
    for path, page in pages.items():
        if path.name == "404.html":  # its links begin at the site's root
            continue
        for link in (*page.links, *page.loaded):
            address = urlsplit(link)
            if address.scheme:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            assert target.exists(), f"{path.name}: {link}"
            if address.fragment and target in pages:
                assert unquote(address.fragment) in pages[target].ids, f"{path.name}: {link}"


def test_the_http_interface_has_the_fields_of_every_shape(site: Path):
    text = (site / "api.html").read_text()
    assert 'id="streaminfo"' in text
    assert 'href="#streaminfo"' in text
