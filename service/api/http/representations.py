"""The formats of a release: JSON, or its weights as a safetensors file; the same bytes for ever."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
from fastapi import Response

from service.api.http.prebuilt_responses import Head, head
from service.api.schemas import as_json

VARY = "Accept, Authorization, Cookie"
"""Request headers on which an answer depends: to another key the same name may mean another publication."""
TAG_DIGITS = 16  # of a publication's promise


@dataclass(frozen=True, kw_only=True, eq=False)
class Representation:
    """`edition` is raised when the same version is written with other bytes; it is part of the tag."""

    media_type: str
    name: str
    edition: int
    write: Callable[[dict[str, Any]], bytes]  # from all that is told of a release, its parameters' values included

    def tag(self, promise: str, version: int) -> str:
        """Strong, and of this representation alone. promise: of the publication, since others may have its name."""
        return f'"{version}.{self.name}.{self.edition}.{promise[:TAG_DIGITS]}"'


@lru_cache(maxsize=1024)
def head_of(
    publication: str,
    promise: str,
    version: int,
    representation: Representation,
    size: int | None,
    *,
    by_number: bool = False,
    wait: int | None = None,
) -> Head:
    """Return the head of a version whose body has so many bytes; None: it is unchanged.

    by_number: it was asked for by its number, not as the latest. wait: the seconds of `Prefer: wait`.
    """
    headers = {} if wait is None else {"Preference-Applied": f"wait={wait}"}
    if by_number:  # it never changes, and only who has a key may read it
        headers["Cache-Control"] = "private, max-age=31536000, immutable"
    else:
        headers["Content-Location"] = f"/v1/publications/{publication}/releases/{version}"
    if size is not None:
        headers["Content-Length"] = str(size)
    headers |= {"ETag": representation.tag(promise, version), "Vary": VARY}
    if size is None:
        return head(Response(status_code=304, headers=headers))
    if representation is not JSON:
        headers["Content-Disposition"] = f'attachment; filename="{publication}-{version}.{representation.name}"'
    return head(Response(b"", headers=headers, media_type=representation.media_type))


def _json(release: dict[str, Any]) -> bytes:
    return bytes(as_json(release).body)


def _safetensors(release: dict[str, Any]) -> bytes:
    """`weights` (float64, rows × coordinates); all the rest as metadata: strings as they are, other things as JSON.

    The library's own writer puts metadata in an order that changes from call to call, which no strong tag allows.
    """
    weights = release["parameters"]["values"].astype("<f8")
    metadata = {
        name: value if isinstance(value, str) else orjson.dumps(value).decode()
        for name, value in release.items()
        if name != "parameters"
    }
    tensor = {"dtype": "F64", "shape": list(np.shape(weights)), "data_offsets": [0, weights.nbytes]}
    header = orjson.dumps({"__metadata__": metadata, "weights": tensor})
    header += b" " * (-len(header) % 8)
    return b"".join((len(header).to_bytes(8, "little"), header, weights.tobytes()))


def unchanged(tag: str, if_none_match: str | None) -> bool:
    """Return whether a client that sent this If-None-Match has what the tag names.

    A client that knows which publication it means may leave that out of the tag: `"1.json.1"`.
    """
    if if_none_match is None:
        return False
    return if_none_match.strip() == "*" or not {tag, f'{tag.rpartition(".")[0]}"'}.isdisjoint(tags(if_none_match))


def tags(header: str) -> list[str]:
    """Return the tags of an If-None-Match; a weak one is as good as a strong one."""
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]


JSON = Representation(media_type="application/json", name="json", edition=1, write=_json)
SAFETENSORS = Representation(
    media_type="application/vnd.safetensors", name="safetensors", edition=1, write=_safetensors
)


@lru_cache(maxsize=64)
def choose(accept: str, offered: Sequence[Representation] = (JSON, SAFETENSORS)) -> Representation | None:
    """Return the format of `offered` that an Accept header prefers; None: it accepts none."""
    name = preferred(accept, [representation.media_type for representation in offered])
    return next((representation for representation in offered if representation.media_type == name), None)


def preferred(accept: str, offered: Sequence[str]) -> str | None:
    """Return the media type that an Accept header prefers (RFC 9110, 12.5.1); None: it accepts none.

    If it prefers several alike, one that it names goes first.
    """
    ranges = [_range(media_range) for media_range in accept.split(",") if media_range.strip()] or [("*/*", 1.0)]

    def liking(media_type: str) -> tuple[float, int]:
        names = ("*/*", f"{media_type.partition('/')[0]}/*", media_type)
        return max(((names.index(name), quality) for name, quality in ranges if name in names), default=(0, 0.0))[::-1]

    best = max(offered, key=liking)
    return best if liking(best)[0] > 0 else None


def _range(text: str) -> tuple[str, float]:
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    weights = [
        match for part in parameters if (match := re.fullmatch(r"q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", part))
    ]
    return name, float(weights[0][1]) if weights else 1.0


@dataclass
class Rendered:
    """The newest few releases as they are sent, so that many readers of one model cost one query."""

    most_bytes: int = 64 * 2**20
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._bodies: dict[tuple[str, int, str], bytes] = {}

    def get(self, which: tuple[str, int, str]) -> bytes | None:
        return self._bodies.get(which)

    def put(self, which: tuple[str, int, str], body: bytes) -> None:
        if which in self._bodies or len(body) > self.most_bytes:
            return
        self._bodies[which] = body
        self._bytes += len(body)
        while self._bytes > self.most_bytes:
            self._bytes -= len(self._bodies.pop(next(iter(self._bodies))))
