"""Serves the dashboard: a page for each thing to look at, and what pages are made of.

Nothing here knows who asks or what there is. A page is `static/page.html` around a file of its own; its script asks
the HTTP interface, with the session's cookie, for what it shows. Addresses of what a page loads hold a digest of the
content, so that browsers keep it for ever and never mix versions.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from string import Template

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

router = APIRouter(include_in_schema=False)

STATIC = Path(__file__).resolve().parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
PLOTLY = "plotly/package_data/plotly.min.js"  # the folder of the package, found without importing it

UP = {"overview": "./", "sign-in": "../", "explorer": "../", "stream": "../../", "publication": "../../"}
UP["label"] = "../../../"
"""The relative path from each page to the service's root, since a proxy may put any path before it."""

HEADERS = {
    # The policy allows styles that scripts set on elements, not those in a document's text.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@router.get("/")
async def root() -> Response:
    """Redirect people to the dashboard."""
    return RedirectResponse("dashboard", 307)


@router.get("/dashboard")
async def overview() -> Response:
    """Serve the page of all streams and publications."""
    return _page("overview")


@router.get("/dashboard/sign-in")
async def sign_in() -> Response:
    """Serve the page that asks for a key."""
    return _page("sign-in")


@router.get("/dashboard/streams/{stream}")
async def stream() -> Response:
    """Serve the page of one stream: its budget and its ledger."""
    return _page("stream")


@router.get("/dashboard/publications/{publication}")
async def publication() -> Response:
    """Serve the page of one publication: its plan and its releases."""
    return _page("publication")


@router.get("/dashboard/publications/{publication}/label")
async def label() -> Response:
    """Serve the page on which people label records of one publication."""
    return _page("label")


@router.get("/dashboard/explorer")
async def explorer() -> Response:
    """Serve the explorer: the price of privacy, tried out on public data."""
    return _page("explorer")


@router.get("/dashboard/assets/{digest}/{name}")
async def asset(digest: str, name: str, request: Request) -> Response:
    """Serve a file that pages load."""
    path = _assets().get((digest, name))
    if path is None:
        raise HTTPException(404)
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if _takes_gzip(",".join(request.headers.getlist("accept-encoding"))):
        body = await run_in_threadpool(_packed, path)
        headers["Content-Encoding"] = "gzip"
    else:
        body = await run_in_threadpool(path.read_bytes)
    return Response(body, headers=headers, media_type=TYPES[path.suffix])


def _takes_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header takes gzip (RFC 9110, 12.5.3)."""
    codings = (coding.lower().partition(";") for coding in accepted.split(","))
    taken = {name.strip(): re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight) is None for name, _, weight in codings}
    return taken.get("gzip", taken.get("*", False))


@cache
def _assets() -> dict[tuple[str, str], Path]:
    """Return files by digest and name. Our own have one digest together, since modules name each other without any."""
    ours = sorted(path for path in STATIC.iterdir() if path.suffix in TYPES)
    plotly = Path(str(distribution("plotly").locate_file(PLOTLY)))
    together = _digest(*ours)
    return {(together, path.name): path for path in ours} | {(_digest(plotly), "plotly.js"): plotly}


def _digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


@cache
def _packed(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), mtime=0)


@cache
def _page(name: str) -> HTMLResponse:
    """Return a page, whose file begins with its title."""
    root = UP[name]
    at = {name: f"{root}dashboard/assets/{digest}/{name}" for digest, name in _assets()}
    title, _, body = (STATIC / f"{name}.html").read_text().partition("\n")
    text = Template((STATIC / "page.html").read_text()).substitute(
        title=title,
        body=body.replace("${root}", root),
        root=root,
        style=at["style.css"],
        icon=at["icon.svg"],
        script=at[f"{name}.js"],
        plotly=at["plotly.js"],
    )
    return HTMLResponse(text, headers=HEADERS)
